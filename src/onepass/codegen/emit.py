"""Kernel IR and a schedule → source text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onepass.codegen.arguments import Field
from onepass.codegen.cpu import CpuPrinter
from onepass.codegen.cpu_parts import PartsPrinter
from onepass.codegen.cuda_flat import FlatPrinter
from onepass.codegen.cuda_row import RowPrinter
from onepass.codegen.cuda_row_cluster import ClusterPrinter
from onepass.codegen.cuda_row_grid import GridPrinter
from onepass.codegen.cuda_row_serial import SerialPrinter
from onepass.codegen.cuda_row_stream import StreamPrinter
from onepass.codegen.cuda_row_strided import StridedPrinter
from onepass.codegen.cuda_row_walk import WalkPrinter
from onepass.codegen.cuda_tiled import TiledPrinter
from onepass.ir.kernel import Kernel
from onepass.plan.choose import Schedule
from onepass.plan.schedules.cpu import CpuSchedule
from onepass.plan.schedules.cpu_parts import PartsSchedule
from onepass.plan.schedules.flat import FlatSchedule
from onepass.plan.schedules.row import RowSchedule
from onepass.plan.schedules.row_cluster import ClusterSchedule
from onepass.plan.schedules.row_grid import GridSchedule
from onepass.plan.schedules.row_serial import SerialSchedule
from onepass.plan.schedules.row_stream import StreamSchedule
from onepass.plan.schedules.row_strided import StridedSchedule
from onepass.plan.schedules.row_walk import WalkSchedule
from onepass.plan.schedules.tiled import TiledSchedule

PRINTERS: dict[type[Schedule], Any] = {
    CpuSchedule: CpuPrinter,
    PartsSchedule: PartsPrinter,
    FlatSchedule: FlatPrinter,
    RowSchedule: RowPrinter,
    ClusterSchedule: ClusterPrinter,
    GridSchedule: GridPrinter,
    StreamSchedule: StreamPrinter,
    SerialSchedule: SerialPrinter,
    StridedSchedule: StridedPrinter,
    TiledSchedule: TiledPrinter,
    WalkSchedule: WalkPrinter,
}


@dataclass(frozen=True)
class Source:
    """A printed kernel: its entry point's name, its text and the argument block that a call packs.

    The blocks of one whose ``together`` is set wait for each other: it must be launched so that all run at once.
    """

    name: str
    text: str
    block: tuple[Field, ...]
    together: bool = False


def emit(kernel: Kernel, schedule: Schedule, name: str) -> Source:
    printer = PRINTERS[type(schedule)](kernel, name, schedule)
    return Source(name, printer.text(), printer.block, isinstance(schedule, GridSchedule))
