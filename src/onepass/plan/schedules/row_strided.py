"""CUDA: reductions along a dimension with others inside it. Neighbouring threads take neighbouring inner elements."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.device import Device
from onepass.ir.kernel import Kernel


@dataclass(frozen=True)
class StridedSchedule:
    """Each thread walks the reduced dimension of one inner element, once a phase."""

    threads: int = 128
    family: str = "row-strided"

    def explain(self) -> str:
        return f"{self.threads} threads a block, a thread an inner element"


def schedules(kernel: Kernel, device: Device) -> list[StridedSchedule] | str:
    return [StridedSchedule()] if kernel.axis == "inner" else "the reduction has no inner dimension"
