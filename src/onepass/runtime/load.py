"""Sources → loaded kernels: each distinct source is compiled once a machine and loaded once a process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from onepass.analysis.resources import Resources
from onepass.codegen.emit import Source
from onepass.runtime.cache import Entry, cache_key, open_cache, with_entry
from onepass.runtime.counters import COUNTERS
from onepass.runtime.launch_cpu import CpuKernel, load_kernel
from onepass.runtime.launch_cuda import Begin, CudaKernel, may_begin_early
from onepass.runtime.nvrtc import OPTIONS, compile_cubin, version

T = TypeVar("T")

_lock = threading.Lock()
_cpu: dict[str, CpuKernel] = {}
_cuda: dict[tuple[str, str], CudaKernel] = {}


@dataclass(frozen=True)
class Binary:
    """Machine code of a CUDA kernel, from the compiler or from disk."""

    code: bytes
    resources: Resources


def cpu_kernel(source: Source) -> CpuKernel:
    """The kernel of a source for the CPU.

    Raises: BadSetting, NoCompiler, CompileError, LoadError.
    """
    with _lock:
        known = _cpu.get(source.text)
    if known is None:
        kernel = load_kernel(source.text, source.name, cache=open_cache())
        with _lock:
            if source.text not in _cpu:
                COUNTERS.compiled += not kernel.entry.hit
                COUNTERS.loaded += 1
            known = _cpu.setdefault(source.text, kernel)
    return known


def binary(source: Source, arch: str) -> Binary:
    """Machine code of a source for an architecture.

    Raises: NoNvrtc, CompileError.
    """

    def build(path: Any) -> dict[str, Any]:
        cubin = compile_cubin(source.text, source.name, arch)
        COUNTERS.compiled += 1
        path.write_bytes(cubin.code)
        return {"resources": cubin.resources.__dict__}

    def read(entry: Entry) -> Binary:
        return Binary(entry.path.read_bytes(), Resources(**entry.metadata["resources"]))

    cache, key = open_cache(), cache_key(source.text, OPTIONS, arch, version(arch))
    return with_entry(lambda: cache.get_or_build(key, ".cubin", build), read)


def cuda_kernel(source: Source, arch: str, threads: int, shared_bytes: int = 0) -> CudaKernel:
    """The kernel of a source on the current device, launched with blocks of ``threads``.

    Raises: NoNvrtc, CompileError, DriverError.
    """
    key = (source.text, arch)
    with _lock:
        known = _cuda.get(key)
    if known is None:
        begin: Begin = "together" if source.together else "early" if may_begin_early(arch) else "after"
        code = binary(source, arch).code
        kernel = CudaKernel(code, source.name, threads, len(source.block), shared_bytes, begin)
        with _lock:
            COUNTERS.loaded += key not in _cuda
            known = _cuda.setdefault(key, kernel)
    return known


def at_once(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Runs jobs that compile side by side and gives their results in order; the first error is raised."""
    with ThreadPoolExecutor(8) as pool:
        return [done.result() for done in [pool.submit(job) for job in jobs]]
