"""Load compiled CPU kernels and run them over PyTorch's own threads."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, cast

import torch

from onepass.codegen.cpu_prelude import cpu_driver
from onepass.errors import LoadError
from onepass.runtime.cache import DiskCache, Entry, with_entry
from onepass.runtime.counters import COUNTERS
from onepass.runtime.hostcc import compile_cached

# A thread is worth starting for this many bytes read and written. Starting a second one costs 2.4 us: two
# pay from 512 KiB on for a kernel that only copies out of the cache, from 64 KiB on for one that computes a
# GELU (Zen 3, 2 cores, 2026-11-30). PyTorch's own limit is 32768 elements: 256 KiB of fp32 in and out.
GRAIN_BYTES = 128 * 1024

# at::get_num_threads(), which torch.get_num_threads() calls: it also settles a new thread's count.
AT_GET_NUM_THREADS = "_ZN2at15get_num_threadsEv"


@dataclass(frozen=True)
class Threads:
    """Entry points of PyTorch's thread pool in this process, or zeros and the reason why there are none."""

    parallel: int
    thread_index: int
    team_size: int
    thread_count: int
    reason: str | None  # why calls run on one thread, or None


@functools.cache
def torch_threads() -> Threads:
    """Find the OpenMP runtime PyTorch was linked with, by asking PyTorch's own library for it."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        # The dynamic linker searches the library and what it depends on: the runtime torch uses is found.
        handle = ctypes.CDLL(str(library), mode=os.RTLD_NOW | getattr(os, "RTLD_NOLOAD", 0))
        return Threads(
            _address(handle.GOMP_parallel),
            _address(handle.omp_get_thread_num),
            _address(handle.omp_get_num_threads),
            _address(_first(handle, AT_GET_NUM_THREADS, "omp_get_max_threads")),
            None,
        )
    except (OSError, AttributeError) as e:
        reason = f"PyTorch's OpenMP runtime was not found ({e}); CPU kernels run on one thread"
        return Threads(0, 0, 0, 0, reason)


def _first(handle: ctypes.CDLL, *names: str) -> object:
    for name in names[:-1]:
        if hasattr(handle, name):
            return getattr(handle, name)
    return getattr(handle, names[-1])


def _address(symbol: object) -> int:
    return ctypes.cast(symbol, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


Run = Callable[[bytes, int, int, int], None]


@dataclass(frozen=True)
class CpuKernel:
    """A loaded CPU kernel.

    `run(args, outer, item_bytes, scratch_bytes)` does outer items 0 … outer - 1 with the packed
    `struct Args`. `item_bytes` is what one item reads and writes (it sets how many threads the call is
    worth), `scratch_bytes` what each thread needs at `scratch`, which is aligned to 64 bytes. The items are
    cut into ranges at places that depend only on their number, their bytes and PyTorch's thread count; an
    item's result does not depend on the range it falls in. Threads may call it at once. It raises
    MemoryError if there is no memory for the scratch.
    """

    name: str
    run: Run
    entry: Entry
    job: bytes
    driver: ctypes.CDLL

    def at_work(self, work: Work) -> Callable[..., None]:
        """A built-in function of (rows, extent, *values) that packs the block and runs it as ``work`` says.

        It raises IndexError where a gather's index is out of range, RuntimeError where an integer is divided by zero, and
        what `run` raises.
        """
        numbers = (ctypes.addressof(COUNTERS.launches), *astuple(work))
        return cast(
            "Callable[..., None]",
            built_in(self.driver, "onepass_work", self.job + struct.pack("7qd5q", *numbers)),
        )


@dataclass(frozen=True)
class Work:
    """What a launch of a generated kernel adds to the values it is called with (`struct Work` in driver.hpp)."""

    values: int  # the block's, before those added
    cols_at: int  # which of them is the row length
    chunk: int  # elements of a row in an item; 0: an item is a row
    whole_rows: bool  # an item covers the row length, chunk times where there are chunks
    lanes: int  # elements done together, for each of which scratch holds a row
    kept_bytes: int  # of scratch for an element
    element_bytes: float  # read and written
    reports: bool
    part: int = 0  # columns that are reduced apart; 0: rows are whole
    part_bytes: int = 0  # of memory for what a part leaves
    loops: int = 0  # over the columns, which a row's parts may run one after the other
    phases: int = 0  # those, and one more where values are stored once a row


@functools.cache
def load_driver(cache: DiskCache) -> ctypes.CDLL:
    """Compile the driver or take it from the cache, and load it.

    Raises: BadSetting, NoCompiler, CompileError, LoadError.
    """
    return _load(cpu_driver(), "onepass_run", cache)[1]


def _load(
    source: str, name: str, cache: DiskCache, metadata: Mapping[str, Any] | None = None
) -> tuple[Entry, ctypes.CDLL]:
    def load(entry: Entry) -> tuple[Entry, ctypes.CDLL]:
        try:
            return entry, ctypes.CDLL(str(entry.path))
        except OSError as e:
            raise LoadError(name, str(entry.path), str(e)) from e

    return with_entry(lambda: compile_cached(source, name=name, cache=cache, metadata=metadata), load)


def load_kernel(
    source: str, name: str, *, cache: DiskCache, metadata: Mapping[str, Any] | None = None
) -> CpuKernel:
    """Compile the kernel `name` or take it from the cache, and load it; `metadata` is kept beside it.

    Raises: BadSetting, NoCompiler, CompileError, LoadError.
    """
    entry, library = _load(source, name, cache, metadata)
    try:
        kernel = _address(getattr(library, name))
    except AttributeError as e:
        raise LoadError(name, str(entry.path), str(e)) from e
    driver, threads = load_driver(cache), torch_threads()
    job = struct.pack(
        "6q",
        kernel,
        threads.parallel,
        threads.thread_index,
        threads.team_size,
        threads.thread_count,
        GRAIN_BYTES,
    )
    return CpuKernel(name, cast(Run, built_in(driver, "onepass_run", job)), entry, job, driver)


def built_in(driver: ctypes.CDLL, name: str, bound: object) -> object:
    """One of the driver's functions as a built-in function of Python that owns what it is bound to."""
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    new = prototype(("PyCFunction_NewEx", ctypes.pythonapi))
    return new(ctypes.addressof(ctypes.c_char.in_dll(driver, name)), bound, None)
