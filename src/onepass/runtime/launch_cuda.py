"""Load machine code and launch it on PyTorch's current stream."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal, cast

import torch

from onepass.errors import CompileError, DriverError, LoadError, NoCompiler
from onepass.runtime.cache import open_cache
from onepass.runtime.counters import COUNTERS
from onepass.runtime.launch_cpu import built_in, load_driver

Call = Callable[..., None]

_INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_MOST_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, per cent of what a multiprocessor has
# From here on several blocks are resident only if most of the first cache is shared memory.
_MUCH_SHARED_BYTES = 32768

# When a grid begins: after the one before it on its stream; while that one ends, for kernels that wait for it themselves
# (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION); once all its blocks fit at the same time (…_COOPERATIVE).
Begin = Literal["after", "early", "together"]
_ATTRIBUTES: dict[Begin, int] = {"after": 0, "early": 6, "together": 2}
_EARLY_FROM_ARCH = 90
_EARLY_FROM_DRIVER = 12030  # CUDA graphs hold launches that begin early


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, of whose union an int is used."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("value", ctypes.c_longlong),
        ("rest", ctypes.c_longlong * 7),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


@lru_cache(maxsize=1)
def driver() -> ctypes.CDLL:
    """The CUDA driver library, which a process with a CUDA tensor has loaded already."""
    # PyDLL keeps the interpreter lock during the call: a launch takes a few microseconds, giving the lock away and
    # getting it back costs more, and the argument buffer can't change under it.
    return ctypes.PyDLL("libcuda.so.1")


def check(code: int, call: str) -> None:
    """Raises: DriverError for any code but 0 that a call of the driver gave."""
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        raise DriverError(call, code, (text.value or b"unknown error").decode())


def loaded(code: bytes, name: str, shared_bytes: int = 0) -> ctypes.c_void_p:
    """A kernel of machine code, in the driver as long as the process lives, on any device.

    Raises: DriverError when the driver refuses the code.
    """
    library, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(
        driver().cuLibraryLoadData(ctypes.byref(library), code, None, None, 0, None, None, 0),
        "cuLibraryLoadData",
    )
    check(
        driver().cuLibraryGetKernel(ctypes.byref(function), library, name.encode()),
        f"cuLibraryGetKernel({name})",
    )
    if shared_bytes:
        wanted = {_MOST_DYNAMIC_SHARED: shared_bytes}
        if shared_bytes >= _MUCH_SHARED_BYTES:
            wanted[_CARVEOUT] = 100
        for device in range(torch.cuda.device_count()):
            for attribute, value in wanted.items():
                check(
                    driver().cuKernelSetAttribute(attribute, value, function, device),
                    f"cuKernelSetAttribute({name}, {attribute}, {value})",
                )
    return function


def enter(device: int) -> None:
    """Makes PyTorch's context of a device this thread's: a thread that has done nothing on a GPU has none.

    Raises: DriverError.
    """
    context, handle = ctypes.c_void_p(), ctypes.c_int()
    check(driver().cuDeviceGet(ctypes.byref(handle), device), "cuDeviceGet")
    check(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), "cuDevicePrimaryCtxRetain")
    check(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent")


@lru_cache(maxsize=1)
def driver_version() -> int:
    """What CUDA the driver is for: 12030 is 12.3."""
    version = ctypes.c_int()
    check(driver().cuDriverGetVersion(ctypes.byref(version)), "cuDriverGetVersion")
    return version.value


def may_begin_early(arch: str) -> bool:
    """Whether grids of this architecture (``sm_90``) may begin while the one before them on their stream ends."""
    return int(arch.removeprefix("sm_")) >= _EARLY_FROM_ARCH and driver_version() >= _EARLY_FROM_DRIVER


@dataclass(frozen=True)
class Grid:
    """How compiled code finds a launch's blocks, as numbers (`struct Launch` in driver.hpp).

    A block takes ``per_block`` rows or vectors of ``width`` elements. ``extras`` is what follows the call's values.
    """

    per_block: int
    of: Literal["rows", "elements"]
    width: int = 1
    extras: Literal["none", "zero", "wide", "vectors"] = "none"
    aligned_only: bool = False

    @property
    def numbers(self) -> tuple[int, ...]:
        extras = ("none", "zero", "wide", "vectors").index(self.extras)
        return self.per_block, self.of == "elements", self.width, extras, self.aligned_only


@cache
def launcher() -> ctypes.CDLL | None:
    """The compiled launcher, None where the host has no compiler that works."""
    try:
        return load_driver(open_cache())
    except (NoCompiler, CompileError, LoadError):
        return None


class CudaKernel:
    """A loaded kernel. Calls are thread-safe: a call's arguments lie in a buffer of its thread."""

    __slots__ = (
        "_attribute",
        "_buffers",
        "_function",
        "_launch",
        "_pack",
        "_shared",
        "_size",
        "name",
        "threads",
    )

    def __init__(
        self,
        code: bytes,
        name: str,
        threads: int,
        fields: int,
        shared_bytes: int = 0,
        begin: Begin = "after",
    ) -> None:
        """Loads machine code into the driver; it runs on whichever device is current when it is called.

        Raises: DriverError when the driver refuses the code.
        """
        self.name = name
        self.threads = threads
        self._function = loaded(code, name, shared_bytes)
        self._shared = shared_bytes
        self._pack = struct.Struct(f"{fields}q").pack_into
        self._size = 8 * fields
        self._launch = driver().cuLaunchKernelEx
        self._attribute = _ATTRIBUTES[begin]
        self._buffers = threading.local()

    def __call__(self, blocks: int, device: int, values: tuple[int, ...]) -> None:
        """Launches on the current stream of ``device``."""
        if torch._C._cuda_getDevice() != device:
            with torch.cuda.device(device):
                return self(blocks, device, values)
        held = self._buffers
        try:
            config, buffer, pointers = held.of_thread
        except AttributeError:
            buffer = ctypes.create_string_buffer(self._size)
            pointers = (ctypes.c_void_p * 1)(ctypes.addressof(buffer))
            config = self._config()
            held.of_thread = (config, buffer, pointers)
        self._pack(buffer, 0, *values)
        config.grid[0] = blocks
        config.stream = torch._C._cuda_getCurrentRawStream(device)
        arguments = (ctypes.byref(config), self._function, pointers, None)
        code = self._launch(*arguments)
        if code == _INVALID_CONTEXT:
            enter(device)
            code = self._launch(*arguments)
        if code:
            check(code, f"cuLaunchKernelEx({self.name})")
        return None

    def _config(self) -> _Config:
        attribute = ctypes.pointer(_Attribute(id=self._attribute, value=1))
        return _Config((1, 1, 1), (self.threads, 1, 1), self._shared, None, attribute, self._attribute > 0)

    def at_once(
        self, grid: Grid, values: int, masks: Sequence[tuple[int, int, int]], otherwise: Call
    ) -> Call | None:
        """A built-in function of (stream, rows, extent, *values) that launches on the current device.

        It calls ``otherwise(rows, extent, *values)`` where there is nothing to do, where a value has a bit of its mask and
        ``grid`` is for aligned ones only, and where the driver refuses, so that the refusal is dealt with there. None where
        the host has no compiler.
        """
        library = launcher()
        if library is None:
            return None
        numbers = (
            ctypes.cast(self._launch, ctypes.c_void_p).value,
            self._function.value,
            ctypes.addressof(COUNTERS.launches),
            values,
            self.threads,
            self._shared,
            self._attribute,
            *grid.numbers,
            len(masks),
            *(n for mask in masks for n in mask),
        )
        job = struct.pack(f"{len(numbers)}q", *numbers)
        return cast(Call, built_in(library, "onepass_launch", (job, otherwise)))
