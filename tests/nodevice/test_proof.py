"""Statements about indices: what is proven must hold at every index of every possible size."""

from __future__ import annotations

import itertools

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.capture import proof
from onepass.capture.proof import (
    FALSE,
    TRUE,
    AllOf,
    Formula,
    Linear,
    NonNegative,
    all_of,
    any_of,
    at_least,
    is_valid,
    negation,
    rename,
)

SIZE = sympy.Symbol("s", integer=True)
LARGEST = 5
# One size from 2 to LARGEST, and two indices below it.
KNOWN = (
    Linear.index(-1),
    Linear.index(-2),
    Linear(-1, ((SIZE, 1),)) - Linear.index(-1),
    Linear(-1, ((SIZE, 1),)) - Linear.index(-2),
    Linear(-2, ((SIZE, 1),)),
    Linear(LARGEST, ((SIZE, -1),)),
)
POINTS = [
    {SIZE: size, -1: keys, -2: queries}
    for size in range(2, LARGEST + 1)
    for keys, queries in itertools.product(range(size), repeat=2)
]

coefficients = st.integers(-3, 3)
lines = st.builds(
    lambda c, a, b, s: Linear.of(c, {-1: a, -2: b, SIZE: s}),
    st.integers(-6, 6),
    coefficients,
    coefficients,
    coefficients,
)
formulas = st.recursive(
    st.builds(lambda line: at_least(line, 0), lines),
    lambda parts: st.one_of(
        st.lists(parts, min_size=1, max_size=3).map(lambda given: all_of(*given)),
        st.lists(parts, min_size=1, max_size=3).map(lambda given: any_of(*given)),
        parts.map(negation),
    ),
    max_leaves=6,
)


def value(line: Linear, point: dict[object, int]) -> int:
    return line.constant + sum(factor * point[variable] for variable, factor in line.terms)


def holds(formula: Formula, point: dict[object, int]) -> bool:
    if isinstance(formula, NonNegative):
        return value(formula.linear, point) >= 0
    parts = (holds(part, point) for part in formula.parts)
    return all(parts) if isinstance(formula, AllOf) else any(parts)


@settings(max_examples=300, deadline=None)
@given(formulas)
def test_what_is_proven_holds_everywhere(formula: Formula) -> None:
    everywhere = all(holds(formula, point) for point in POINTS)
    assert everywhere or not is_valid(formula, KNOWN)


@settings(max_examples=200, deadline=None)
@given(formulas)
def test_negation_is_the_opposite(formula: Formula) -> None:
    assert all(holds(negation(formula), point) is not holds(formula, point) for point in POINTS)


@settings(max_examples=200, deadline=None)
@given(lines)
def test_a_single_inequality_over_a_range_is_decided(line: Linear) -> None:
    everywhere = all(value(line, point) >= 0 for point in POINTS)
    assert is_valid(at_least(line, 0), KNOWN) is everywhere


def test_a_prover_that_is_off_by_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = proof._has_no_solution
    monkeypatch.setattr(proof, "_has_no_solution", lambda given: right([line - 1 for line in given]))
    with pytest.raises(AssertionError):
        test_what_is_proven_holds_everywhere()


def test_known_statements() -> None:
    keys, queries, size = Linear.index(-1), Linear.index(-2), Linear(0, ((SIZE, 1),))
    assert is_valid(at_least(queries, 0), KNOWN)
    assert is_valid(at_least(size, keys + 1), KNOWN)
    assert is_valid(any_of(at_least(queries, keys), at_least(keys, queries + 1)), KNOWN)
    assert is_valid(at_least(keys * 2, 1), [Linear(-1) + keys])
    assert not is_valid(at_least(queries, keys), KNOWN)
    assert not is_valid(FALSE, KNOWN)
    assert is_valid(TRUE, ())
    assert is_valid(FALSE, [Linear(-1)])


def test_a_product_of_sizes_is_an_atom() -> None:
    other = sympy.Symbol("t", integer=True)
    line = Linear.size(3 * SIZE * other + 2 * SIZE - 7)
    assert line is not None
    assert dict(line.terms) == {SIZE * other: 3, SIZE: 2}
    assert Linear.size(SIZE / 2) is None
    shifted = rename(at_least(Linear.index(-1), 0), {-1: Linear.index(-2) - 3})
    assert shifted == at_least(Linear.index(-2), 3)


def test_work_is_bounded() -> None:
    many = [any_of(at_least(Linear.index(-1), i), at_least(Linear.index(-2), i)) for i in range(1, 40)]
    assert not is_valid(negation(all_of(*many)), KNOWN)
