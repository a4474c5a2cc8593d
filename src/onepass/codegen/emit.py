"""Kernel IR and a schedule → source text."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.codegen import cpu, cuda
from onepass.codegen.arguments import Field
from onepass.ir.kernel import Kernel
from onepass.plan.choose import Schedule
from onepass.plan.schedules.cpu import CpuSchedule


@dataclass(frozen=True)
class Source:
    """A printed kernel: its entry point's name, its text and the argument block that a call packs."""

    name: str
    text: str
    block: tuple[Field, ...]


def emit(kernel: Kernel, schedule: Schedule, name: str) -> Source:
    if isinstance(schedule, CpuSchedule):
        block, text = cpu.emit(kernel, name, schedule)
    else:
        block, text = cuda.emit(kernel, name, schedule)
    return Source(name, text, block)
