"""CUDA: reductions along a dimension with others inside it, where `row_strided` does not have the values' classes.

Neighbouring threads take neighbouring inner elements.
"""

from __future__ import annotations

from dataclasses import dataclass

from onepass.device import Device
from onepass.ir.kernel import ColumnLoop, IotaValue, Kernel, ReduceRow, RowBlock


@dataclass(frozen=True)
class SerialSchedule:
    """Each thread walks the reduced dimension of one inner element, once a phase."""

    threads: int = 128
    family: str = "row-serial"

    def explain(self) -> str:
        return f"{self.threads} threads a block, a thread an inner element"


def schedules(kernel: Kernel, device: Device) -> list[SerialSchedule] | str:
    return [SerialSchedule()] if kernel.axis == "inner" else "the reduction has no inner dimension"


def needed(kernel: Kernel) -> bool:
    """Whether a kernel has what schedules for fp32 do not know: other classes, positions."""
    body = [s for stage in kernel.stages if isinstance(stage, (RowBlock, ColumnLoop)) for s in stage.body]
    return bool(
        any(isinstance(s, ReduceRow) and s.kind != "float" for s in kernel.stages)
        or any(isinstance(s, IotaValue) or getattr(s, "kind", "") == "double" for s in body)
    )
