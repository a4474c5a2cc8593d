"""What the op table says of costs is what the compiler makes of the CUDA prelude, and short forms are where they pay."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import onepass.codegen
from onepass.ops.opdef import OpDef
from onepass.ops.table import OPS

PRELUDE = Path(onepass.codegen.__file__).parent / "prelude"
COSTS = tomllib.loads((PRELUDE / "costs.toml").read_text())
# Their rows count slow paths that are rarely taken, so they are bounds from above.
SLOW_PATHS = {"div", "pow"}
# A short form that saves less than this share of the instructions is one more function to trust for nothing.
WORTH = 0.15


def called(expression: str | None, name: str) -> str:
    """The prelude function that an expression is a call of."""
    match = re.fullmatch(r"op_(\w+)\([{}0-2, ]*\)", expression or "")
    return match[1] if match else name


def near(stated: float, measured: float) -> bool:
    """Within a quarter, or rounded to a whole instruction."""
    return abs(stated - measured) <= max(0.25 * measured, 0.5)


WITH_ROW = [op for op in OPS.values() if called(op.expr, op.name) in COSTS]


# One instruction there.
PLAIN_ON_THE_CPU = {"div"}


def test_functions_that_round_have_their_error_stated_for_both_targets() -> None:
    stated = tomllib.loads((PRELUDE / "cpu_costs.toml").read_text())
    expressions = [
        e
        for op in OPS.values()
        if op.operands == "float" and op.result != "bool"
        for e in (op.expr, op.expr_half)
        if e
    ]
    functions = {f for e in expressions for f in re.findall(r"op_(\w+)\(", e)}
    assert functions <= COSTS.keys()
    assert {f.removesuffix("_h") for f in functions} - PLAIN_ON_THE_CPU <= stated.keys()


def test_most_functions_of_the_prelude_are_ops() -> None:
    names = {called(op.expr, op.name) for op in WITH_ROW}
    assert {n for n in COSTS if not n.endswith("_h")} - names == set()


@pytest.mark.parametrize("op", WITH_ROW, ids=lambda op: op.name)
def test_costs_are_as_measured(op: OpDef) -> None:
    row = COSTS[called(op.expr, op.name)]
    if op.name in SLOW_PATHS:
        assert 8 <= op.cost <= row["instructions"]
    else:
        assert near(op.cost, row["instructions"])
    assert near(op.special, row["special"])
    assert (op.cost_half is None) == (op.expr_half is None)
    if op.expr_half is not None and op.cost_half is not None:
        assert called(op.expr_half, "") == called(op.expr, op.name) + "_h"
        assert near(op.cost_half, COSTS[called(op.expr_half, "")]["instructions"])


def test_a_wrong_cost_is_noticed() -> None:
    assert not near(8, 32.5) and not near(22, 33) and not near(3, 2) and not near(2, 1)
    assert near(7, 7.25) and near(2, 1.75)


def on_both_targets(name: str) -> bool:
    cuda, cpu = (
        "".join(f.read_text() for f in sorted(PRELUDE.glob(pattern)))
        for pattern in ("math*.cuh", "math*.hpp")
    )
    return f" op_{name}(" in cuda and bool(re.search(rf"\bop_{name}\b", cpu))


@pytest.mark.parametrize("op", WITH_ROW, ids=lambda op: op.name)
def test_short_forms_are_used_where_they_pay(op: OpDef) -> None:
    """Each has its error held to half an ulp of bf16 by test_cuda_prelude.py and test_prelude_math.py."""
    name = called(op.expr, op.name)
    if f"{name}_h" not in COSTS or not on_both_targets(f"{name}_h"):
        assert op.expr_half is None
        return
    saved = 1 - COSTS[f"{name}_h"]["instructions"] / COSTS[name]["instructions"]
    # GELU's tanh form is short already on CUDA; the host's has a form of its own.
    assert (op.expr_half is not None) == (saved >= WORTH or name == "gelu_tanh")
