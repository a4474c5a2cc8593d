"""Files that hold GPU code, opened with NVIDIA's own tools: what is in them, for which architecture."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onepass.analysis.machine_code import MachineCode, read_machine_code
from onepass.analysis.resources import Usage, usage_by_kernel
from onepass.errors import BadUserFile

ELF, CUDA_MACHINE = b"\x7fELF", 190
FATBIN = b"\x50\xed\x55\xba"

# Packages that bring each tool; the folders are those of CUDA 13's wheels, CUDA 12's, the toolkit and Triton.
PACKAGES = {
    "nvdisasm": "nvidia-cuda-nvdisasm",
    "cuobjdump": "nvidia-cuda-cuobjdump",
    "ptxas": "nvidia-cuda-nvcc",
    "fatbinary": "nvidia-cuda-nvcc",
}
# Those that `onepass[inspect]` brings; the package of the others is large (37 MB).
IN_EXTRA = ("nvdisasm", "cuobjdump")
_FOLDERS = (("nvidia", "*/bin"), ("triton", "backends/nvidia/bin"))


@dataclass(frozen=True)
class Image:
    """Code for one architecture, as a file holds it."""

    kind: Literal["cubin", "ptx"]
    arch: str
    code: bytes


def tool(name: str) -> str | None:
    """The path of nvdisasm, cuobjdump, ptxas or fatbinary: from a wheel, the PATH or the toolkit; None where there is
    none.
    """
    return next(iter(tools(name)), None)


def tools(name: str) -> list[str]:
    """Every such path, the wheel's first. Triton brings two assemblers, the second for newer PTX."""
    found = []
    for package, pattern in _FOLDERS:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            found += [str(p) for p in sorted(Path(folder).glob(f"{pattern}/{name}"), reverse=True)]
            found += [str(p) for p in sorted(Path(folder).glob(f"{pattern}/{name}-*"))]
    on_path = shutil.which(name)
    found += [on_path] if on_path else []
    return found + [str(p) for p in Path("/usr/local").glob(f"cuda*/bin/{name}")]


def how_to_get(name: str) -> str:
    """What to install for a tool that is missing."""
    extra = f"'onepass[inspect]' (or {PACKAGES[name]})" if name in IN_EXTRA else PACKAGES[name]
    return f"{name} is missing: pip install {extra}"


def disassemble(cubin: bytes) -> dict[str, MachineCode] | str:
    """The machine code of a cubin by kernel, with source lines; or why there is none."""
    path = tool("nvdisasm")
    if path is None:
        return how_to_get("nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = _run([path, "-json", "-g", file.name])
    if done.returncode:
        return (done.stderr.strip() or done.stdout.strip()).removeprefix("nvdisasm fatal   : ")
    document: list[Any] = json.loads(_valid(done.stdout))
    return read_machine_code(document)


def _valid(document: str) -> str:
    """nvdisasm 13 writes a byte of a file's name that is no ASCII as \\ and three octal digits, which JSON has not."""
    return re.sub(r"\\(?![\"\\/bfnrtu])", r"\\\\", document)


def usage(cubin: bytes, arch: str) -> dict[str, Usage] | str:
    """Registers, stack and shared memory of a cubin's kernels; or why they are not known."""
    path = tool("cuobjdump")
    if path is None:
        return how_to_get("cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = _run([path, "-res-usage", file.name])
    return usage_by_kernel(done.stdout, arch) if done.returncode == 0 else done.stderr.strip()


def assemble(ptx: Path, arch: str) -> tuple[bytes, str] | str:
    """Machine code of a PTX file and what ptxas says of it, the first that takes its version; or why there is none."""
    said = how_to_get("ptxas")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.cubin"
        for path in tools("ptxas"):
            done = _run([path, "-v", "-lineinfo", f"-arch={arch}", str(ptx), "-o", str(out)])
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
            _run([cuobjdump, what, "all", str(path.resolve())], folder)
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


def _run(command: Sequence[str], folder: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=folder)
