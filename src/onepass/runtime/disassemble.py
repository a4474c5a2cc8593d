"""Machine code of compiled kernels, read with NVIDIA's disassembler where there is one."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from onepass.analysis.machine_code import MachineCode, read_machine_code
from onepass.codegen.emit import Source
from onepass.errors import CompileError, NoNvrtc
from onepass.runtime.load import binary

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


def tool(name: str) -> str | None:
    """The path of one of NVIDIA's tools: from a wheel, the PATH or the toolkit; None where there is none."""
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
    return _disassembled(path, cubin)


@lru_cache(maxsize=64)
def _disassembled(path: str, cubin: bytes) -> dict[str, MachineCode] | str:
    """Kept, as it takes half a second and a page in another language asks again."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = run([path, "-json", "-g", file.name])
    if done.returncode:
        return (done.stderr.strip() or done.stdout.strip()).removeprefix("nvdisasm fatal   : ")
    document: list[Any] = json.loads(_valid(done.stdout))
    return read_machine_code(document)


def _valid(document: str) -> str:
    """nvdisasm 13 writes a byte of a file's name that is no ASCII as \\ and three octal digits, which JSON has not."""
    return re.sub(r"\\(?![\"\\/bfnrtu])", r"\\\\", document)


def machine_code(source: Source, arch: str) -> MachineCode | str:
    """The machine code that a generated CUDA kernel becomes on an architecture; or why it can't be read."""
    try:
        code = binary(source, arch).code
    except (NoNvrtc, CompileError) as error:
        return error.what()
    found = disassemble(code)
    return found if isinstance(found, str) else found[source.name]


def run(command: Sequence[str], folder: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a tool and keep what it says."""
    return subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=folder)
