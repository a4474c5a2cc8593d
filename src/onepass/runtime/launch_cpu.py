"""Load compiled CPU kernels and run them over PyTorch's own threads."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from ..errors import LoadError

# Below this many bytes read and written a call stays on the calling thread; see docs/notes/002-cpu-kernels.md.
SERIAL_BYTES = 128 * 1024


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
        # The dynamic linker searches the library and what it depends on: whichever runtime torch uses is found.
        handle = ctypes.CDLL(str(library), mode=os.RTLD_NOW | getattr(os, "RTLD_NOLOAD", 0))
        found = [
            _address(getattr(handle, name))
            for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        ]
    except (OSError, AttributeError) as e:
        return OpenMP(0, 0, 0, f"PyTorch's OpenMP runtime was not found ({e}); CPU kernels run on one thread")
    return OpenMP(*found, None)


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


@dataclass(frozen=True)
class Driver:
    """The compiled driver: `run(job, args, outer, pieces)` returns 0, or 1 without memory for scratch."""

    run: Callable[[int, bytes, int, int], int]
    library: ctypes.CDLL


def load_driver(path: Path) -> Driver:
    """Load the shared object made of `cpu_driver()`."""
    library = _load(path, "onepass_run")
    run = library.onepass_run
    run.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_longlong, ctypes.c_longlong)
    run.restype = ctypes.c_int
    return Driver(run, library)


def _load(path: Path, name: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as e:
        raise LoadError(name, str(path), str(e)) from e


class CpuKernel:
    """A loaded CPU kernel. Calls are thread-safe: nothing is written here after construction.

    A call's range of outer items is cut into as many pieces as PyTorch has threads, at places that depend only on the
    two counts; an item's result does not depend on the piece it falls in.
    """

    __slots__ = ("_job", "_job_address", "_library", "_run", "name", "serial_outer")

    def __init__(
        self, path: Path, name: str, driver: Driver, *, item_bytes: int, scratch_bytes: int = 0
    ) -> None:
        """Load `name` from `path`.

        `item_bytes` is what one outer item reads and writes (it sets which calls are too small for threads);
        `scratch_bytes` is what each thread needs.

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
            struct.pack("5q", kernel, omp.parallel, omp.thread_index, omp.team_size, scratch_bytes)
        )
        self._job_address = ctypes.addressof(self._job)
        self._run = driver.run
        self.name = name
        self.serial_outer = SERIAL_BYTES // max(item_bytes, 1)

    def __call__(self, args: bytes, outer: int) -> None:
        """Run outer items 0 … outer - 1 with the packed `struct Args`.

        Raises: MemoryError if there is no memory for the scratch.
        """
        pieces = 1 if outer <= self.serial_outer else torch.get_num_threads()
        if self._run(self._job_address, args, outer, pieces):
            raise MemoryError(f"{self.name}: no memory for scratch")
