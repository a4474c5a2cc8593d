"""How far a result may be from the interpreter.

Each element has a *unit*, what no fp32 computation can avoid there: half a unit in the last place of the output's dtype,
and how far the interpreted value moves when each operation is off by what the prelude states for it. And it has *eager's
own error*: what eager's was, or how far the interpreted value moves when each ATen op's result is rounded to its dtype
another way, whichever is more (at one element eager may be right by luck). Both moves are the largest of a few runs of the
interpreter with random errors. A result may be off by twice eager's own error and four units: the runs find about half
of the worst case, and a fused kernel orders its sums otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.oracle import Oracle
from onepass.dtypes import from_torch
from onepass.ir.cluster import Cluster, Load, Map, Node, Program, Reduce
from onepass.ir.interpret import Watch
from onepass.ops.table import OPS

FLOOR = 4.0
RUNS = 3
ROUNDING = 2.0**-24
FEW_ULP = 4 * ROUNDING  # what the preludes state for functions without a suffix
HALF = 2e-5  # and for those that end in _h, which kernels use that store nothing wider than 16 bits
EXACT = frozenset(
    [
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
    ]
)


class _Random:
    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)

    def off(self, x: torch.Tensor, by: float) -> torch.Tensor:
        return x * (1 + by * (2 * torch.rand(x.shape, generator=self.random, dtype=x.dtype) - 1))


class Fused(_Random):
    """Each operation off by what the prelude allows."""

    def __init__(self, half: bool, seed: int) -> None:
        super().__init__(seed)
        self.half = half

    def __call__(self, node: Node, x: torch.Tensor) -> torch.Tensor:
        if isinstance(node, Map) and node.op not in EXACT:
            return self.off(x, HALF if self.half and OPS[node.op].expr_half else FEW_ULP)
        if isinstance(node, Reduce) and node.op == "sum":
            return self.off(x, ROUNDING * max(4.0, x.numel() ** 0.5))
        return x


class Eager(_Random):
    """Each ATen op's result rounded to its dtype in some way."""

    def __init__(self, program: Program, seed: int) -> None:
        super().__init__(seed)
        self.by: dict[str, float] = {}
        for cluster in program.items:
            if isinstance(cluster, Cluster):
                read = {cluster.tensors[n.tensor].dtype for n in cluster.nodes if isinstance(n, Load)}
                for s in cluster.stores:
                    node, dtype = cluster.node(s.value), cluster.tensors[s.tensor].dtype
                    if not (
                        isinstance(node, Load)
                        or (isinstance(node, Map) and node.op in EXACT and read == {dtype})
                    ):
                        self.by[s.value] = dtype.unit_roundoff

    def __call__(self, node: Node, x: torch.Tensor) -> torch.Tensor:
        return self.off(x, self.by[node.name]) if node.name in self.by and not isinstance(node, Reduce) else x


@dataclass(frozen=True)
class Bound:
    """One output: its value in float64, and how far from it each element may be."""

    exact: torch.Tensor
    allowed: torch.Tensor
    eager: torch.Tensor

    def complaint(self, found: torch.Tensor) -> str:
        """Empty when ``found`` is near enough. NaN is near nothing but NaN."""
        if (found.dtype, found.shape) != (self.eager.dtype, self.eager.shape):
            return f"{found.dtype} {list(found.shape)}, eager {self.eager.dtype} {list(self.eager.shape)}"
        if not found.dtype.is_floating_point:
            wrong = int((found != self.exact).sum())
            return f"{wrong} of {found.numel()} elements differ" if wrong else ""
        error = (found.double() - self.exact).abs()
        near = (error <= self.allowed) | (found.isnan() & self.exact.isnan()) | (found.double() == self.exact)
        if bool(near.all()):
            return ""
        excess = torch.where(
            near, 0.0, (error / self.allowed).nan_to_num(float("inf"), float("inf"))
        ).flatten()
        at = int(excess.argmax())
        found, exact, eager, allowed = (
            float(x.flatten()[at]) for x in (found, self.exact, self.eager, self.allowed)
        )
        return (
            f"{int((~near).sum())} of {near.numel()} elements of {list(self.exact.shape)} {self.eager.dtype}; "
            f"element {at}: {found} for {exact}, allowed ± {allowed:.3g}, eager {eager}"
        )


def bounds(oracle: Oracle, eager: Sequence[torch.Tensor], half: bool) -> list[Bound]:
    """For each output; ``half`` says whether any kernel uses the short functions."""
    program = oracle.captured.program
    exact = oracle.outputs()
    ours = _moved(oracle, exact, [Fused(half, seed) for seed in range(RUNS)])
    theirs = _moved(oracle, exact, [Eager(program, seed) for seed in range(RUNS)])
    return [
        Bound(
            x, 2 * torch.maximum(t, (e.double() - x.double()).abs()) + FLOOR * (o + _half_ulp(x, e.dtype)), e
        )
        for x, o, t, e in zip(exact, ours, theirs, eager, strict=True)
    ]


def _moved(oracle: Oracle, exact: Sequence[torch.Tensor], watches: Sequence[Watch]) -> list[torch.Tensor]:
    moved = [torch.zeros_like(x, dtype=torch.float64) for x in exact]
    for watch in watches:
        for m, x, y in zip(moved, exact, oracle.outputs(watch=watch), strict=True):
            torch.maximum(m, (y.double() - x.double()).abs(), out=m)
    return moved


def _half_ulp(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    row = from_torch(dtype)
    assert row is not None
    if not dtype.is_floating_point:
        return torch.zeros_like(x, dtype=torch.float64)
    smallest = torch.finfo(
        dtype
    ).smallest_normal  # below it spacing is constant, and fp32 may be flushed to zero
    flushed = 0.0 if dtype == torch.float16 else smallest
    return row.unit_roundoff * torch.clamp(x.double().abs(), min=smallest) + flushed
