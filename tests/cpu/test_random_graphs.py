"""Random fused graphs: the interpreter is PyTorch in float64, and kernels for the CPU and for CUDA are the interpreter.

Every row of the vocabulary is the reason for at least `EXAMPLES` graphs. The bound is in harness/tolerance.py. CUDA kernels
run under the emulator, which also finds accesses out of bounds, races and barriers that not all threads reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from harness.graphs import FLOATS, INTS, LAYOUTS, STEPS, Graph, write
from harness.oracle import Oracle, double, trace
from harness.together import Planned, changed, planned, run_emulated, run_on_cpu
from harness.tolerance import Bound, bounds
from onepass.ir.cluster import Cluster, Map, Program, Reduce
from onepass.ir.kernel import (
    Accumulate,
    ColumnLoop,
    Compute,
    IotaValue,
    Kernel,
    ReduceRow,
    RowBlock,
    Stage,
    Statement,
)
from onepass.ops.library import LIBRARY
from onepass.ops.loss import LOSSES
from onepass.ops.pointwise import POINTWISE
from onepass.ops.reduced import REDUCED
from onepass.ops.table import COMPOSITES, OPS, REDUCE

PARTS = 8
GRAPHS = 63  # of a part, so that there are 500; each row is the reason for five of them at least
EXAMPLES = 6  # for each row; the first is hypothesis's simplest graph, so five differ
MOST_OPS = 12
# Rows that no graph traced on the CPU holds; tests/cpu/test_ops.py runs them alone.
UNTRACED = {
    "rms_norm": "PyTorch opens it on the CPU",
    "round_bf16": "a cast, and only where its value is used again",
    "round_f16": "a cast, and only where its value is used again",
}
# Rows that graphs do not hold: tests/opinfo runs PyTorch's samples of each, tests/cpu/test_ops.py the element-wise ones.
ALONE = {row.name for row in (*LIBRARY, *POINTWISE, *REDUCED, *LOSSES)} | {
    "batch_norm",
    "batch_norm_of_batch",
    "batch_norm_updating",
    "batch_norm_with_update",
    "group_norm",
    "logical_xor",
    "prod",
    "repeat",
    "round_e4m3",
    "round_e5m2",
    "stack",
    "to_double",
    "wrap_i16",
    "wrap_i32",
    "wrap_i8",
    "wrap_u8",
}


class Draws:
    def __init__(self, draw: Callable[..., Any]) -> None:
        self.draw = draw

    def integer(self, low: int, high: int) -> int:
        number: int = self.draw(st.integers(low, high))
        return number


@st.composite
def graphs(draw: Callable[..., Any], row: str) -> Graph:
    return write(Draws(draw), [row], MOST_OPS)


@dataclass
class Seen:
    """What the graphs of a part held, dead code left out."""

    texts: set[str] = field(default_factory=set)
    ops: set[str] = field(default_factory=set)
    reductions: set[str] = field(default_factory=set)
    aten: set[str] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)
    layouts: set[str] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)

    def add(self, graph: Graph, program: Program) -> None:
        self.texts.add(repr(graph))
        nodes = [n for c in program.items if isinstance(c, Cluster) for n in c.nodes]
        self.ops |= {n.op for n in nodes if isinstance(n, Map)}
        self.reductions |= {n.op for n in nodes if isinstance(n, Reduce)}
        self.aten |= {e.target for e in program.eager}
        self.dtypes |= {i.dtype for i in graph.inputs}
        self.layouts |= {i.layout for i in graph.inputs}
        self.ranks |= {len(i.shape) for i in graph.inputs}

    def missing(self, rows: list[str]) -> list[str]:
        composites = {c.name: c for c in COMPOSITES}
        return [
            row
            for row in rows
            if row not in UNTRACED
            and (
                (row in OPS and row not in self.ops)
                or (row in REDUCE and row not in self.reductions)
                or (row in composites and not self.aten.intersection(composites[row].aten))
            )
        ]


def test_every_row_has_a_step() -> None:
    rows = {*OPS, *REDUCE, *(c.name for c in COMPOSITES)}
    assert rows - set(STEPS) - ALONE == set(UNTRACED) - set(STEPS)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_graphs(part: int) -> None:
    rows = list(STEPS)[part::PARTS]
    drawn: dict[str, Graph] = {}

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,  # the same graphs each run: a test that fails now and then tells nothing
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),  # nothing fails here: kernels are compiled together, after all are drawn
        report_multiple_bugs=False,
    )
    @given(st.tuples(*(graphs(row) for row in rows)))
    def draw(batch: tuple[Graph, ...]) -> None:
        drawn.update((repr(g), g) for g in batch)

    draw()
    seen = Seen()
    check(list(drawn.values())[:GRAPHS], part % 3, seen)
    assert not seen.missing(rows)
    assert len(seen.texts) == GRAPHS >= 500 / PARTS
    assert seen.layouts == set(LAYOUTS)
    assert seen.dtypes >= set(FLOATS) and seen.dtypes & set(INTS)
    assert seen.ranks >= set(range(5)) and seen.ranks & {5, 6}


def check(batch: list[Graph], leaner: int, seen: Seen) -> None:
    cases = []
    for graph in batch:
        inputs = graph.tensors()
        traced = trace(graph.function(), inputs)
        on_cpu, on_cuda = planned(traced, inputs), planned(traced, inputs, cuda=True, leaner=leaner)
        seen.add(graph, on_cpu.captured.program)
        assert not [*on_cpu.left, *on_cuda.left], f"left to ATen{graph}"
        expected = graph.function(wide=True)(*map(double, inputs))
        for case in (on_cpu, on_cuda):
            interpreted(case, expected, graph)
        plans = (on_cpu.plan, on_cuda.plan)
        bound = bounds(Oracle(on_cpu.captured, inputs), graph.function()(*inputs), plans)
        cases.append((graph, bound, on_cpu, on_cuda))
    for (graph, bound, *_), found in zip(cases, run_on_cpu([c[2] for c in cases]), strict=True):
        assert not complaints(bound, found), f"CPU{graph}"
    for (graph, bound, *_), found in zip(cases, run_emulated([c[3] for c in cases]), strict=True):
        assert not complaints(bound, found), f"CUDA{graph}"


def interpreted(case: Planned, expected: tuple[torch.Tensor, ...], graph: Graph) -> None:
    """The program as captured and as merged, in float64."""
    merged = replace(case.captured.program, items=tuple(getattr(i, "cluster", i) for i in case.plan.items))
    oracle = Oracle(case.captured, case.inputs)
    for program in (case.captured.program, merged):
        for found, reference in zip(oracle.outputs(program), expected, strict=True):
            # The same operations in float64; only sums are taken in another order, and no value passes 2000.
            assert found.is_floating_point() == reference.is_floating_point(), graph
            torch.testing.assert_close(
                found.to(reference.dtype), reference, rtol=1e-11, atol=1e-11, msg=lambda m: f"{m}{graph}"
            )


def complaints(bound: list[Bound], found: list[torch.Tensor]) -> list[str]:
    return [c for b, f in zip(bound, found, strict=True) if (c := b.complaint(f))]


# Kernels that are wrong must fail the same comparison.


def layer_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, None, 1e-5)


def softmax(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(F.gelu(x * 0.25 - 11) * w, -1)


def middle(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.reshape(2, -1, x.shape[-1]).sum(1) * w


def without_column_1(kernel: Kernel) -> Kernel:
    """Each reduction leaves out one element of the row (of a reduction in the middle: one row of the inner dimension)."""
    nothing = {"sum": 0.0, "max": -math.inf, "min": math.inf}
    stages: list[Stage] = []
    for i, stage in enumerate(kernel.stages):
        if not isinstance(stage, ColumnLoop):
            stages.append(stage)
            continue
        column, skip = f"column{i}", f"skip{i}"
        body: list[Statement] = []
        for s in stage.body:
            if isinstance(s, Accumulate):
                body.append(Compute(f"{s.name}s", "where", (skip, nothing[s.op], s.value), "float"))
                s = replace(s, value=f"{s.name}s")
            body.append(s)
        start: tuple[Statement, ...] = (
            IotaValue(column, 0, (0,) * len(kernel.outer), 1, "int"),
            Compute(skip, "eq", (column, 1), "bool"),
        )
        stages.append(ColumnLoop((*start, *body)))
    return replace(kernel, stages=tuple(stages))


def sums_in_16_bits(kernel: Kernel) -> Kernel:
    stages: list[Stage] = []
    for stage in kernel.stages:
        if isinstance(stage, ColumnLoop):
            body = tuple(
                replace(s, name=f"{s.name}s") if isinstance(s, Accumulate) else s for s in stage.body
            )
            stages.append(ColumnLoop(body))
        elif isinstance(stage, ReduceRow):
            stages.append(replace(stage, name=f"{stage.name}s"))
            stages.append(RowBlock((Compute(stage.name, "round_bf16", (f"{stage.name}s",), "float"),)))
        else:
            stages.append(stage)
    return replace(kernel, stages=tuple(stages))


def test_wrong_kernels_are_rejected() -> None:
    """At bf16 a softmax whose sum is rounded to 16 bits is as good as eager's, whose exponentials are."""
    made = []
    for cols in (37, 100):
        for dtype in (torch.float32, torch.bfloat16):
            g = torch.Generator().manual_seed(cols)
            x = (40 + 9 * torch.rand(6, cols, generator=g)).to(
                dtype
            )  # away from zero: a mean that must be exact
            w = (0.5 + torch.rand(cols, generator=g)).to(dtype)
            for function in (layer_norm, softmax, middle):
                wrong = [without_column_1]
                if dtype == torch.float32 or function is layer_norm:
                    wrong.append(sums_in_16_bits)
                for cuda in (False, True):
                    if cuda and function is middle:  # whose schedule knows no positions
                        wrong = [change for change in wrong if change is not without_column_1]
                    case = planned(trace(function, [x, w]), [x, w], cuda)
                    bound = bounds(Oracle(case.captured, [x, w]), [function(x, w)], [case.plan])
                    made.append(
                        (
                            bound,
                            case,
                            [changed(case, c) for c in wrong],
                            (function.__name__, cols, dtype, cuda),
                        )
                    )
    for cuda, run in ((False, run_on_cpu), (True, run_emulated)):
        mine = [m for m in made if m[3][-1] is cuda]
        results = iter(run([c for _, case, wrong, _ in mine for c in (case, *wrong)]))
        for bound, _, wrong, what in mine:
            assert not complaints(bound, next(results)), what
            for i, _ in enumerate(wrong):
                assert complaints(bound, next(results)), (*what, i)
