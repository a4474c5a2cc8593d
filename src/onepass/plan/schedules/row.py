"""CUDA: a group of lanes holds a row on chip.

``row-warp`` for groups inside a warp, ``row-block`` above, ``row-smem`` where computed values lie in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onepass.device import Device
from onepass.ir.kernel import Access, Kernel, StoreValue
from onepass.plan.schedules.staging import VECTOR_BYTES, Place, ragged, regions

# Threads resident where short rows hold a computed value: a bound of 40 registers, more than the compiler takes on its own
# for at most 8 elements a lane, and loads are in flight for it; 16 need more.
SHORT_ROWS = 1536
# Elements a lane may hold in registers for one kept value: 32 floats or 64 16-bit elements are 32 registers.
MOST_REGISTERS = 64
# Computed values that would take this many registers a lane, and leave one block a multiprocessor, go to shared memory.
SHARED_FROM = 32
# Above so many vectors a row wants more than two blocks of 512 lanes with four a lane; one that is read once, or goes in
# and out twice, wants half as many lanes with more from the second number on (note 004, items 1, 11 and 13).
LONG_ROW, LONG_SIMPLE_ROW = 2048, 1024
# So many of a row's places in vectors may lie past its end: 1280 vectors in 1536 places take up to half as long again
# (note 004, item 12).
IDLE = 1 / 16
# Elements of a lane, of rows that no vector divides: 32, and an eighth more so that a few columns more take no more lanes.
UNIT_ELEMENTS = 36
# Rows accessed by less than this at a time go through shared memory instead (note 008).
STAGED_BELOW_BYTES = VECTOR_BYTES
# Of shared memory that each block's launch takes.
BLOCK_RESERVED_BYTES = 1024
# Vectors a lane of the longest rows that registers hold.
LONGEST = 8
TOO_LARGE = "too_large: the row does not fit in registers"
WARP = 32
LANES = (8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class RowSchedule:
    """``lanes`` threads hold a row, ``groups`` rows share a block, each thread takes ``steps`` vectors of ``width``.

    ``accesses`` is the widest access, in elements, that each tensor's alignment allows. Column c belongs to lane
    (c / width) mod lanes whatever the alignment, the row or the number of rows: the reduction tree depends on these
    three numbers alone, and they on the columns and the dtypes.
    """

    lanes: int
    groups: int
    steps: int
    width: int
    cols: int
    accesses: tuple[int, ...]
    early: bool  # row vectors are loaded before the first reduction, not after the last
    min_blocks: int = 0  # resident on a multiprocessor: bounds a thread's registers; 0 leaves them open
    shared_bytes: int = 0  # of shared memory that hold computed values, and staged rows behind them
    depth: int = 0  # vectors in flight of tensors that registers do not hold; 0 leaves that to the compiler
    staged: tuple[Place | None, ...] = ()  # where in shared memory each tensor's rows go through, if they do

    @property
    def kept_bytes(self) -> int:
        """Of shared memory that hold computed values; 0 holds them in registers."""
        return min((place.at_bytes for place in self.staged if place), default=self.shared_bytes)

    @property
    def family(self) -> str:
        return "row-smem" if self.kept_bytes else "row-warp" if self.lanes <= 32 else "row-block"

    @property
    def threads(self) -> int:
        return self.lanes * self.groups

    @property
    def exact(self) -> bool:
        """Whether every lane always has a full vector."""
        return self.lanes * self.steps * self.width == self.cols

    def explain(self) -> str:
        return (
            f"{self.lanes} lanes a row, {self.groups} rows a block, {self.steps} vectors of {self.width} a lane, "
            f"{'computed values in shared memory' if self.kept_bytes else 'row in registers'}"
            f"{', unaligned rows through shared memory' if self.staged else ''}"
        )


def vector_width(kernel: Kernel) -> int:
    """Elements of a 16-byte access of the narrowest tensor that is walked along columns; at most 8."""
    sizes = [a.dtype.nbytes for a in kernel.accesses if a.column == "unit"]
    return min(8, 16 // max(2, min(sizes, default=4)))


def unit(kernel: Kernel, cols: int, width: int) -> int:
    """Neighbouring columns that a lane takes at once: as many as divide the row, up to ``width``.

    Rows that no vector divides start anywhere: a vector a lane would be accessed piece by piece, each instruction touching
    a part of many sectors. Units side by side in a warp fill them. 16-bit elements go in pairs even where rows are odd,
    which halves the instructions for row vectors.
    """
    narrowest = min((a.dtype.nbytes for a in kernel.accesses if a.column == "unit"), default=4)
    return min(width, max(cols & -cols, 4 // max(2, narrowest), 1))


def held_bytes(kernel: Kernel) -> int:
    """Bytes of registers an element of the row takes while reductions run."""
    raw = sum(a.dtype.nbytes for a in kernel.accesses if a.resident and any(s != 0 for s in a.outer))
    return max(4, raw + 4 * len(kernel.kept))


def schedules(kernel: Kernel, device: Device) -> list[RowSchedule] | str:
    """The best first; the others are for when the compiler spills.

    Measured on one H200, 512 MiB a tensor, 2026-11-30 (docs/notes/004-cuda-row-schedules.md). 1024 threads are resident,
    which bounds each to 64 registers; 768 with 80 where fewer than 512 lanes take more than four vectors; 512 where long
    rows go in and out twice, whose reads and writes overlap by themselves. Where a value is computed and held, long rows
    have it in shared memory or 3 vectors in flight, and short ones are bound to 40 registers. Loads of row vectors after
    the last reduction cost nothing and free the registers that keep a second block resident.
    """
    cols = kernel.cols
    if not isinstance(cols, int):
        return "too_large: the reduced size is only known at run time"
    if kernel.axis != "reduced":
        return "the reduction has an inner dimension"
    width = vector_width(kernel)
    while width > 1 and cols < width * 2:
        width //= 2
    vectors = -(-cols // width)
    if (taken := unit(kernel, cols, width)) < width:
        fits = _lanes(vectors, LONGEST)
        return (_of_units(kernel, cols, taken, device) if fits else []) or TOO_LARGE
    twice = _in_and_out_twice(kernel)
    found = []
    for most in _vectors_a_lane(kernel, vectors):
        lanes = max(_lanes(vectors, most), kernel.block // width)  # a block of columns is that of neighbours
        if lanes * most > 2 * max(vectors, LANES[0] * most) or (lanes > 512 and most < 8 and not twice):
            continue
        steps = -(-vectors // lanes)
        if steps * width * held_bytes(kernel) > 4 * MOST_REGISTERS:
            continue
        threads = max(128, lanes)
        long = lanes >= 512 and steps > 4 and not twice
        resident = 0
        if twice and vectors > LONG_SIMPLE_ROW:
            resident = max(1, 512 // threads)
        elif steps > 2:
            resident = max(1, (768 if steps > 4 and lanes < 512 else 1024) // threads)
        elif kernel.kept and width <= 4:
            resident = min(SHORT_ROWS, device.threads) // threads
        depth = 3 if long and kernel.kept else 0
        widths = aligned(kernel, cols, width)
        plain = RowSchedule(lanes, threads // lanes, steps, width, cols, widths, False, resident, 0, depth)
        shared = 4 * len(kernel.kept) * threads * steps * width
        if long and shared // threads >= 4 * SHARED_FROM and 2 * shared <= device.shared_bytes:
            found += [replace(plain, shared_bytes=shared, depth=d) for d in (4, 2)]
        # One resident block of 1024 threads bounds a thread to 64 registers with or without being asked to.
        found += [plain, replace(plain, min_blocks=0)] if resident > 1 else [plain]
    return found or TOO_LARGE


def _of_units(kernel: Kernel, cols: int, width: int, device: Device) -> list[RowSchedule]:
    """For rows that no vector divides, in units of ``width``: through shared memory where it holds them, then directly.

    What is in flight to shared memory takes no registers: a lane has as many elements as 64 registers hold with what is
    computed of them, and what is done once a row is shared by more of them.
    """
    units = -(-cols // width)
    found = []
    for elements in (UNIT_ELEMENTS, 2 * UNIT_ELEMENTS, UNIT_ELEMENTS // 2):
        lanes = _lanes(cols, elements)
        steps = -(-units // lanes) if lanes else 0
        if not lanes or steps * width * held_bytes(kernel) > 4 * MOST_REGISTERS:
            continue
        threads = max(128, lanes)
        resident = max(1, (1024 if elements <= UNIT_ELEMENTS else 768) // threads)
        if _in_and_out_twice(kernel) and lanes >= 256:
            resident = max(1, 512 // threads)
        widths = aligned(kernel, cols, width)
        plain = RowSchedule(lanes, threads // lanes, steps, width, cols, widths, False, resident)
        bounded = [plain, replace(plain, min_blocks=0)] if resident > 1 else [plain]
        through = [staged(kernel, s) for s in bounded]
        found += [s for s in through if s.staged and fits(s, device)] + bounded
    return found


def fits(schedule: RowSchedule, device: Device) -> bool:
    """Whether a multiprocessor's shared memory holds as many blocks as are meant to be resident."""
    return max(1, schedule.min_blocks) * (schedule.shared_bytes + BLOCK_RESERVED_BYTES) <= device.shared_bytes


def narrower(kernel: Kernel, schedule: RowSchedule, accesses: tuple[int, ...], device: Device) -> RowSchedule:
    """The same lanes and columns for tensors that leave accesses only so wide."""
    less = replace(schedule, accesses=accesses)
    # Rows that did not go through shared memory before take registers for it, which the bound has not left.
    through = staged(kernel, less if schedule.staged else replace(less, min_blocks=0))
    return through if through.staged and fits(through, device) else staged(kernel, less, 0)


def staged(kernel: Kernel, schedule: RowSchedule, below_bytes: int = STAGED_BELOW_BYTES) -> RowSchedule:
    """The schedule with rows through shared memory that would be accessed by less than ``below_bytes`` at a time."""
    at = kept = schedule.kept_bytes
    places: dict[str, Place] = {}
    for region in regions(kernel, schedule.cols, schedule.width, schedule.accesses, below_bytes):
        places |= dict.fromkeys(region.accesses, Place(at, region.nbytes))
        at += region.nbytes * schedule.groups
    if not places:
        return replace(schedule, staged=(), shared_bytes=kept)
    return replace(schedule, staged=tuple(places.get(a.name) for a in kernel.accesses), shared_bytes=at)


def _reads_and_writes(kernel: Kernel) -> tuple[int, int]:
    """How many tensors it reads, and how many it writes, an element for each column of each row."""
    written = {s.access for loop in kernel.loops for s in loop.body if isinstance(s, StoreValue)}
    full = [a.name in written for a in kernel.accesses if a.column != "zero" and any(s != 0 for s in a.outer)]
    return full.count(False), full.count(True)


def _in_and_out_twice(kernel: Kernel) -> bool:
    reads, writes = _reads_and_writes(kernel)
    return reads > 1 and writes > 1


def _vectors_a_lane(kernel: Kernel, vectors: int) -> list[int]:
    """At most so many, the best first: what fills the lanes, then as many as rows of that length do best with.

    Two where they fill a warp, or a block of 128 threads that a warp of four does not hold (note 004, items 10 and 12).
    """
    twice = _in_and_out_twice(kernel)
    if vectors > LONG_ROW:
        usual = 4 if twice else 8
    elif vectors > LONG_SIMPLE_ROW:
        usual = 8 if twice or _reads_and_writes(kernel) == (1, 1) else 4
    else:
        usual = 2 if vectors <= 64 or 128 < vectors <= 256 else 4
    tried = [most for most in dict.fromkeys((usual, 4, 8, 2)) if _lanes(vectors, most)]
    if not tried:
        return []
    best = next((m for m in tried if _idle(vectors, m) <= IDLE), None)
    if best is None:
        best = min(tried, key=lambda m: (_idle(vectors, m), -m))
    lanes = _lanes(vectors, best)
    if not twice and lanes >= 256 and -(-vectors // lanes) == 3:
        best = 8  # three vectors a lane are too little in flight in blocks of 256 and 512 (note 004, item 13)
    return list(dict.fromkeys((best, *tried)))


def _lanes(vectors: int, most: int) -> int:
    """The fewest that hold a row in so many vectors each; 0 if a block does not."""
    return next((lanes for lanes in LANES if lanes * most >= vectors), 0)


def _idle(vectors: int, most: int) -> float:
    """The share of the vectors' places that lie past the end of the row."""
    lanes = _lanes(vectors, most)
    return 1 - vectors / (lanes * -(-vectors // lanes))


def aligned(kernel: Kernel, cols: int, width: int) -> tuple[int, ...]:
    """Access widths when every tensor starts at 16 bytes: what the row length and the strides leave."""
    return tuple(_access_width(a, cols, width, 16) for a in kernel.accesses)


def _access_width(a: Access, cols: int, width: int, base_bytes: int) -> int:
    w = width
    ends = [] if ragged(a) else [cols]
    numbers = [*ends, *a.outer, *a.blocks, a.offset, *(a.window or ()), *((a.table[1],) if a.table else ())]
    while w > 1 and (
        (w * a.dtype.nbytes > base_bytes and w * a.dtype.nbytes <= 16)
        or any(isinstance(n, int) and n % w for n in numbers)
    ):
        w //= 2
    return w
