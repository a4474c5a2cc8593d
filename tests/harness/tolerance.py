"""How far a result may be from the interpreter.

*What fp32 can't avoid*: each operation is off by what the prelude states for it, and each value that a plan stores
between two kernels is rounded to its dtype. The interpreter runs once for each of these with that one error in it; an
element moves at most, to first order, by the sum of the moves.

*Eager's own error*: what it was, or how far the interpreted value moves when the result of every ATen op is rounded to
its dtype in some other way (the largest of a few runs), whichever is more: at one element eager may be right by luck.

A result may be off by twice eager's own error plus a floor: what fp32 can't avoid, and half a unit in the last place.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import torch

from harness.oracle import Oracle
from onepass.build import Plan
from onepass.dtypes import from_torch
from onepass.ir.cluster import Cluster, Load, Map, Node, Program, Reduce, operands
from onepass.ir.interpret import Watch
from onepass.ops.table import OPS

RUNS = 3
COSTS = {
    name: tomllib.loads(resources.files("onepass.codegen").joinpath(f"prelude/{name}").read_text())
    for name in ("costs.toml", "cpu_costs.toml")
}
ROUNDING = 2.0**-24
FEW_ULP = 4 * ROUNDING  # of an operation whose error no prelude states: +, *, and CUDA's own pow
# Casts that a program asks for, which kernels do and the interpreter does not.
CASTS = {"round_f16": 2.0**-11, "round_bf16": 2.0**-8}
# Roundings of a compute class beside those of fp32; the C library's functions of float64 are good to its last places.
WIDER = {"float": 1.0, "double": 2.0**-29}
MOVES_OR_PICKS = {"copy", "neg", "abs", "relu", "maximum", "minimum", "where"}
EXACT = MOVES_OR_PICKS | {"to_float", "sign", "floor", "ceil", "trunc", "round"}


@dataclass(frozen=True)
class Off:
    """One value is too large, or each term of one sum."""

    name: str
    by: float

    def __call__(self, node: Node, x: torch.Tensor) -> torch.Tensor:
        return x + self.by * x.abs() if node.name == self.name else x


class OffFactors(Off):
    """Each factor of one product is too large by the same ratio: the product by as many times that as it has factors."""

    def __call__(self, node: Node, x: torch.Tensor) -> torch.Tensor:
        return x + self.by * x if node.name == self.name else x


class Rounded:
    """Each ATen op's result rounded to its dtype in some way."""

    def __init__(self, program: Program, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.by: dict[str, float] = {}
        for cluster in program.items:
            if isinstance(cluster, Cluster):
                read = {cluster.tensors[n.tensor].dtype for n in cluster.nodes if isinstance(n, Load)}
                inside = {o for n in cluster.nodes for o in operands(n)}
                for s in cluster.stores:
                    if s.value in inside:
                        continue  # the op goes on with what it has, not with what it wrote: statistics of a norm
                    node, dtype = cluster.node(s.value), cluster.tensors[s.tensor].dtype
                    moved = isinstance(node, Load) or (isinstance(node, Map) and node.op in EXACT)
                    if not (isinstance(node, Reduce) or (moved and read == {dtype})):
                        self.by[s.value] = dtype.unit_roundoff

    def __call__(self, node: Node, x: torch.Tensor) -> torch.Tensor:
        by = self.by.get(node.name)
        if by is None:
            return x
        return x * (1 + by * (2 * torch.rand(x.shape, generator=self.random, dtype=x.dtype) - 1))


@cache
def stated(op: str, half: bool) -> float:
    """The larger of the errors that the two preludes state for an op's functions; the tests of each hold it to that."""
    if op in CASTS:
        return CASTS[op]
    found = FEW_ULP
    for name in re.findall(r"\bop_(\w+)", (half and OPS[op].expr_half) or OPS[op].expr):
        cuda = COSTS["costs.toml"].get(name, {})
        cpu = COSTS["cpu_costs.toml"].get(name.removesuffix("_h"), {})
        units = cpu.get("half" if name.endswith("_h") and "half" in cpu else "fp32", {}).get("units", 0.0)
        found = max(found, cuda.get("max_error", 0.0), units * ROUNDING)
    return found


def unavoidable(program: Program, plans: Sequence[Plan]) -> Iterator[Off]:
    """The errors that kernels of these plans may make, as errors in the captured program."""
    half = any(k.kernel.half for p in plans for k in p.kernels)
    between = {t for p in plans for k in p.kernels for t in k.cluster.reads}
    for cluster in program.items:
        if not isinstance(cluster, Cluster):
            continue
        for node in cluster.nodes:
            if isinstance(node, Map) and node.op not in EXACT and node.kind in WIDER:
                yield Off(
                    node.name, stated(node.op, half) if node.kind == "float" else FEW_ULP * WIDER[node.kind]
                )
            elif isinstance(node, Reduce) and node.op == "sum" and node.kind in WIDER:
                terms = cluster.space.reduced
                worst = max(4.0, float(terms) ** 0.5 if isinstance(terms, int) else 64.0)
                yield Off(node.name, ROUNDING * WIDER[node.kind] * worst)
            elif isinstance(node, Reduce) and node.op == "prod" and node.kind in WIDER:
                yield OffFactors(node.name, ROUNDING * WIDER[node.kind])
        for s in cluster.stores:
            dtype = cluster.tensors[s.tensor].dtype
            if s.tensor in between and dtype.kind in WIDER:
                yield Off(s.value, dtype.unit_roundoff)


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
        got, exact, eager, allowed = (
            float(x.flatten()[at]) for x in (found, self.exact, self.eager, self.allowed)
        )
        return (
            f"{int((~near).sum())} of {near.numel()} elements of {list(self.exact.shape)} {self.eager.dtype}; "
            f"element {at}: {got} for {exact}, allowed ± {allowed:.3g}, eager {eager}"
        )


def bounds(oracle: Oracle, eager: Sequence[torch.Tensor], plans: Sequence[Plan]) -> list[Bound]:
    """For each output of a captured program, whichever of the plans made its kernels."""
    program = oracle.captured.program
    exact = oracle.outputs()
    floor = [_half_ulp(x, e.dtype) for x, e in zip(exact, eager, strict=True)]
    for off in unavoidable(program, plans):
        floor = [f + m for f, m in zip(floor, _moves(oracle, exact, off), strict=True)]
    own = [(e.double() - x.double()).abs() for x, e in zip(exact, eager, strict=True)]
    for seed in range(RUNS):
        moved = _moves(oracle, exact, Rounded(program, seed))
        own = [torch.maximum(o, m) for o, m in zip(own, moved, strict=True)]
    return [Bound(x, 2 * o + f, e) for x, o, f, e in zip(exact, own, floor, eager, strict=True)]


def _moves(oracle: Oracle, exact: Sequence[torch.Tensor], watch: Watch) -> list[torch.Tensor]:
    found = oracle.outputs(watch=watch)
    return [(y.double() - x.double()).abs() for x, y in zip(exact, found, strict=True)]


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
