"""From the sizes and addresses of one call to a launch: grids, argument blocks, and kernels for unaligned tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from onepass.build import Built
from onepass.codegen.arguments import Field
from onepass.codegen.emit import emit
from onepass.ir.kernel import Access, ReduceRow
from onepass.ir.symbol import Size, product
from onepass.plan.choose import Schedule, kernel_name
from onepass.plan.schedules import cpu, cpu_parts, row, row_strided, tiled
from onepass.plan.schedules.cpu import CpuSchedule
from onepass.plan.schedules.flat import FlatSchedule
from onepass.plan.schedules.row import RowSchedule
from onepass.plan.schedules.row_cluster import ClusterSchedule
from onepass.plan.schedules.row_grid import GridSchedule
from onepass.plan.schedules.row_serial import SerialSchedule
from onepass.plan.schedules.row_stream import StreamSchedule, spread, walks
from onepass.plan.schedules.row_strided import StridedSchedule
from onepass.plan.schedules.row_walk import WalkSchedule
from onepass.plan.schedules.tiled import TiledSchedule
from onepass.runtime.counters import COUNTERS
from onepass.runtime.launch_cpu import Work
from onepass.runtime.launch_cuda import CudaKernel, Grid
from onepass.runtime.load import cpu_kernel, cuda_kernel

Call = Callable[..., None]


@dataclass(frozen=True)
class LaunchPlan:
    """``call(rows, extent, *values)``: ``sizes`` are the first two, values the block's pointers and sizes in order.

    ``at_once(stream, rows, extent, *values)`` does the same on the current CUDA device, sooner; None where it can't be.
    """

    call: Call
    sizes: tuple[Size, Size]
    at_once: Call | None = None


def launch_plan(built: Built) -> LaunchPlan:
    rows = product(built.kernel.outer)
    if isinstance(built.schedule, CpuSchedule):
        return LaunchPlan(_cpu(built), (rows, cpu.pieces_extent(built.kernel)))
    extent = built.kernel.inner if built.kernel.axis == "inner" else built.kernel.cols
    call = _cuda(built)
    return LaunchPlan(call, (rows, extent), _at_once(built, call))


def _cpu(built: Built) -> Call:
    """Packs a call's block and runs it over threads."""
    kernel, block = built.kernel, built.source.block
    sized = [f for f in block if f.kind != "extra"]
    inner, chunk = kernel.axis == "inner", cpu.chunk(kernel)
    parts = isinstance(built.schedule, cpu_parts.PartsSchedule)
    return cpu_kernel(built.source).at_work(
        Work(
            values=len(sized),
            cols_at=next(i for i, f in enumerate(sized) if f.name == "cols"),
            chunk=chunk,
            whole_rows=inner or not chunk,
            lanes=cpu.LANES if inner else 1,
            kept_bytes=4 * len(kernel.kept),
            element_bytes=built.traffic.bytes / max(1, built.elements),
            reports=any(f.name == "error" for f in block),
            part=cpu_parts.PART if parts else 0,
            part_bytes=cpu_parts.SUM_BYTES * cpu_parts.sums(kernel),
            loops=len(kernel.loops),
            phases=cpu_parts.phases(kernel),
        )
    )


@dataclass(frozen=True)
class _Alignment:
    """Which values of a call must be multiples of what, for accesses of some width."""

    masks: tuple[tuple[int, int, int], ...]  # (position, multiplier to bytes, mask)

    def holds(self, values: tuple[int, ...]) -> bool:
        return not any(values[i] * by & mask for i, by, mask in self.masks)

    def off(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """By how many bytes each value is off."""
        return tuple(values[i] * by & mask for i, by, mask in self.masks)


def alignment_of(
    fields: list[Field], accesses: tuple[Access, ...], widths: dict[str, int]
) -> tuple[tuple[int, int, int], ...]:
    """Which of a call's values must be multiples: (position, multiplier to bytes, mask) each."""
    return _alignment(fields, accesses, widths).masks if widths else ()


def starts_only(
    fields: list[Field], masks: tuple[tuple[int, int, int], ...]
) -> tuple[tuple[int, int, int], ...]:
    """The masks of addresses, without those of strides: what a walk without regard to rows needs."""
    return tuple(m for m in masks if fields[m[0]].kind == "pointer")


def _alignment(fields: list[Field], accesses: tuple[Access, ...], widths: dict[str, int]) -> _Alignment:
    """Pointers, and strides where they are not known before the call."""
    masks = []
    for i, f in enumerate(fields):
        for a in accesses:
            if a.column != "unit":
                continue
            size = a.dtype.nbytes
            mask = min(16, widths[a.name] * size) - 1
            if f.name == a.name:
                masks.append((i, 1, mask))
            elif f.name.startswith((f"{a.name}_o", f"{a.name}_b")) or f.name in (
                f"{a.name}_t",
                f"{a.name}_r",
            ):
                masks.append((i, size, mask))
            elif f.name == "inner":
                masks.append((i, 1, widths[a.name] - 1))
    return _Alignment(tuple(dict.fromkeys(m for m in masks if m[2] > 0)))


def _cuda(built: Built) -> Call:
    fields = [f for f in built.source.block if f.kind != "extra"]
    index = torch.device(built.cluster.device).index or 0
    schedule = built.schedule
    if isinstance(schedule, RowSchedule | ClusterSchedule | GridSchedule):
        return _row(built, schedule, fields, index)
    if isinstance(schedule, FlatSchedule):
        return _flat(built, schedule, fields, index)
    if isinstance(schedule, StreamSchedule):
        return _stream(built, schedule, fields, index)
    if isinstance(schedule, TiledSchedule):
        return _tiled(built, schedule, fields, index)
    if isinstance(schedule, SerialSchedule):
        return _serial(built, schedule, index)
    if isinstance(schedule, WalkSchedule):
        return _walk(built, schedule, fields, index)
    assert isinstance(schedule, StridedSchedule)
    return _strided(built, schedule, fields, index)


def _walk(built: Built, schedule: WalkSchedule, fields: list[Field], index: int) -> Call:
    kernel, width = built.kernel, schedule.width
    run = cuda_kernel(built.source, built.device.arch, schedule.threads)
    wide = _alignment(fields, kernel.accesses, {a.name: width for a in kernel.accesses})
    pieces_at = next(i for i, f in enumerate(fields) if f.name == ("run" if kernel.blocks else "cols"))

    def launch(rows: int, extent: int, *values: int) -> None:
        if rows and extent:
            COUNTERS.launched += 1
            run(rows, index, (*values, values[pieces_at] % width == 0 and wide.holds(values)))

    return launch


def _serial(built: Built, schedule: SerialSchedule, index: int) -> Call:
    threads = schedule.threads
    run = cuda_kernel(built.source, built.device.arch, threads)

    def launch(rows: int, extent: int, *values: int) -> None:
        if rows * extent:
            COUNTERS.launched += 1
            run(-(-rows * extent // threads), index, values)

    return launch


def _strided(built: Built, schedule: StridedSchedule, fields: list[Field], index: int) -> Call:
    """The kernel for the widest vectors that a call's tensors allow, once or, where rows are divided, once a loop."""
    kernel = built.kernel
    cols_at = next(i for i, f in enumerate(fields) if f.name == "cols")
    reductions = sum(isinstance(s, ReduceRow) for s in kernel.stages)

    @cache
    def aligned(width: int) -> _Alignment:
        return _alignment(fields, kernel.accesses, {a.name: width for a in kernel.accesses})

    @cache
    def of(width: int, whole: bool) -> tuple[StridedSchedule, Call]:
        made = row_strided.fitted(kernel, schedule, width) if width < schedule.width else schedule
        if whole and made.parts != 1:
            made = row_strided.undivided(kernel, made)
        source = built.source
        if made != schedule:
            source = emit(kernel, made, kernel_name(made, built.cluster))
        return made, cuda_kernel(source, built.device.arch, made.threads)

    of(schedule.width, False)  # loaded before the first call

    def launch(rows: int, extent: int, *values: int) -> None:
        if rows * extent == 0:
            return
        width, cols = schedule.width, values[cols_at]
        while not aligned(width).holds(values):
            width //= 2
        parts = schedule.parts or row_strided.parts_of(kernel, cols, extent, built.device)
        made, run = of(width, parts == 1)
        tiles, blocks = made.tiles(extent), made.blocks(rows, extent)
        if parts == 1:
            COUNTERS.launched += 1
            run(blocks, index, (*values, tiles))
            return
        partials = scratch(reductions * rows * parts * extent, built.cluster.device)
        for number in range(row_strided.launches(kernel)):
            COUNTERS.launched += 1
            divided = parts if number < len(kernel.loops) else 1
            extras = (tiles, partials.data_ptr(), parts, -(-cols // parts), number)
            run(blocks * divided, index, (*values, *extras))

    return launch


def tiled_alignment(
    built: Built, schedule: TiledSchedule
) -> tuple[tuple[tuple[int, int, int], ...], tuple[tuple[int, int, int], ...]]:
    """Which values must be multiples, as `alignment_of` says it: for vectors along the columns, and across them."""
    kernel, down = built.kernel, schedule.down
    fields = [f for f in built.source.block if f.kind != "extra"]
    places = {f.name: i for i, f in enumerate(fields)}
    over = tiled.turned(kernel, down)
    straight, upright = (
        [(places["cols"], 1, schedule.width - 1)],
        [(places[f"n{down}"], 1, schedule.height - 1)],
    )
    for a in kernel.accesses:
        size = a.dtype.nbytes
        strides = [f"{a.name}_o{k}" for k in range(len(kernel.outer)) if k != down]
        if a.column == "unit":
            mask = min(16, schedule.width * size) - 1
            straight += [(places[n], size, mask) for n in (*strides, f"{a.name}_o{down}")] + [
                (places[a.name], 1, mask)
            ]
        elif a in over:
            mask = min(16, schedule.height * size) - 1
            upright += [(places[n], size, mask) for n in (*strides, f"{a.name}_c")] + [
                (places[a.name], 1, mask)
            ]
    return tuple(m for m in straight if m[2] > 0), tuple(m for m in upright if m[2] > 0)


def _tiled(built: Built, schedule: TiledSchedule, fields: list[Field], index: int) -> Call:
    """The kernel for the widest vectors on both sides that a call's tensors allow."""
    down_at = next(i for i, f in enumerate(fields) if f.name == f"n{schedule.down}")

    @cache
    def aligned(made: TiledSchedule) -> tuple[_Alignment, _Alignment]:
        straight, upright = tiled_alignment(built, made)
        return _Alignment(straight), _Alignment(upright)

    @cache
    def of(made: TiledSchedule) -> Call:
        source = built.source
        if made != schedule:
            source = emit(built.kernel, made, kernel_name(made, built.cluster))
        return cuda_kernel(source, built.device.arch, made.threads)

    of(schedule)  # loaded before the first call

    def launch(rows: int, extent: int, *values: int) -> None:
        if rows * extent == 0:
            return
        made = schedule
        while not aligned(made)[0].holds(values):
            made = replace(made, width=made.width // 2)
        while not aligned(made)[1].holds(values):
            made = replace(made, height=made.height // 2)
        down = values[down_at]
        tiles_down, tiles = made.tiles(down, extent)
        COUNTERS.launched += 1
        of(made)(rows // down * tiles_down * tiles, index, (*values, tiles_down, tiles))

    return launch


def _stream(built: Built, schedule: StreamSchedule, fields: list[Field], index: int) -> Call:
    """A block a row in one launch, or where rows are few many blocks a row, in a launch a walk."""
    run = cuda_kernel(built.source, built.device.arch, schedule.threads)
    width, units = schedule.width, built.device.units
    wide = _alignment(fields, built.kernel.accesses, {a.name: width for a in built.kernel.accesses})
    launches = len(walks(built.kernel))
    results = sum(isinstance(stage, ReduceRow) for stage in built.kernel.stages)

    def launch(rows: int, extent: int, *values: int) -> None:
        if rows == 0 or extent == 0:
            return
        parts = -(-extent // schedule.part)
        blocks, each = spread(rows, parts, units)
        vectors = extent % width == 0 and wide.holds(values)
        if blocks == 1:
            COUNTERS.launched += 1
            run(rows, index, (*values, 0, -1, 1, parts, vectors))
            return
        COUNTERS.launched += launches
        partial = scratch(rows * parts * results, built.cluster.device)
        for only in range(launches):
            run(rows * blocks, index, (*values, partial.data_ptr(), only, blocks, each, vectors))

    return launch


def scratch(numel: int, device: str) -> torch.Tensor:
    """Floats that live for the launches of one call: whoever gets the memory next is on the same stream."""
    return torch.empty(numel, dtype=torch.float32, device=device)


def _flat(built: Built, schedule: FlatSchedule, fields: list[Field], index: int) -> Call:
    run = cuda_kernel(built.source, built.device.arch, schedule.threads)
    width, per_block = schedule.width, schedule.threads * schedule.steps
    wide = _alignment(
        fields, built.kernel.accesses, dict.fromkeys((a.name for a in built.kernel.accesses), width)
    )
    starts = _Alignment(starts_only(fields, wide.masks))

    def level(rows: int, extent: int, *values: int) -> None:
        if rows * extent:
            COUNTERS.launched += 1
            run(
                -(-rows * extent // (per_block * width)),
                index,
                (*values, extent >= width and starts.holds(values)),
            )

    def launch(rows: int, extent: int, *values: int) -> None:
        if rows * extent == 0:
            return
        COUNTERS.launched += 1
        if extent % width == 0 and wide.holds(values):
            vectors = extent // width
            run(-(-rows * vectors // per_block), index, (*values, vectors, 1))
        else:
            run(-(-rows * extent // per_block), index, (*values, extent, 0))

    return level if schedule.level else launch


def _row(
    built: Built, schedule: RowSchedule | ClusterSchedule | GridSchedule, fields: list[Field], index: int
) -> Call:
    """The kernel for the widths that strides and row length allow, and others when a tensor starts elsewhere."""
    kernel, arch = built.kernel, built.device.arch
    shared_by = schedule.blocks if isinstance(schedule, ClusterSchedule) else 1
    groups = schedule.groups if isinstance(schedule, RowSchedule) else 1
    run = cuda_kernel(built.source, arch, schedule.threads, schedule.shared_bytes)
    widths = dict(zip((a.name for a in kernel.accesses), schedule.accesses, strict=True))
    aligned = _alignment(fields, kernel.accesses, widths)
    narrow: dict[tuple[int, ...], Call] = {}  # by how far a call's values are off

    def narrower(values: tuple[int, ...]) -> Call:
        """A kernel with accesses as wide as these values allow."""
        smaller = dict(widths)
        for a in kernel.accesses:
            alone = dict.fromkeys(smaller, 1)
            while smaller[a.name] > 1 and not _alignment(
                fields, kernel.accesses, {**alone, a.name: smaller[a.name]}
            ).holds(values):
                smaller[a.name] //= 2
        accesses = tuple(smaller.values())
        less = (
            row.narrower(kernel, schedule, accesses, built.device)
            if isinstance(schedule, RowSchedule)
            else replace(schedule, accesses=accesses)
        )
        source = emit(kernel, less, kernel_name(less, built.cluster))
        return cuda_kernel(source, arch, less.threads, less.shared_bytes)

    def launch(rows: int, extent: int, *values: int) -> None:
        if rows == 0:
            return
        COUNTERS.launched += 1
        kernel_for: Call = run
        if not aligned.holds(values):
            off = aligned.off(values)
            if off not in narrow:
                narrow[off] = narrower(values)
            kernel_for = narrow[off]
        if isinstance(schedule, GridSchedule):
            blocks = schedule.grid(rows)
            words = scratch(4 * blocks, built.cluster.device).zero_()  # two of 8 bytes a block
            kernel_for(blocks, index, (*values, 0, words.data_ptr()))
            return
        kernel_for(-(-rows // groups) * shared_by, index, (*values, 0))

    return launch


def _at_once(built: Built, otherwise: Call) -> Call | None:
    """A launch in one call of compiled code, which leaves to ``otherwise`` what it can't do."""
    schedule: Any = built.schedule
    grid = _grid(schedule)
    if grid is None:
        return None
    accesses = built.kernel.accesses
    shared_bytes = schedule.shared_bytes if isinstance(schedule, RowSchedule) else 0
    kernel = cuda_kernel(built.source, built.device.arch, schedule.threads, shared_bytes)
    if not isinstance(kernel, CudaKernel):
        return None
    if isinstance(schedule, RowSchedule):
        widths = dict(zip((a.name for a in accesses), schedule.accesses, strict=True))
    else:
        widths = dict.fromkeys((a.name for a in accesses), grid.width)
    fields = [f for f in built.source.block if f.kind != "extra"]
    return kernel.at_once(grid, len(fields), _alignment(fields, accesses, widths).masks, otherwise)


def _grid(schedule: Schedule) -> Grid | None:
    """The formulas above, for compiled code; None for a schedule that has others."""
    if isinstance(schedule, RowSchedule):
        return Grid(schedule.groups, "rows", extras="zero", aligned_only=True)
    if isinstance(schedule, FlatSchedule) and not schedule.level:
        return Grid(schedule.threads * schedule.steps, "elements", schedule.width, "vectors")
    if isinstance(schedule, SerialSchedule):
        return Grid(schedule.threads, "elements")
    return None
