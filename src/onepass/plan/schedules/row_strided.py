"""CUDA: reductions along a dimension with others inside it.

Neighbouring threads take neighbouring inner vectors, and the reduced dimension of one vector is shared by several lanes.
What a lane has of it stays in registers where that fits; a long one is walked, by several blocks where it is very long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onepass.device import Device
from onepass.ir.kernel import Access, ColumnLoop, Kernel, LoadValue, ReduceRow
from onepass.plan.schedules.row import vector_width

# Registers a thread may hold between phases: its share of a row and, for each of a vector's elements, one value under way,
# one of each reduction and half a one made of it. The first leaves a bound of 64 for 1024 resident threads, the second,
# with computed values, of 80.
HELD, HELD_COMPUTED = 52, 64
# Vectors a lane holds at most: 8, or of narrow ones as many as bring 64 bytes.
MOST_HELD, HELD_BYTES = 8, 64
# A row that is read once gains nothing by being held: above this a walk has fewer lanes to combine.
LONG_SINGLE = 256
# Bytes a thread of a walk has in flight, and vectors at most: 1024 resident threads keep 64 KB in flight.
WALKED_BYTES, MOST_WALKED = 64, 16
# Bytes of neighbouring vectors that a block takes at most, and should take at least: two sectors.
MOST_BYTES, SEGMENT_BYTES = 512, 64
MOST_LANES, THREADS, MOST_THREADS = 512, 256, 1024
# Threads resident on a multiprocessor, which bounds a thread to 64 and to 80 registers.
RESIDENT, RESIDENT_COMPUTED = 1024, 768
# Above so many bytes one block's share of the reduced dimension is divided among blocks, so many bytes each: reading a
# megabyte takes one block longer than the launch that puts the parts together.
SPLIT_FROM_BYTES, PART_BYTES = 1 << 20, 1 << 16
# Blocks a multiprocessor that parts of the rows of one outer position make at most.
PARTS_A_UNIT = 4
# Terms that are added one after the other before their sum joins the next level's: see `Printer.serial`.
BLOCK_TERMS = 32


@dataclass(frozen=True)
class StridedSchedule:
    """``groups`` rows a block; of each, ``across`` neighbouring inner vectors of ``width``, ``lanes`` threads each.

    Element r of the reduced dimension belongs to lane r mod lanes, and to a part of the row where ``parts`` says that
    rows are divided. These two numbers depend on the reduced and the inner size and the dtypes alone, so that the
    reduction tree does; the others may change with a tensor's alignment.
    """

    lanes: int
    across: int
    groups: int
    steps: int  # vectors a lane loads before it uses them; when held, all it has
    width: int
    held: bool  # a row's values stay in registers between phases
    levels: int = 1  # of sums: 32 terms, 32 blocks of them, …
    parts: int = 1  # of a row, each a block's; 0: as many as the sizes of a call ask for
    min_blocks: int = 0  # resident on a multiprocessor: bounds a thread's registers; 0 leaves them open
    family: str = "row-strided"

    @property
    def threads(self) -> int:
        return self.lanes * self.across * self.groups

    def tiles(self, inner: int) -> int:
        """Blocks side by side along the inner dimension."""
        return -(-inner // (self.across * self.width))

    def blocks(self, rows: int, inner: int) -> int:
        return -(-rows // self.groups) * self.tiles(inner)

    def explain(self) -> str:
        kept = "kept in registers" if self.held else "read again in each phase"
        return (
            f"{self.across} inner vectors of {self.width} by {self.lanes} lanes, {self.groups} rows a block, "
            f"{self.steps} vectors a lane at once, {kept}"
        ) + ("" if self.parts == 1 else ", long rows divided among blocks")


def held(kernel: Kernel, device: Device, rows: bool = False) -> list[StridedSchedule] | str:
    """Schedules that keep a row in registers, the best first; the others are for when the compiler spills.

    ``rows``: what lies side by side are rows, on whose number nothing that decides the reduction tree may depend.
    """
    if kernel.axis != "inner":
        return "the reduction has no inner dimension"
    cols = kernel.cols
    if not isinstance(cols, int):
        return "too_large: the reduced size is only known at run time"
    if len(kernel.loops) == 1 and cols > LONG_SINGLE:
        return "too_large: a row that is read once is walked"
    element_bytes = _held_bytes(kernel)
    nominal = vector_width(kernel) if rows else nominal_width(kernel)
    others = nominal + 3 * nominal * sum(isinstance(s, ReduceRow) for s in kernel.stages) // 2
    registers = (HELD_COMPUTED if kernel.kept else HELD) - others
    held = max(element_bytes * nominal, 4)  # of a vector; less than a register is one all the same
    most = max(1, min(4 * registers // held, max(MOST_HELD, HELD_BYTES // (nominal * _narrowest(kernel)))))
    lanes = _power_above(-(-cols // most))
    if lanes > MOST_LANES:
        return "too_large: the reduced dimension does not fit in registers"
    made = fitted(kernel, StridedSchedule(lanes, 1, 1, -(-cols // lanes), 1, True), access_width(kernel))
    segment_bytes = made.across * made.width * _narrowest(kernel)
    crowded = made.lanes * _most_across(kernel, made.width) > MOST_THREADS
    if segment_bytes < SEGMENT_BYTES // 2 and crowded and made.tiles(_inner(kernel)) > 1:
        return "too_large: blocks that hold the reduced dimension are too narrow"
    resident = (RESIDENT_COMPUTED if kernel.kept else RESIDENT) // made.threads
    bounds = dict.fromkeys((resident, min(resident, RESIDENT_COMPUTED // made.threads), 0))
    return [replace(made, min_blocks=b) for b in bounds if b != 1]


def walked(kernel: Kernel, device: Device, rows: bool = False) -> list[StridedSchedule] | str:
    """Schedules for a reduced dimension of any length. ``rows``: as `held` says."""
    if kernel.axis != "inner":
        return "the reduction has no inner dimension"
    nominal = vector_width(kernel) if rows else nominal_width(kernel)
    vectors = MOST_BYTES if rows else max(1, _inner(kernel) // nominal)
    lanes = _power_above(THREADS // min(_most_across(kernel, nominal), vectors) // 2 + 1)
    if isinstance(kernel.cols, int):
        lanes = min(lanes, _power_above(-(-kernel.cols // 4)))
    steps = MOST_WALKED
    while steps > 1 and steps * nominal * _streamed_bytes(kernel) > WALKED_BYTES:
        steps //= 2
    parts = 1 if rows else 0
    if not rows and isinstance(kernel.cols, int) and isinstance(kernel.inner, int):
        parts = parts_of(kernel, kernel.cols, kernel.inner, device)
    made = StridedSchedule(lanes, 1, 1, steps, 1, False, _levels(kernel, lanes, parts), parts)
    made = fitted(kernel, made, access_width(kernel))
    # Left alone the compiler aims at 32 registers where it comes near, and may spill a value for it.
    return [made, replace(made, min_blocks=RESIDENT // made.threads)]


def fitted(kernel: Kernel, schedule: StridedSchedule, width: int) -> StridedSchedule:
    """The same reduction tree in accesses of ``width`` elements: only what lies side by side changes."""
    if not isinstance(kernel.inner, int):
        across = max(1, min(_most_across(kernel, width), max(THREADS, schedule.lanes) // schedule.lanes))
        return replace(schedule, width=width, across=across, groups=1)
    vectors = kernel.inner // width
    threads = max(THREADS, schedule.lanes)
    most = min(vectors, _most_across(kernel, width))
    across = min(most, threads // schedule.lanes)
    while (
        across < vectors
        and across * width * _narrowest(kernel) < SEGMENT_BYTES
        and 2 * threads <= MOST_THREADS
    ):
        threads *= 2
        across = min(most, threads // schedule.lanes)
    tiles = -(-vectors // across)
    if tiles * across - vectors > vectors / 16:
        across = -(-vectors // tiles)  # idle threads cost more than a number that is no power of two
    groups = max(1, THREADS // (schedule.lanes * across)) if tiles == 1 else 1
    made = replace(schedule, width=width, across=across, groups=groups)
    return replace(made, min_blocks=schedule.min_blocks * schedule.threads // made.threads)


def undivided(kernel: Kernel, schedule: StridedSchedule) -> StridedSchedule:
    """The same with each row in one block, which is slower where rows are long and adds in another order."""
    return replace(schedule, parts=1, levels=_levels(kernel, schedule.lanes, 1))


def parts_of(kernel: Kernel, cols: int, inner: int, device: Device) -> int:
    """Into how many parts a row is divided: by its own length and its neighbours' alone."""
    nominal = _fitting(inner, vector_width(kernel))
    tile = min(inner, _most_across(kernel, nominal) * nominal)
    tile_bytes = cols * tile * _streamed_bytes(kernel)
    if tile_bytes < SPLIT_FROM_BYTES:
        return 1
    return min(-(-tile_bytes // PART_BYTES), max(1, PARTS_A_UNIT * device.units // -(-inner // tile)))


def launches(kernel: Kernel) -> int:
    """How often a kernel whose rows are divided is started: once a loop, and once more where its rows end in reductions."""
    return len(kernel.loops) + (not isinstance(kernel.stages[-1], ColumnLoop))


def nominal_width(kernel: Kernel) -> int:
    """Elements of a vector when every tensor is aligned to one: what the inner size leaves."""
    return (
        _fitting(kernel.inner, vector_width(kernel))
        if isinstance(kernel.inner, int)
        else vector_width(kernel)
    )


def access_width(kernel: Kernel) -> int:
    """The widest vector that the sizes and strides that are known allow every tensor that is walked along inner."""
    width = nominal_width(kernel)
    for a in kernel.accesses:
        if a.column == "unit":
            for n in (*a.outer, a.reduced, a.offset):
                width = _fitting(n, width) if isinstance(n, int) else width
    return width


def moves(a: Access) -> bool:
    """Whether an access differs both along the reduced dimension and inside it."""
    return a.column != "zero" and a.reduced != 0


def _fitting(number: int, width: int) -> int:
    while width > 1 and number % width:
        width //= 2
    return width


def _power_above(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def _inner(kernel: Kernel) -> int:
    """The inner size; where it is only known at run time, one that fills blocks."""
    return kernel.inner if isinstance(kernel.inner, int) else MOST_BYTES


def _most_across(kernel: Kernel, width: int) -> int:
    """Neighbouring vectors a block takes at most.

    Where some tensors run along the reduced dimension a warp has as many lanes as fill a sector of those, and what runs
    along the other takes one too.
    """
    narrowest = _narrowest(kernel)
    if any(a.column == "strided" and a.reduced == 1 for a in kernel.accesses):
        return max(1, narrowest, SEGMENT_BYTES // 2 // (width * narrowest))
    return max(1, MOST_BYTES // (width * narrowest))


def _narrowest(kernel: Kernel) -> int:
    return min((a.dtype.nbytes for a in kernel.accesses if moves(a)), default=4)


def _streamed_bytes(kernel: Kernel) -> int:
    """Bytes that the loop which loads most loads an element."""
    names = [{s.access for s in loop.body if isinstance(s, LoadValue)} for loop in kernel.loops]
    return max(
        1,
        *(sum(a.dtype.nbytes for a in kernel.accesses if a.name in loaded and moves(a)) for loaded in names),
    )


def _held_bytes(kernel: Kernel) -> int:
    """Bytes of registers an element takes while reductions run; where nothing is read twice, while loads are in flight.

    What computed values are made of is given up as they are made.
    """
    raw = sum(a.dtype.nbytes for a in kernel.accesses if a.resident and moves(a))
    return max(raw, 4 * len(kernel.kept), _streamed_bytes(kernel))


def _levels(kernel: Kernel, lanes: int, parts: int) -> int:
    """Levels of sums, so that none adds more than 32 terms; four hold a million for each lane."""
    if parts == 0 or not isinstance(kernel.cols, int):
        return 4
    terms, levels = -(-kernel.cols // (lanes * parts)), 1
    while terms > BLOCK_TERMS and levels < 4:
        terms, levels = -(-terms // BLOCK_TERMS), levels + 1
    return levels
