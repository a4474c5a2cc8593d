"""NVRTC: CUDA C++ text → machine code, with what ptxas says about registers and spills. Needs no GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from onepass.analysis.resources import Resources, read_resources
from onepass.errors import CompileError, NoNvrtc

OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--fmad=true", "-lineinfo")


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture."""

    code: bytes
    resources: Resources


def folders() -> list[Path]:
    """Where wheels and the toolkit put NVRTC."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    found = [p for folder in wheels for p in folder.glob("*/lib")]
    return [*found, Path("/usr/local/cuda/lib64")]


@lru_cache
def libraries() -> dict[int, ctypes.CDLL]:
    """NVRTC by CUDA major version."""
    paths: dict[int, Path] = {}
    for folder in folders():
        for path in folder.glob("libnvrtc.so.[0-9]*"):
            major = path.name.removeprefix("libnvrtc.so.").split(".")[0]
            paths.setdefault(int(major), path)
    # NVRTC asks for its built-ins by name alone, and not every release looks beside itself (13.0 does not).
    for path in paths.values():
        for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins))
    return {major: ctypes.CDLL(str(path)) for major, path in paths.items()}


def library(arch: str) -> tuple[int, ctypes.CDLL]:
    """The newest NVRTC that compiles for ``sm_XX``: CUDA 13 dropped what is below sm_75.

    Raises: NoNvrtc.
    """
    number = int(re.sub(r"\D", "", arch))
    able = {major: lib for major, lib in libraries().items() if major < 13 or number >= 75}
    if not able:
        raise NoNvrtc(arch, tuple(str(f) for f in folders()))
    major = max(able)
    return major, able[major]


@lru_cache
def version(arch: str) -> str:
    """The version of the NVRTC used for an architecture; part of the cache key."""
    _, lib = library(arch)
    major, minor = ctypes.c_int(), ctypes.c_int()
    lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"nvrtc {major.value}.{minor.value}"


def _no_cache(arch: str) -> tuple[str, ...]:
    """NVRTC's own cache, from 12.9 on, gives back code without the log: registers and spills would go unread."""
    major, minor = (int(n) for n in version(arch).split()[1].split("."))
    return ("--no-cache",) if (major, minor) >= (12, 9) else ()


def compile_cubin(source: str, name: str, arch: str) -> Cubin:
    """Compiles one kernel text.

    Raises: NoNvrtc; CompileError with the numbered source lines and the compiler's message.
    """
    code, log = compile_text(source, name, arch)
    return Cubin(code, read_resources(log))


def compile_text(source: str, name: str, arch: str, options: tuple[str, ...] = ()) -> tuple[bytes, str]:
    """Machine code, and what the compiler and ptxas said; ``options`` are added. Raises: as `compile_cubin`."""
    code, _, log = compile_with_ptx(source, name, arch, options)
    return code, log


def compile_with_ptx(
    source: str, name: str, arch: str, added: tuple[str, ...] = ()
) -> tuple[bytes, str, str]:
    """Machine code, the PTX that it was made of, and the log. Raises: as `compile_cubin`."""
    _, lib = library(arch)
    program = ctypes.c_void_p()
    lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), f"{name}.cu".encode(), 0, None, None)
    options = (f"--gpu-architecture={arch}", *OPTIONS, *_no_cache(arch), *added)
    packed = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    failed = lib.nvrtcCompileProgram(program, len(options), packed)
    log = _read(lib, program, "ProgramLog").decode().rstrip("\0")
    try:
        if failed:
            lines = tuple(
                dict.fromkeys(int(n) for n in re.findall(r"\.cu\((\d+)\): (?:catastrophic )?error", log))
            )[:5]
            raise CompileError(name, source, log, "nvrtc " + " ".join(options), lines)
        ptx = _read(lib, program, "PTX").decode().rstrip("\0")
        return _read(lib, program, "CUBIN"), ptx, log
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _read(lib: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    count = ctypes.c_size_t()
    getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(count))
    buffer = ctypes.create_string_buffer(count.value)
    getattr(lib, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw
