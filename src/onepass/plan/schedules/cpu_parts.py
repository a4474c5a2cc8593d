"""CPU, rows longer than a part: each part is reduced alone, and what parts leave is combined in their order.

Where a part ends is a matter of the column alone, so that a row has the same bits whichever threads have its parts. A call
with fewer rows than threads runs a phase after another, each over all parts; the others walk a row's parts in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from onepass.ir.kernel import (
    Accumulate,
    Choose,
    ColumnLoop,
    Compute,
    IotaValue,
    Keep,
    Kept,
    Kernel,
    LoadValue,
    ReduceRow,
    RowBlock,
    Statement,
    StoreValue,
)
from onepass.plan.schedules.cpu import CpuSchedule, schedule

# Columns: 256 KiB of fp32, which takes one thread some 20 us, ten times what it takes to start one.
PART = 65536
SUM_BYTES = 8  # of what a part leaves of one reduction

_PLAIN = (Accumulate, Choose, Compute, IotaValue, Keep, Kept, LoadValue, StoreValue)


@dataclass(frozen=True)
class PartsSchedule(CpuSchedule):
    """`CpuSchedule` for rows in parts."""

    family: str = "cpu-parts"

    def explain(self) -> str:
        return f"{super().explain()}; rows in parts of {PART} columns, over threads where rows are few"


def fits(kernel: Kernel) -> bool:
    """Whether rows are reduced, may be longer than a part, and each column needs no other one but through reductions.

    A table's row may be chosen by what a reduction found, which is not known in the phases before it.
    """
    return (
        kernel.axis == "reduced"
        and sums(kernel) > 0
        and not kernel.blocks
        and not (isinstance(kernel.cols, int) and kernel.cols <= PART)
        and all(type(s) in _PLAIN for s in _statements(kernel))
        and not any(a.index for a in kernel.accesses)
    )


def parts(kernel: Kernel) -> PartsSchedule:
    whole = schedule(kernel)
    return PartsSchedule(whole.unroll, whole.stream_bytes)


def phases(kernel: Kernel) -> int:
    """Launches where parts of a row have threads of their own: a loop each, and what is stored once a row after them."""
    return len(kernel.loops) + stores_rows(kernel)


def stores_rows(kernel: Kernel) -> bool:
    blocks = [stage for stage in kernel.stages if isinstance(stage, RowBlock)]
    return any(isinstance(s, StoreValue) for block in blocks for s in block.body)


def sums(kernel: Kernel) -> int:
    """Reductions, of each of which a part leaves a value."""
    return sum(isinstance(stage, ReduceRow) for stage in kernel.stages)


def _statements(kernel: Kernel) -> list[Statement]:
    return [s for stage in kernel.stages if isinstance(stage, (RowBlock, ColumnLoop)) for s in stage.body]
