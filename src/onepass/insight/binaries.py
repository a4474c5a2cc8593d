"""Files that hold GPU code, opened with NVIDIA's own tools: what is in them, for which architecture."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onepass.analysis.resources import Usage, usage_by_kernel
from onepass.errors import BadUserFile
from onepass.runtime.disassemble import disassemble, how_to_get, run, tool, tools

__all__ = [
    "ELF",
    "FATBIN",
    "Image",
    "arch_of",
    "assemble",
    "disassemble",
    "images",
    "target_of",
    "tool",
    "usage",
]

ELF, CUDA_MACHINE = b"\x7fELF", 190
FATBIN = b"\x50\xed\x55\xba"


@dataclass(frozen=True)
class Image:
    """Code for one architecture, as a file holds it."""

    kind: Literal["cubin", "ptx"]
    arch: str
    code: bytes


def usage(cubin: bytes, arch: str) -> dict[str, Usage] | str:
    """Registers, stack and shared memory of a cubin's kernels; or why they are not known."""
    path = tool("cuobjdump")
    if path is None:
        return how_to_get("cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = run([path, "-res-usage", file.name])
    return usage_by_kernel(done.stdout, arch) if done.returncode == 0 else done.stderr.strip()


def assemble(ptx: Path, arch: str) -> tuple[bytes, str] | str:
    """Machine code of a PTX file and what ptxas says of it, the first that takes its version; or why there is none."""
    said = how_to_get("ptxas")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.cubin"
        for path in tools("ptxas"):
            done = run([path, "-v", "-lineinfo", f"-arch={arch}", str(ptx), "-o", str(out)])
            if done.returncode == 0:
                return out.read_bytes(), done.stderr
            said = done.stderr.strip()
    return said


def fault_in_ptx(said: str) -> str:
    """What ptxas found wrong with a text; empty where it is only too old for its version or target, or missing."""
    faults = [line for line in said.splitlines() if re.search(r", line \d+; (?:error|fatal)", line)]
    return "" if not faults or any("Unsupported ." in line for line in faults) else "\n".join(faults)


def is_cut_off(elf: bytes) -> bool:
    """Whether an ELF file ends before one of the two tables that its header names, of segments and of sections."""
    if len(elf) < 64:
        return True
    segments, sections = (int.from_bytes(elf[at : at + 8], "little") for at in (32, 40))
    sizes = [int.from_bytes(elf[at : at + 2], "little") for at in (54, 56, 58, 60)]
    return not sections or max(segments + sizes[0] * sizes[1], sections + sizes[2] * sizes[3]) > len(elf)


def arch_of(cubin: bytes) -> str | None:
    """sm_XX of a cubin, from the flags of its ELF header; None if it is no cubin."""
    if cubin[:4] != ELF or int.from_bytes(cubin[18:20], "little") != CUDA_MACHINE:
        return None
    flags, abi = int.from_bytes(cubin[48:52], "little"), cubin[8]
    # From version 8 of the ABI on the number stands in the second byte, before in the first. Source: cuobjdump's reading
    # of sm_70 … sm_120 cubins of ptxas 12.9 and 13.0, which a test repeats.
    return f"sm_{flags >> 8 & 0xFF if abi >= 8 else flags & 0xFF}"


def target_of(ptx: str) -> str | None:
    """sm_XX that a PTX text is written for."""
    found = re.search(r"^\s*\.target\s+(sm_\w+)", ptx, re.MULTILINE)
    return found[1] if found else None


def images(path: Path) -> list[Image]:
    """Everything that a fat binary, or a program or library with one inside, holds.

    Raises: BadUserFile where the file holds no GPU code, or what it takes to look into it is missing.
    """
    cuobjdump = tool("cuobjdump")
    if cuobjdump is None:
        raise BadUserFile(str(path), "can't be opened without cuobjdump", f"{how_to_get('cuobjdump')}.")
    with tempfile.TemporaryDirectory() as folder:
        for what in ("-xelf", "-xptx"):
            run([cuobjdump, what, "all", str(path.resolve())], folder)
        files = sorted(p for p in Path(folder).iterdir() if p.suffix in (".cubin", ".ptx"))
        found = [image for p in files if (image := _image(p))]
    if not found:
        raise BadUserFile(
            str(path), "holds no GPU code", "Name the library that the extension was compiled to."
        )
    return found


def _image(path: Path) -> Image | None:
    code = path.read_bytes()
    if path.suffix == ".cubin":
        arch = arch_of(code)
        return Image("cubin", arch, code) if arch else None
    return Image("ptx", target_of(code.decode(errors="replace")) or "", code)
