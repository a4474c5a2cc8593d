"""CPU: rows over threads, columns along vectors of 16 lanes; what a later phase needs is in the first-level cache."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.ir.kernel import Kernel
from onepass.ir.symbol import Size, product

# Elements of a row that one piece of work covers when nothing reduces along it: 64 KiB of fp32, a share of the
# second-level cache, and some hundred microseconds less than one thread start.
CHUNK = 16384
LANES = 16


@dataclass(frozen=True)
class CpuSchedule:
    """How a kernel runs on the host. ``unroll`` vectors of 16 columns a step, each with accumulators of its own."""

    unroll: int
    family: str = "cpu"

    def explain(self) -> str:
        return f"rows over threads, {self.unroll} vectors of {LANES} columns a step"


def schedule(kernel: Kernel) -> CpuSchedule:
    return CpuSchedule(unroll=4 if kernel.reduces and kernel.axis == "reduced" else 1)


def chunk(kernel: Kernel) -> int:
    """Elements of a row in one piece of work; 0 when a row is one piece."""
    if kernel.axis == "inner":
        return 4 * LANES
    return 0 if kernel.reduces else CHUNK


def pieces_extent(kernel: Kernel) -> Size:
    """The size that chunks divide."""
    return kernel.inner if kernel.axis == "inner" else kernel.cols


def rows(kernel: Kernel) -> Size:
    return product(kernel.outer)
