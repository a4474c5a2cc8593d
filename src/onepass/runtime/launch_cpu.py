"""Load compiled CPU kernels and run them over PyTorch's own threads."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ..codegen.cpu_prelude import cpu_driver
from ..errors import LoadError
from .cache import DiskCache, Entry
from .hostcc import compile_cached

# A thread is worth starting for this many bytes read and written; see docs/notes/002-cpu-kernels.md.
GRAIN_BYTES = 64 * 1024


@dataclass(frozen=True)
class OpenMP:
    """Entry points of the OpenMP runtime in this process, or zeros and the reason why there is none."""

    parallel: int
    thread_index: int
    team_size: int
    reason: str | None  # why calls run on one thread, or None


@lru_cache(maxsize=1)
def openmp() -> OpenMP:
    """Find the OpenMP runtime PyTorch was linked with, by asking PyTorch's own library for it."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        # The dynamic linker searches the library and what it depends on: the runtime torch uses is found.
        handle = ctypes.CDLL(str(library), mode=os.RTLD_NOW | getattr(os, "RTLD_NOLOAD", 0))
        return OpenMP(
            _address(handle.GOMP_parallel),
            _address(handle.omp_get_thread_num),
            _address(handle.omp_get_num_threads),
            None,
        )
    except (OSError, AttributeError) as e:
        return OpenMP(0, 0, 0, f"PyTorch's OpenMP runtime was not found ({e}); CPU kernels run on one thread")


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


@dataclass(frozen=True)
class Driver:
    """The compiled driver: `run(job, args, outer, pieces, scratch_bytes)` is 0, or 1 without memory."""

    run: Callable[[int, bytes, int, int, int], int]
    library: ctypes.CDLL


@functools.cache
def load_driver(cache: DiskCache) -> Driver:
    """Compile the driver or take it from the cache, and load it; one a cache.

    Raises: NoCompiler, CompileError, LoadError.
    """
    library = _load(compile_cached(cpu_driver(), name="onepass_run", cache=cache).path, "onepass_run")
    run = library.onepass_run
    run.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_longlong, ctypes.c_longlong, ctypes.c_longlong)
    run.restype = ctypes.c_int
    return Driver(run, library)


def _load(path: Path, name: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as e:
        raise LoadError(name, str(path), str(e)) from e


class CpuKernel:
    """A loaded CPU kernel. Threads may call it at once: nothing is written here after construction.

    A call's outer items are cut into ranges at places that depend only on their number, their bytes and
    PyTorch's thread count; an item's result does not depend on the range it falls in.
    """

    __slots__ = ("_job", "_job_address", "_library", "_run", "name")

    def __init__(self, path: Path, name: str, driver: Driver) -> None:
        """Load the function `name` from the shared object at `path`.

        Raises: LoadError if the file or the function is not there.
        """
        self._library = _load(path, name)
        try:
            kernel = _address(getattr(self._library, name))
        except AttributeError as e:
            raise LoadError(name, str(path), str(e)) from e
        omp = openmp()
        # struct Job of driver.hpp
        self._job = ctypes.create_string_buffer(
            struct.pack("4q", kernel, omp.parallel, omp.thread_index, omp.team_size)
        )
        self._job_address = ctypes.addressof(self._job)
        self._run = driver.run
        self.name = name

    def __call__(self, args: bytes, outer: int, item_bytes: int, scratch_bytes: int = 0) -> None:
        """Run outer items 0 … outer - 1 with the packed `struct Args`.

        `item_bytes` is what one item reads and writes (it sets how many threads the call is worth),
        `scratch_bytes` what each thread needs at `scratch`, which is aligned to 64 bytes.

        Raises: MemoryError if there is no memory for the scratch.
        """
        pieces = outer * item_bytes // GRAIN_BYTES
        if pieces > 1:
            pieces = min(pieces, outer, torch.get_num_threads())
        if self._run(self._job_address, args, outer, pieces, scratch_bytes):
            raise MemoryError(f"{self.name}: no memory for {scratch_bytes} bytes of scratch a thread")


def load_kernel(
    source: str, name: str, *, cache: DiskCache, metadata: Mapping[str, Any] | None = None
) -> tuple[CpuKernel, Entry]:
    """Compile the kernel `name` or take it from the cache, and load it.

    Raises: NoCompiler, CompileError, LoadError.
    """
    entry = compile_cached(source, name=name, cache=cache, metadata=metadata)
    return CpuKernel(entry.path, name, load_driver(cache)), entry


def streaming_bytes() -> int:
    """An output tensor of this many bytes or more is stored past the caches.

    A quarter of the last-level cache. Measured (Zen 3, 32 MiB of cache, LayerNorm fp32 and a consumer of its
    output, 2026-11-30): from 4 MiB on the two together take 0.82 of the time, at 2 MiB 1.2.
    """
    return last_level_cache_bytes() // 4


@lru_cache(maxsize=1)
def last_level_cache_bytes() -> int:
    """The size of the processor's last cache; 32 MiB where the system does not say."""
    for index in (3, 2):
        try:
            text = Path(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size").read_text().strip()
            return int(text.removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    return 32 * 1024 * 1024
