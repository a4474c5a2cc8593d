"""CUDA: element-wise work, vectors of columns one after the other over threads."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.device import Device
from onepass.ir.kernel import Kernel
from onepass.plan.schedules.row import vector_width


@dataclass(frozen=True)
class FlatSchedule:
    """Each thread takes ``steps`` vectors of ``width`` columns, a block apart.

    A launch whose tensors are not aligned to vectors takes the same kernel's path of single elements.
    """

    threads: int
    steps: int
    width: int
    family: str = "flat"

    def explain(self) -> str:
        return f"{self.threads} threads a block, {self.steps} vectors of {self.width} a thread"


def schedules(kernel: Kernel, device: Device) -> list[FlatSchedule] | str:
    if kernel.reduces:
        return "it reduces"
    width = vector_width(kernel)
    edges = [e for a in kernel.accesses for e in a.window or ()]
    while width > 1 and any(e % width for e in edges):
        width //= 2
    # Two independent vectors a thread and tensor keep 32 KB in flight on a multiprocessor; with many inputs one does.
    inputs = sum(1 for a in kernel.accesses if a.column == "unit")
    return [FlatSchedule(256, 2 if inputs <= 4 else 1, width), FlatSchedule(128, 1, width)]
