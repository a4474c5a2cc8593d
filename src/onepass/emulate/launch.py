"""Launch a kernel that was compiled for the host."""

from __future__ import annotations

import ctypes
import math
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from onepass.emulate.faults import (
    BARRIER_ELSEWHERE,
    INDEX_PAST_ARRAY,
    KINDS,
    OF_MEMORY,
    OF_TWO,
    SUSPECT,
    UNDEFINED_LANE,
)
from onepass.errors import KernelFault

Grid = tuple[int, ...] | int
# Blocks of at most so many run side by side (`max_cluster` in runtime.cpp).
MOST_TOGETHER = 64
_CLUSTER = re.compile(r"\b__cluster_dims__\s*\(\s*(\d+)\s*,\s*1\s*,\s*1\s*\)")


@dataclass(frozen=True)
class KernelSource:
    """A kernel text and the name of the `extern "C" __global__` function in it."""

    name: str
    text: str


def source_file(source: KernelSource, index: int) -> str:
    """What the compiler calls a kernel text, in its messages and in line tables."""
    return f"{index}_{source.name}.cu"


@dataclass(frozen=True)
class Buffer:
    """A piece of memory the kernel may touch."""

    name: str
    address: int
    nbytes: int
    writable: bool = True

    @staticmethod
    def of(name: str, memory: Any) -> Buffer:
        """From a numpy array or a torch tensor: the bytes between its first and last element."""
        if isinstance(memory, Buffer):
            return memory
        if hasattr(memory, "data_ptr"):
            if memory.numel() == 0:
                return Buffer(name, memory.data_ptr(), 0)
            span = 1 + sum((n - 1) * s for n, s in zip(memory.shape, memory.stride(), strict=True))
            return Buffer(name, memory.data_ptr(), span * memory.element_size())
        address, writable = memory.__array_interface__["data"][0], memory.flags.writeable
        span = sum((n - 1) * s for n, s in zip(memory.shape, memory.strides, strict=True)) + memory.itemsize
        return Buffer(name, address, span if memory.size else 0, writable)


@dataclass(frozen=True)
class BufferTraffic:
    """What one launch moved to and from a buffer; a byte loaded twice counts twice."""

    name: str
    read_bytes: int
    written_bytes: int
    reads: int
    writes: int


@dataclass(frozen=True)
class MemorySite:
    """One place in the machine code that accesses memory, with one width in one space.

    `warp_instructions`: how often a warp executed it, over all warps. Lanes of one warp that execute the same place
    together count as one; where they diverge, a warp executes a place between two collectives (barrier, shuffle,
    vote) as often as the lane that comes there most often.
    """

    space: str  # global, shared
    direction: str  # read, write, atomic
    width_bytes: int  # of one thread's access
    warp_instructions: int
    thread_accesses: int
    pc: int  # for `EmulatedKernel.lines`


@dataclass(frozen=True)
class LaunchReport:
    """What a launch did."""

    buffers: tuple[BufferTraffic, ...]
    barriers: int  # completed, over all blocks
    blocks: int = 1
    exchanges: int = 0  # shuffles, votes and __syncwarp completed, over all warps
    sites: tuple[MemorySite, ...] = ()
    static_shared_bytes: int = 0

    def __getitem__(self, name: str) -> BufferTraffic:
        return next(b for b in self.buffers if b.name == name)

    @property
    def barriers_per_block(self) -> float:
        """Executed barriers, the mean over the blocks."""
        return self.barriers / self.blocks

    def memory_instructions(
        self, space: str | None = None, direction: str | None = None, width_bytes: int | None = None
    ) -> int:
        """Memory instructions that warps executed (the rule: `MemorySite`), of all kinds or of those asked for."""
        return sum(
            s.warp_instructions
            for s in self.sites
            if space in (None, s.space)
            and direction in (None, s.direction)
            and width_bytes in (None, s.width_bytes)
        )


class _Index3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint32), ("y", ctypes.c_uint32), ("z", ctypes.c_uint32))


class _Region(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_uint64) for n in ("begin", "end", "read_bytes", "write_bytes", "reads", "writes")),
        *((n, ctypes.c_uint8) for n in ("writable", "written", "read_only_loads")),
        ("padding", ctypes.c_uint8 * 5),
    )


class _Fault(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("other", ctypes.c_int32),
        ("block", _Index3),
        ("thread", _Index3),
        *((n, ctypes.c_uint64) for n in ("address", "bytes", "pc", "other_pc")),
    )


class _Site(ctypes.Structure):
    _fields_ = (
        ("pc", ctypes.c_uint64),
        ("bytes", ctypes.c_uint32),
        *((n, ctypes.c_uint8) for n in ("space", "direction")),
        ("padding", ctypes.c_uint8 * 2),
        *((n, ctypes.c_uint64) for n in ("warp_executions", "thread_accesses")),
        *((n, ctypes.c_uint64) for n in ("segment", "warp_segment", "run", "in_segment", "in_run")),
    )


class _Outcome(ctypes.Structure):
    _fields_ = tuple(
        (n, ctypes.c_uint64)
        for n in ("faults", "barriers", "exchanges", "sites", "uncounted", "thread_shared_bytes")
    )


_SPACES = ("global", "shared")
_DIRECTIONS = ("read", "write", "atomic")
_MAX_SITES = 1 << 14  # an unrolled kernel of 2,000 lines has some 3,000; a table that fills up says so


class _Launch(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("args_bytes", ctypes.c_uint64),
        ("grid", _Index3),
        ("block", _Index3),
        ("static_shared", ctypes.c_void_p),
        ("static_shared_bytes", ctypes.c_uint64),
        ("shared_bytes", ctypes.c_uint64),
        ("regions", ctypes.c_void_p),
        ("region_count", ctypes.c_uint64),
        ("order_seed", ctypes.c_uint64),
        ("max_accesses", ctypes.c_uint64),
        ("garbage", ctypes.c_uint64),
        ("faults", ctypes.c_void_p),
        ("max_faults", ctypes.c_uint64),
        ("sites", ctypes.c_void_p),
        ("max_sites", ctypes.c_uint64),
        ("cluster", ctypes.c_uint64),
    )


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("shared_begin", ctypes.c_void_p),
        ("shared_end", ctypes.c_void_p),
    )


@lru_cache
def _open(path: Path) -> tuple[ctypes.CDLL, threading.Lock]:
    """A shared object, once however often it is asked for: its kernels share a runtime and take turns."""
    library = ctypes.CDLL(str(path))
    library.onepass_launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    library.onepass_launch.restype = None
    return library, threading.Lock()


def _sizes(value: Grid) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


def _index3(value: Grid) -> _Index3:
    return _Index3(*(*_sizes(value), 1, 1)[:3])


class EmulatedKernel:
    """One kernel, ready to run on the CPU."""

    def __init__(self, path: Path, source: KernelSource, index: int) -> None:
        self.name = source.name
        self._path, self._source, self._file = path, source, source_file(source, index)
        self._index = index
        self._library, self._lock = _open(path)
        self._kernel = _Kernel.in_dll(self._library, f"onepass_kernel_{index}")
        found = _CLUSTER.search(source.text)
        self.cluster = int(found[1]) if found else 1  # blocks that run side by side
        self.together = "ptx_grid_put(" in source.text  # all blocks of the grid do: they wait for each other

    @property
    def static_shared_bytes(self) -> int:
        """Bytes of `__shared__` arrays that the kernel uses."""
        return int(self._kernel.shared_end or 0) - int(self._kernel.shared_begin or 0)

    def afresh(self) -> EmulatedKernel:
        """The same kernel with its module's variables as they were compiled: loaded a second time, from a copy."""
        with tempfile.TemporaryDirectory(prefix="onepass-emulate-") as folder:
            copy = Path(folder) / self._path.name
            shutil.copyfile(self._path, copy)
            again = EmulatedKernel(copy, self._source, self._index)
        again._path = self._path  # where line numbers are looked up later
        return again

    def parameters(self) -> list[tuple[int, ...]]:
        """Of a hand-written kernel: each parameter as `OnepassParameter` in cuda_library_on_host.hpp."""
        at = ctypes.addressof(ctypes.c_char.in_dll(self._library, "onepass_parameters_0"))
        count = ctypes.c_uint64.from_address(at).value
        each = (ctypes.c_uint32 * 5 * count).from_address(at + 8)
        return [tuple(p) for p in each]

    def variables(self, names: Sequence[str]) -> list[Buffer]:
        """Of a hand-written kernel: its file's `__device__` variables, those that are used."""
        if not names:
            return []
        bounds = (ctypes.c_void_p * (2 * len(names))).in_dll(self._library, "onepass_variables")
        pairs = zip(bounds[::2], bounds[1::2], strict=True)
        return [
            Buffer(n, low, high - low) for n, (low, high) in zip(names, pairs, strict=True) if low and high
        ]

    def launch(
        self,
        grid: Grid,
        block: Grid,
        shared_bytes: int = 0,
        args: bytes = b"",
        buffers: Mapping[str, Any] | Sequence[Buffer] = (),
        order_seed: int = 0,
        max_accesses: int = 2_000_000_000,
    ) -> LaunchReport:
        """Run every block to its end and say what was read and written.

        `args` are the kernel's parameters as a device would get them. `buffers` is all the global memory that
        the kernel may touch: numpy arrays or torch tensors by name, or `Buffer`s. Blocks and lanes run in
        ascending order, or in a random one that `order_seed` fixes.

        Raises: KernelFault at the first thing that is wrong; memory then holds what was stored until there.
        """
        report, faults = self.watch(
            grid, block, shared_bytes, args, buffers, order_seed, max_accesses, max_faults=1
        )
        if faults:
            raise faults[0]
        return report

    def watch(
        self,
        grid: Grid,
        block: Grid,
        shared_bytes: int = 0,
        args: bytes = b"",
        buffers: Mapping[str, Any] | Sequence[Buffer] = (),
        order_seed: int = 0,
        max_accesses: int = 2_000_000_000,
        max_faults: int = 32,
        garbage: int = 0,
    ) -> tuple[LaunchReport, tuple[KernelFault, ...]]:
        """As `launch`, but go on after faults that a host survives (races, unwritten shared memory) and return all.

        A shuffle that reads a lane outside its mask, or one that has returned, gives `garbage`. It is a fault of kind
        "missing-lane" whose `undefined` is set: whether anybody uses the value shows when two launches differ in `garbage`.
        """
        items = (
            [Buffer.of(n, b) for n, b in buffers.items()] if isinstance(buffers, Mapping) else list(buffers)
        )
        regions = (_Region * max(1, len(items)))(
            *(_Region(begin=b.address, end=b.address + b.nbytes, writable=b.writable) for b in items)
        )
        packed = ctypes.create_string_buffer(args, max(1, len(args)))
        found, sites, outcome = (_Fault * max_faults)(), (_Site * _MAX_SITES)(), _Outcome()
        cluster = math.prod(_sizes(grid)) if self.together else self.cluster
        if cluster > MOST_TOGETHER:
            raise ValueError(
                f"{self.name}: {cluster} blocks wait for each other; {MOST_TOGETHER} run side by side: launch fewer"
            )
        launch = _Launch(
            entry=self._kernel.entry,
            args=ctypes.addressof(packed),
            args_bytes=len(args),
            grid=_index3(grid),
            block=_index3(block),
            static_shared=self._kernel.shared_begin,
            static_shared_bytes=self.static_shared_bytes,
            shared_bytes=shared_bytes,
            regions=ctypes.addressof(regions),
            region_count=len(items),
            order_seed=order_seed,
            max_accesses=max_accesses,
            garbage=garbage,
            faults=ctypes.addressof(found),
            max_faults=max_faults,
            sites=ctypes.addressof(sites),
            max_sites=_MAX_SITES,
            cluster=cluster,
        )
        if not self.together and launch.grid.x % self.cluster:
            raise ValueError(
                f"{self.name}: {launch.grid.x} blocks are no multiple of a cluster's {self.cluster}"
            )
        threads = launch.block.x * launch.block.y * launch.block.z
        if not 0 < threads <= 1024:
            raise ValueError(
                f"{self.name}: {threads} threads a block; a block has 1 to 1024: choose fewer lanes a row"
            )
        with self._lock:
            self._library.onepass_launch(ctypes.addressof(launch), ctypes.addressof(outcome))
        traffic = tuple(
            BufferTraffic(b.name, r.read_bytes, r.write_bytes, r.reads, r.writes)
            for b, r in zip(items, regions, strict=False)
        )
        if outcome.uncounted:
            raise AssertionError(f"{self.name} accesses memory in more than {_MAX_SITES} places")
        report = LaunchReport(
            traffic,
            outcome.barriers,
            launch.grid.x * launch.grid.y * launch.grid.z,
            outcome.exchanges,
            tuple(_site(s) for s in sites[: outcome.sites]),
            self.static_shared_bytes or outcome.thread_shared_bytes,
        )
        return report, tuple(self._explain(f, items) for f in found[: outcome.faults] if not self._doubled(f))

    def _doubled(self, fault: _Fault) -> bool:
        """Whether threads met at one barrier that the compiler has put into two places."""
        if fault.kind != BARRIER_ELSEWHERE:
            return False
        here, there = self.lines([fault.pc, fault.other_pc])
        return [number for number, _ in here] == [number for number, _ in there]

    def _explain(self, fault: _Fault, items: Sequence[Buffer]) -> KernelFault:
        kind, hint = KINDS[fault.kind]
        return KernelFault(
            kind=kind,
            kernel=self.name,
            block=(fault.block.x, fault.block.y, fault.block.z),
            thread=(fault.thread.x, fault.thread.y, fault.thread.z),
            address=fault.address if fault.kind in OF_MEMORY else None,
            nbytes=fault.bytes,
            buffer=_place(fault, items),
            other=fault.other if kind in OF_TWO and fault.other >= 0 else None,
            lines=self.lines([fault.pc])[0],
            hint=hint,
            other_lines=self.lines([fault.other_pc])[0] if fault.other_pc else (),
            undefined=fault.kind == UNDEFINED_LANE,
            suspect=fault.kind in SUSPECT,
        )

    def lines(self, pcs: Sequence[int]) -> list[tuple[tuple[int, str], ...]]:
        """The source lines of places in the machine code, numbers and texts, innermost first; empty if unknown."""
        # The byte before the return address belongs to the call itself.
        command = ["addr2line", "-a", "-i", "-e", str(self._path), *(hex(pc - 1) for pc in pcs)]
        try:
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return [() for _ in pcs]
        text = self._source.text.splitlines()
        lines: list[list[tuple[int, str]]] = []
        for place in out.splitlines():
            if place.startswith("0x"):  # -a: the address asked for, before its lines
                lines.append([])
                continue
            file, _, number = place.partition(" ")[0].rpartition(":")
            if file.endswith(self._file) and number.isdigit() and 0 < int(number) <= len(text):
                lines[-1].append((int(number), text[int(number) - 1]))
        return [tuple(found) for found in lines]


def _site(site: _Site) -> MemorySite:
    return MemorySite(
        _SPACES[site.space],
        _DIRECTIONS[site.direction],
        site.bytes,
        site.warp_executions,
        site.thread_accesses,
        site.pc,
    )


def _place(fault: _Fault, items: Sequence[Buffer]) -> str | None:
    if fault.kind in OF_MEMORY:
        return _where(fault, items)
    return f"index {fault.other}" if fault.kind == INDEX_PAST_ARRAY else None


def _where(fault: _Fault, items: Sequence[Buffer]) -> str:
    address = int(fault.address)
    if fault.other == -2:
        return "outside the block's shared memory"
    if KINDS[fault.kind][0] in ("unwritten-shared", "shared-race", "absent-block"):
        return "shared memory"

    def distance(b: Buffer) -> int:
        return max(b.address - address, address - (b.address + b.nbytes), 0)

    best = min((b for b in items if b.nbytes), key=distance, default=None)
    if best is None or distance(best) > 1 << 24:  # further than an overrun: a wild or an unregistered pointer
        return "in no buffer that was handed over"
    return f"byte {address - best.address} of {best.name}, which has {best.nbytes}"
