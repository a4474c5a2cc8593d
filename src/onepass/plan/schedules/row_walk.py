"""CUDA: a block walks a row and reads it again in each phase: any length, class and strides of the columns."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.device import Device
from onepass.ir.kernel import Kernel
from onepass.plan.schedules.row import vector_width


@dataclass(frozen=True)
class WalkSchedule:
    """``lanes`` threads walk a row by vectors of ``width``. Column c belongs to lane (c / width) mod lanes."""

    lanes: int
    width: int
    family: str = "row-walk"

    @property
    def threads(self) -> int:
        return self.lanes

    def explain(self) -> str:
        return f"{self.lanes} lanes a row, vectors of {self.width}, the row read again in each phase"


def schedules(kernel: Kernel, device: Device) -> list[WalkSchedule] | str:
    if kernel.axis != "reduced":
        return "the reduction has an inner dimension"
    if any(a.window for a in kernel.accesses):
        return "too_large: a concatenation in a row that does not fit in registers"
    return [WalkSchedule(512, vector_width(kernel))]
