"""What a kernel executes a row: counted by running it in the emulator, where it says how it is launched."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from onepass.build import Built
from onepass.capture.absent import Graph
from onepass.capture.launch import alignment_of, starts_only, tiled_alignment
from onepass.codegen.emit import emit
from onepass.emulate import Buffer, LaunchReport, compile_for_host, compile_handwritten
from onepass.errors import BadLaunch, KernelFault, OnepassError
from onepass.insight.bench import copied, memory_of
from onepass.ir.symbol import Poly, Size, product
from onepass.plan.schedules.flat import FlatSchedule
from onepass.plan.schedules.row import RowSchedule
from onepass.plan.schedules.row_cluster import ClusterSchedule
from onepass.plan.schedules.row_grid import GridSchedule
from onepass.plan.schedules.row_serial import SerialSchedule
from onepass.plan.schedules.row_stream import StreamSchedule
from onepass.plan.schedules.row_strided import StridedSchedule, undivided
from onepass.plan.schedules.row_walk import WalkSchedule
from onepass.plan.schedules.tiled import TiledSchedule

# Blocks of a generated kernel that are run: all do the same but the last, and the emulator takes its time.
BLOCKS = 4


@dataclass(frozen=True)
class Executed:
    """Executed counts of a launch over ``rows`` rows. ``case`` says which launch.

    ``memory_instructions`` are those of warps to global memory: a load of 32 lanes is one. Bytes are those of every load
    and store, whether a cache serves them or not.
    """

    case: str
    rows: float
    barriers: int
    memory_instructions: int
    shared_instructions: int
    read_bytes: int
    written_bytes: int
    threads: int  # a block
    shared_bytes: int  # dynamic, a block

    @property
    def barriers_per_row(self) -> float:
        """Barriers that a block waits at, by rows."""
        return self.barriers / self.rows

    @property
    def memory_instructions_per_row(self) -> float:
        """Instructions of warps to global memory, by rows."""
        return self.memory_instructions / self.rows

    @property
    def bytes_per_row(self) -> float:
        """Bytes of every load and store of global memory, by rows."""
        return (self.read_bytes + self.written_bytes) / self.rows

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "case": self.case,
            "rows": self.rows,
            "barriers_per_row": self.barriers_per_row,
            "memory_instructions_per_row": self.memory_instructions_per_row,
            "shared_instructions_per_row": self.shared_instructions / self.rows,
            "read_bytes_per_row": self.read_bytes / self.rows,
            "written_bytes_per_row": self.written_bytes / self.rows,
            "bytes_per_row": self.bytes_per_row,
        }


def of_report(report: LaunchReport, rows: float, case: str, threads: int, shared_bytes: int) -> Executed:
    """A launch's counts, as those of so many rows. ``threads`` and ``shared_bytes`` are a block's."""
    return Executed(
        case,
        rows,
        report.barriers,
        report.memory_instructions("global"),
        report.memory_instructions("shared"),
        sum(b.read_bytes for b in report.buffers),
        sum(b.written_bytes for b in report.buffers),
        threads,
        shared_bytes,
    )


def counted(count: Callable[[], Executed]) -> Executed | str:
    """Counts, or why there are none."""
    try:
        return count()
    except KernelFault as fault:
        return (
            f"the emulator stopped at a fault, which `onepass check` explains: {fault.what().splitlines()[0]}"
        )
    except OnepassError as error:
        return f"{error.what()}. {error.advice()}".replace("\n", " ")


def of_text(text: str, file: str, kernel: str) -> Executed:
    """A hand-written kernel, launched as the first `onepass-check:` line of its file that is about it says.

    A row is what its name `rows` counts; without one, a block's work. Raises: OnepassError where it can't be run.
    """
    from onepass.insight.check import check_built
    from onepass.insight.launch_line import cases_of, launch_of

    cases = [c for c in cases_of(text, file) if c.pairs]
    about = [c for c in cases if c.pairs.get("kernel", kernel).partition("<")[0] == kernel.partition("<")[0]]
    if not about:
        raise BadLaunch(
            file,
            f"no line says how {kernel} is launched",
            "Write one: // onepass-check: grid=… block=… and its arguments.",
        )
    case = about[0]
    built = compile_handwritten(text, case.pairs.get("kernel", kernel), file)
    launch = launch_of(case, built.parameters, file)
    checked = check_built(
        built,
        launch.arguments,
        launch.grid,
        launch.block,
        shared_bytes=launch.shared_bytes,
        file=file,
        orders=(0,),
    )
    if checked.faults:
        fault = checked.faults[0]
        raise BadLaunch(
            file,
            f"line {fault.line}: {fault.kind}, so counts would mean nothing",
            "See `onepass check` about it.",
        )
    report = checked.counts
    blocks = math.prod(launch.grid)
    rows = launch.rows or blocks
    what = f"{rows} rows" if launch.rows else f"{blocks} blocks, a row each"
    said = f"{case.name or 'the launch'} in the file: {what}"
    return of_report(report, rows, said, math.prod(launch.block), launch.shared_bytes)


def of_built(built: Built, graph: Graph) -> Executed:
    """A generated kernel of a graph that has been called: its first blocks, on the graph's inputs and zeros between.

    What it executes does not depend on values.

    Raises: OnepassError where it can't be run.
    """

    def known(size: Size) -> int:
        return size.value(graph.plan.hints) if isinstance(size, Poly) else size

    given = _inputs(graph)
    memory: dict[str, Tensor] = {}
    for name in dict.fromkeys(f.tensor for f in built.source.block if f.kind == "pointer"):
        held = graph.captured.program.tensors[name]
        zeros = torch.zeros(max(1, known(held.numel)), dtype=getattr(torch, held.dtype.name))
        memory[name] = copied(given[name], torch.device("cpu")) if name in given else zeros
    fields = [f for f in built.source.block if f.kind != "extra"]
    values = [known(f.size) + (memory[f.tensor].data_ptr() if f.kind == "pointer" else 0) for f in fields]
    rows = known(product(built.kernel.outer))
    extent = known(built.kernel.inner if built.kernel.axis == "inner" else built.kernel.cols)
    if isinstance(built.schedule, StridedSchedule) and built.schedule.parts != 1:
        one = undivided(built.kernel, built.schedule)  # whose first blocks take the same instructions
        built = replace(built, schedule=one, source=emit(built.kernel, one, built.source.name))
    if isinstance(built.schedule, GridSchedule):
        raise BadLaunch(
            built.source.name,
            "its blocks wait for each other, and the emulator would run but the first",
            "Count the instructions of a shorter row.",
        )
    blocks, extras = _grid(built, rows, extent, values)
    run = min(blocks, BLOCKS)
    if isinstance(built.schedule, ClusterSchedule):
        run = -(-run // built.schedule.blocks) * built.schedule.blocks
    emulated = compile_for_host(built.source.text, built.source.name)
    schedule: Any = built.schedule
    packed = struct.pack(f"{len(values) + len(extras)}q", *values, *extras)
    buffers = [_buffer(t, x) for t, x in memory.items()]
    shared = int(getattr(schedule, "shared_bytes", 0))
    report = emulated.launch(run, schedule.threads, shared, packed, buffers)
    if not isinstance(
        schedule, RowSchedule | ClusterSchedule | StreamSchedule
    ):  # these number elements: a row is the last dimension
        widest = max((graph.captured.program.tensors[t] for t in memory), key=lambda t: known(t.numel))
        rows = known(widest.numel) // known(widest.shape[-1]) if widest.shape else 1
    done = min(rows, run * schedule.groups) if isinstance(schedule, RowSchedule) else rows * run / blocks
    return of_report(
        report, done, f"{run} of {blocks} blocks, {done:g} of {rows} rows", schedule.threads, shared
    )


def _inputs(graph: Graph) -> dict[str, Tensor]:
    """The tensors of a graph's first call, by the plan's names."""
    names = (n.name for n in graph.captured.graph.graph.nodes if n.op == "placeholder")
    return {n: x for n, x in zip(names, graph.calls[0], strict=True) if isinstance(x, Tensor)}


def _buffer(name: str, x: Tensor) -> Buffer:
    whole = memory_of(x)
    return Buffer(name, whole.data_ptr(), whole.numel() * whole.element_size(), True)


def _grid(built: Built, rows: int, extent: int, values: list[int]) -> tuple[int, tuple[int, ...]]:
    """Blocks, and what the launcher adds to the block of arguments: the formulas of `capture/launch.py`."""
    schedule: Any = built.schedule
    fields = [f for f in built.source.block if f.kind != "extra"]
    accesses = built.kernel.accesses
    if isinstance(schedule, RowSchedule | ClusterSchedule):
        widths = dict(zip((a.name for a in accesses), schedule.accesses, strict=True))
        _aligned(built, alignment_of(fields, accesses, widths), values)
        zeros = tuple(0 for f in built.source.block if f.kind == "extra")
        if isinstance(schedule, ClusterSchedule):
            return rows * schedule.blocks, zeros
        return -(-rows // schedule.groups), zeros
    if isinstance(schedule, FlatSchedule) and schedule.level:
        masks = alignment_of(fields, accesses, {a.name: schedule.width for a in accesses})
        wide = extent >= schedule.width and not any(
            values[i] * by & mask for i, by, mask in starts_only(fields, masks)
        )
        return -(-rows * extent // (schedule.threads * schedule.steps * schedule.width)), (int(wide),)
    if isinstance(schedule, FlatSchedule | StreamSchedule | WalkSchedule):
        masks = alignment_of(fields, accesses, {a.name: schedule.width for a in accesses})
        wide = extent % schedule.width == 0 and not any(values[i] * by & mask for i, by, mask in masks)
        if isinstance(schedule, WalkSchedule):
            return rows, (int(wide),)
        if isinstance(schedule, StreamSchedule):
            return rows, (0, -1, 1, -(-extent // schedule.part), int(wide))  # all walks in one launch
        vectors = extent // schedule.width if wide else extent
        return -(-rows * vectors // (schedule.threads * schedule.steps)), (vectors, int(wide))
    if isinstance(schedule, TiledSchedule):
        for masks in tiled_alignment(built, schedule):
            _aligned(built, masks, values)
        down = values[next(i for i, f in enumerate(fields) if f.name == f"n{schedule.down}")]
        tiles = schedule.tiles(down, extent)
        return rows // down * math.prod(tiles), tiles
    if isinstance(schedule, SerialSchedule):
        return -(-rows * extent // schedule.threads), ()
    assert isinstance(schedule, StridedSchedule)
    widths = {a.name: schedule.width for a in accesses}
    _aligned(built, alignment_of(fields, accesses, widths), values)
    return schedule.blocks(rows, extent), (schedule.tiles(extent),)


def _aligned(built: Built, masks: tuple[tuple[int, int, int], ...], values: list[int]) -> None:
    if any(values[i] * by & mask for i, by, mask in masks):
        raise BadLaunch(
            built.source.name,
            "its tensors' strides call for narrower accesses than it has",
            "Give it aligned ones.",
        )
