"""How far a result may be from the interpreter.

An element's error is measured in units of what no fp32 computation can avoid there: half a unit in the last place of the
output's dtype, and how far the interpreted value moves when each operation in it is off by what the prelude states for
it (the interpreter runs again with random errors of that size). The largest error in these units may be twice eager's
own plus a floor of four: three runs with random signs find about half of the worst case, and a fused kernel orders its
sums otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.oracle import Oracle
from onepass.build import Plan
from onepass.dtypes import from_torch
from onepass.ir.cluster import Map, Node, Program, Reduce
from onepass.ops.table import OPS

FLOOR = 4.0
RUNS = 3
ROUNDING = 2.0**-24
FEW_ULP = 4 * ROUNDING  # what the preludes state for functions without a suffix
HALF = 2e-5  # and for those that end in _h
# Ops that round nothing.
EXACT = frozenset(
    (
        "copy",
        "neg",
        "abs",
        "relu",
        "maximum",
        "minimum",
        "where",
        "to_float",
        "sign",
        "floor",
        "ceil",
        "trunc",
        "round",
        "round_bf16",
        "round_f16",
    )
)


class Rounding:
    """Puts a random error on each value, as large as the prelude allows."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.half = {n.name for k in plan.kernels if k.kernel.half for n in k.cluster.nodes}
        self.random = torch.Generator().manual_seed(seed)

    def __call__(self, node: Node, x: torch.Tensor) -> torch.Tensor:
        if isinstance(node, Map) and node.op not in EXACT:
            short = node.name in self.half and OPS[node.op].expr_half is not None
            return self.off(x, HALF if short else FEW_ULP)
        if isinstance(node, Reduce) and node.op == "sum":
            return self.off(x, ROUNDING * max(4.0, x.numel() ** 0.5))
        return x

    def off(self, x: torch.Tensor, by: float) -> torch.Tensor:
        return x * (1 + by * (2 * torch.rand(x.shape, generator=self.random, dtype=x.dtype) - 1))


def unavoidable(
    oracle: Oracle, program: Program, plan: Plan, dtypes: Sequence[torch.dtype]
) -> list[torch.Tensor]:
    """The unit of each output's errors, element by element."""
    exact = oracle.outputs(program)
    moved = [torch.zeros_like(x, dtype=torch.float64) for x in exact]
    for seed in range(RUNS):
        for m, x, y in zip(moved, exact, oracle.outputs(program, Rounding(plan, seed)), strict=True):
            torch.maximum(m, (y.double() - x.double()).abs(), out=m)
    return [m + _half_ulp(x, d) for m, x, d in zip(moved, exact, dtypes, strict=True)]


def _half_ulp(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    row = from_torch(dtype)
    assert row is not None
    if not dtype.is_floating_point:
        return torch.ones_like(x, dtype=torch.float64)
    smallest = torch.finfo(dtype).smallest_normal
    # Below the smallest normal number spacing is constant; fp32 results there may be flushed to zero.
    return row.unit_roundoff * torch.clamp(x.double().abs(), min=smallest) + (
        smallest if dtype != torch.float16 else 0
    )


def complaint(found: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor, unit: torch.Tensor) -> str:
    """Empty when ``found`` is near enough."""
    if (found.dtype, found.shape) != (eager.dtype, eager.shape):
        return f"{found.dtype} {list(found.shape)}, eager {eager.dtype} {list(eager.shape)}"
    if not found.dtype.is_floating_point:
        wrong = int((found != exact).sum())
        return f"{wrong} of {found.numel()} elements differ" if wrong else ""
    if not found.numel():
        return ""
    ours = ((found.double() - exact).abs() / unit).flatten()
    theirs = float(((eager.double() - exact).abs() / unit).max())
    at = int(ours.nan_to_num(float("inf"), float("inf")).argmax())
    allowed = 2 * theirs + FLOOR
    if bool(ours[at] <= allowed):
        return ""
    return (
        f"error {float(ours[at]):.3g} units at element {at} of {list(found.shape)} {found.dtype}, "
        f"eager's own {theirs:.3g}: "
        f"{float(found.flatten()[at])} for {float(exact.flatten()[at])}, eager {float(eager.flatten()[at])}"
    )
