"""CPU: rows over threads, columns along vectors of 16 lanes; what a later phase needs is in the first-level cache."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.device import last_cache_bytes
from onepass.ir.kernel import ColumnLoop, Compute, Kernel
from onepass.ir.symbol import Size
from onepass.ops.table import OPS

# Elements of a row that one piece of work covers when nothing reduces along it: 64 KiB of fp32, a share of the
# second-level cache, and some hundred microseconds less than one thread start.
CHUNK = 16384
LANES = 16


# A phase that only loads, adds and multiplies is fastest with four vectors in flight; one that computes exp, tanh or
# GELU gains nothing beyond two, and with four its constants spill (Zen 3, 2026-11-30: within 3 % and 10 %).
UNROLL, UNROLL_HEAVY, HEAVY_COST = 4, 2, 6


@dataclass(frozen=True)
class CpuSchedule:
    """How a kernel runs on the host.

    ``unroll`` vectors of 16 columns a step, each with accumulators of its own, where the work is light.
    ``stream_bytes``: an fp32 output of this size or more is stored past the caches.
    """

    unroll: int
    stream_bytes: int
    family: str = "cpu"

    def explain(self) -> str:
        return (
            f"rows over threads, up to {self.unroll} × {LANES} columns a step, fp32 outputs from "
            f"{self.stream_bytes >> 20} MiB on stored past the caches"
        )

    def unroll_of(self, loop: ColumnLoop) -> int:
        heavy = any(OPS[s.op].cost >= HEAVY_COST for s in loop.body if isinstance(s, Compute))
        return min(self.unroll, UNROLL_HEAVY) if heavy else self.unroll


def schedule(kernel: Kernel) -> CpuSchedule:
    # A quarter of the last cache. Measured (Zen 3, 32 MiB of cache, LayerNorm fp32 and a consumer of its output,
    # 2026-11-30): from 4 MiB on the two together take 0.82 of the time, at 2 MiB 1.2.
    return CpuSchedule(UNROLL if kernel.reduces and kernel.axis == "reduced" else 1, last_cache_bytes() // 4)


def chunk(kernel: Kernel) -> int:
    """Elements of a row in one piece of work; 0 when a row is one piece."""
    if kernel.axis == "inner":
        return 4 * LANES
    return 0 if kernel.reduces else CHUNK


def pieces_extent(kernel: Kernel) -> Size:
    """The size that chunks divide."""
    return kernel.inner if kernel.axis == "inner" else kernel.cols
