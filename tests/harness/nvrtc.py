"""NVRTC for tests: compile a text for an architecture, read what ptxas says. Needs no GPU and no driver."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True)
class Compiled:
    """A cubin and its cost."""

    cubin: bytes
    registers: int
    spill_bytes: int
    stack_bytes: int
    log: str


@lru_cache
def library(arch: int) -> ctypes.CDLL | None:
    """NVRTC from a wheel that compiles for sm_<arch>, or None; 13 dropped what is below sm_75."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    found = {int(p.suffix[1:]): p for f in folders for p in f.glob("*/lib/libnvrtc.so.[0-9]*")}
    able = [major for major in found if major < 13 or arch >= 75]
    return ctypes.CDLL(str(found[max(able)])) if able else None


def compile_cubin(text: str, arch: int) -> Compiled:
    """Compile for sm_<arch>; raises RuntimeError with the compiler's log."""
    nvrtc = library(arch)
    if nvrtc is None:
        raise RuntimeError(f"no NVRTC for sm_{arch}: pip install nvidia-cuda-nvrtc")
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
    options = (f"--gpu-architecture=sm_{arch}", "--std=c++17", "--ptxas-options=-v", "--fmad=true")
    packed = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    code = nvrtc.nvrtcCompileProgram(program, len(options), packed)
    log = _read(nvrtc, program, "ProgramLog").decode().rstrip("\0")
    if code:
        raise RuntimeError(f"sm_{arch}: {log}")
    cubin = _read(nvrtc, program, "CUBIN")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))

    def total(pattern: str) -> int:
        return sum(int(n) for n in re.findall(pattern, log))

    spills = total(r"(\d+) bytes spill stores") + total(r"(\d+) bytes spill loads")
    return Compiled(
        cubin,
        max(map(int, re.findall(r"Used (\d+) registers", log))),
        spills,
        total(r"(\d+) bytes stack frame"),
        log,
    )


def _read(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw
