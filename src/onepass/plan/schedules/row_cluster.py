"""CUDA: a row in the registers and the shared memory of a block, or of the blocks of a thread-block cluster.

``row-cluster`` where several blocks share a row (sm_90 and later), ``row-smem`` where one has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onepass.device import Device, limits_of
from onepass.ir.kernel import Kernel
from onepass.plan.schedules.row import aligned, vector_width

# A block's share of a row: up to so many columns two blocks or more are resident with the row in registers, which rows of
# 16384 do best with (note 004, items 1, 5 and 13). Rows of more are shared by so few blocks that each has no more.
SHARE = 16384
# Blocks that may share a row, and the first architecture on which they can. Every device with clusters promises eight.
CLUSTERS, FIRST_ARCH = (1, 2, 4, 8), 90
THREADS = (256, 512, 1024)
# Of 64 registers a thread, 32 hold the row; 1024 threads are resident then. Blocks of fewer than 512 threads that take
# more than four vectors each get 80, and 768 are resident (note 004, item 13).
HELD_WORDS, RESIDENT_THREADS, FEWER_THREADS = 32, 1024, 768
# So many of a row's places in vectors may lie past its end (note 004, item 12).
IDLE = 1 / 16
# Of a block's shared memory, beside what is held: the system's kibibyte, and partial sums.
RESERVED_BYTES = 3 << 10


@dataclass(frozen=True)
class ClusterSchedule:
    """``blocks`` blocks of ``threads`` share a row, each thread takes ``steps`` vectors of ``width``.

    The first ``in_registers`` of them lie in registers, the others in shared memory. Column c belongs to lane
    (c / width) mod (blocks × threads) whatever the alignment, the row or the number of rows: the reduction tree depends on
    these numbers alone. ``accesses`` is as in `RowSchedule`.
    """

    blocks: int
    threads: int
    steps: int
    width: int
    cols: int
    accesses: tuple[int, ...]
    in_registers: int
    shared_bytes: int
    min_blocks: int  # resident on a multiprocessor: bounds a thread's registers; 0 leaves them open
    depth: int = 0  # vectors in flight of tensors that are not held; 0 leaves that to the compiler
    anew: bool = True  # what phases compute again is computed again, or the compiler may keep it

    @property
    def family(self) -> str:
        return "row-cluster" if self.blocks > 1 else "row-smem" if self.shared_bytes else "row-block"

    @property
    def lanes(self) -> int:
        return self.blocks * self.threads

    @property
    def exact(self) -> bool:
        """Whether every lane always has a full vector."""
        return self.lanes * self.steps * self.width == self.cols

    def explain(self) -> str:
        held = (
            f"{self.in_registers} of them in registers and {self.steps - self.in_registers} in shared memory"
        )
        return (
            f"{self.blocks} blocks of {self.threads} threads a row, {self.steps} vectors of {self.width} a lane, "
            f"{held if self.shared_bytes else 'row in registers'}"
        )


def held(kernel: Kernel) -> tuple[str, ...]:
    """The accesses whose vectors are kept from phase to phase; those that all rows share are read again, from the cache."""
    return tuple(
        a.name
        for a in kernel.accesses
        if a.resident and a.column != "zero" and (a.index is not None or not a.shared)
    )


def held_words(kernel: Kernel, width: int) -> int:
    """32-bit words that a vector of the row takes while reductions run."""
    raw = (-(-width * kernel.access(name).dtype.nbytes // 4) for name in held(kernel))
    return sum(raw) + width * len(kernel.kept)


def schedules(kernels: tuple[Kernel, ...], device: Device) -> tuple[Kernel, list[ClusterSchedule]] | str:
    """Of kernels that hold a row in different ways, the one that holds the fewest bytes, and its schedules, best first."""
    width = vector_width(kernels[0])
    kernel = min(kernels, key=lambda k: held_words(k, width))
    cols, words = kernel.cols, held_words(kernel, width)
    if not isinstance(cols, int):
        return "too_large: the reduced size is only known at run time"
    if kernel.axis != "reduced":
        return "the reduction has an inner dimension"
    if cols <= SHARE or words == 0:
        return "a block holds the row in registers" if words else "nothing of the row is held"
    shared_by = CLUSTERS if _number(device.arch) >= FIRST_ARCH else (1,)
    vectors = -(-cols // width)
    found = [
        s
        for blocks in shared_by
        for threads in THREADS
        if (s := _schedule(kernel, device, vectors, words, blocks, threads))
    ]
    if not found:
        return "too_large: the row fits neither a block nor a thread-block cluster"
    best = min(found, key=lambda s: _rank(s, vectors, cols))
    most = best.in_registers
    tried = [
        _schedule(kernel, device, vectors, words, best.blocks, best.threads, registers)
        for registers in dict.fromkeys((most - 1, most - most // 4, most // 2, 0))
    ]
    leaner = [s for s in tried if s and s.min_blocks >= min(2, best.min_blocks)]
    # Results take no more registers than what they are made of where that has 32 bits.
    wide = all(kernel.access(name).dtype.nbytes >= 4 for name in held(kernel))
    first = [replace(best, anew=False)] if wide else []
    # One vector at a time of what is computed and held, where several do not fit beside it.
    slow = [replace(s, depth=1) for s in (*first, *leaner[-1:])] if kernel.kept else []
    # 1024 threads have 64 registers each, asked for or not.
    open_ended = [replace(best, min_blocks=0)] if best.threads < 1024 else []
    return kernel, [*first, best, *leaner, *slow, *open_ended]


def _schedule(
    kernel: Kernel,
    device: Device,
    vectors: int,
    words: int,
    blocks: int,
    threads: int,
    most: int = HELD_WORDS,
) -> ClusterSchedule | None:
    """With at most so many vectors a thread in registers, and others resident beside it; None where it does not fit."""
    assert isinstance(kernel.cols, int)
    steps = -(-vectors // (blocks * threads))
    in_registers = min(steps, most, HELD_WORDS // words)
    shared = 4 * words * (steps - in_registers) * threads
    if shared + RESERVED_BYTES > min(device.shared_bytes, limits_of(device.arch).block_shared_bytes):
        return None
    few = threads < 512 and in_registers > 4
    resident = max(1, min(FEWER_THREADS if few else RESIDENT_THREADS, device.threads) // threads)
    if shared:
        resident = min(resident, device.shared_bytes // (shared + RESERVED_BYTES))
    width = vector_width(kernel)
    return ClusterSchedule(
        blocks,
        threads,
        steps,
        width,
        kernel.cols,
        aligned(kernel, kernel.cols, width),
        in_registers,
        shared,
        resident,
    )


def _rank(s: ClusterSchedule, vectors: int, cols: int) -> tuple[bool | int | float, ...]:
    """Enough blocks, a second one resident, few idle places, then as little shared memory and as few blocks as can be."""
    idle = 1 - vectors / (s.lanes * s.steps)
    return (
        cols > SHARE * s.blocks and s.blocks < CLUSTERS[-1],
        s.min_blocks < 2,
        max(0.0, idle - IDLE),
        s.blocks,
        s.shared_bytes,
        s.threads,
    )


def _number(arch: str) -> int:
    return int(arch.removeprefix("sm_"))
