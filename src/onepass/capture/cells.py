"""What one element of an index-arithmetic tensor is, as a function of its own index.

A boolean is a formula of linear inequalities. A number is a list of cases (formula, value) of which exactly
one holds at each index; a value is linear in the indices and sizes, or a floating constant. What cannot be
said so, or would not be the same in every floating dtype, raises Unreadable.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping

import torch

from onepass.capture.proof import (
    FALSE,
    TRUE,
    Formula,
    Linear,
    all_of,
    any_of,
    at_least,
    negation,
    rename,
)

Value = Linear | float
Cases = tuple[tuple[Formula, Value], ...]
Cell = Formula | Cases

# A tensor held in memory has fewer than 2**40 elements: with these limits no index expression leaves int64,
# so the tensor's arithmetic is that of the integers.
_MAX_CONSTANT = 2**40
_MAX_FACTOR = 2**20
# The masks of the models measured have at most 2 cases (docs/notes/003-real-graphs.md); the limit keeps
# a reading short.
_MAX_CASES = 16
# Floats on which no floating dtype rounds.
_PLAIN = (0.0, 1.0, -1.0, float("inf"), float("-inf"))


class Unreadable(Exception):
    """An element is no function of its index that a cell can hold; never leaves the reading of a graph."""


def checked(value: Linear) -> Linear:
    """The value, if int64 arithmetic on it cannot overflow."""
    if abs(value.constant) > _MAX_CONSTANT or any(abs(factor) > _MAX_FACTOR for _, factor in value.terms):
        raise Unreadable
    return value


def renamed(cell: Cell, dims: Mapping[int, Linear]) -> Cell:
    """The cell with index variables substituted."""
    if not isinstance(cell, tuple):
        return rename(cell, dims)
    return few((rename(g, dims), v.rename(dims) if isinstance(v, Linear) else v) for g, v in cell)


def cases(cell: Cell) -> Cases:
    """The cell as numbers; a boolean is one or zero."""
    return cell if isinstance(cell, tuple) else few(((cell, Linear(1)), (negation(cell), Linear(0))))


def condition(cell: Cell) -> Formula:
    """The cell as a boolean: where it is not zero."""
    if not isinstance(cell, tuple):
        return cell
    return any_of(*(all_of(guard, compare("ne", value, Linear(0))) for guard, value in cell))


def few(given: Iterable[tuple[Formula, Value]]) -> Cases:
    """The cases that can occur, if they are not too many."""
    kept = tuple(case for case in given if case[0] != FALSE)
    if len(kept) > _MAX_CASES:
        raise Unreadable
    return kept


def select(chosen: Formula, yes: Cases, no: Cases) -> Cases:
    """yes where the formula holds, no elsewhere."""
    return few(
        (all_of(side, guard), value)
        for side, options in ((chosen, yes), (negation(chosen), no))
        for guard, value in options
    )


def pairs(left: Cell, right: Cell) -> Iterator[tuple[Formula, Value, Value]]:
    """Every combination of cases that can occur, with the formula under which it does."""
    for guard_left, value_left in cases(left):
        for guard_right, value_right in cases(right):
            guard = all_of(guard_left, guard_right)
            if guard != FALSE:
                yield guard, value_left, value_right


def as_dtype(cell: Cell, dtype: torch.dtype) -> Cell:
    """The cell converted as ``Tensor.to`` converts."""
    if dtype is torch.bool:
        return condition(cell)
    return tuple((guard, _number(value, dtype)) for guard, value in cases(cell))


def _number(value: Value, dtype: torch.dtype) -> Value:
    if dtype is torch.int64:
        if isinstance(value, Linear):
            return checked(value)
        raise Unreadable
    number = _constant(value)
    if number in (*_PLAIN, torch.finfo(dtype).min, torch.finfo(dtype).max):
        return number
    raise Unreadable


def _constant(value: Value) -> float:
    if not isinstance(value, Linear):
        return value
    if value.terms:
        raise Unreadable
    return float(value.constant)


def compare(name: str, left: Value, right: Value) -> Formula:
    """Where the comparison, named as in ``operator``, holds."""
    if isinstance(left, Linear) and isinstance(right, Linear):
        return _compare_linear(name, left, right)
    first, second = _constant(left), _constant(right)
    if first not in _PLAIN and second not in _PLAIN:
        raise Unreadable
    return TRUE if getattr(operator, name)(first, second) else FALSE


def _compare_linear(name: str, left: Linear, right: Linear) -> Formula:
    match name:
        case "ge":
            return at_least(left, right)
        case "le":
            return at_least(right, left)
        case "gt":
            return at_least(left, right + 1)
        case "lt":
            return at_least(right, left + 1)
        case "eq":
            return all_of(at_least(left, right), at_least(right, left))
        case _:
            return any_of(at_least(left, right + 1), at_least(right, left + 1))


def combine(name: str, left: Value, right: Value) -> Cases:
    """The cases of add, sub, mul, minimum or maximum of two values."""
    if not isinstance(left, Linear) or not isinstance(right, Linear):
        return ((TRUE, _combine_floats(name, _constant(left), _constant(right))),)
    match name:
        case "add":
            return ((TRUE, checked(left + right)),)
        case "sub":
            return ((TRUE, checked(left - right)),)
        case "mul":
            return ((TRUE, checked(_product(left, right))),)
        case "minimum":
            return select(at_least(right, left), ((TRUE, left),), ((TRUE, right),))
        case _:
            return select(at_least(left, right), ((TRUE, left),), ((TRUE, right),))


def _product(left: Linear, right: Linear) -> Linear:
    if left.terms and right.terms:
        raise Unreadable
    return right * left.constant if not left.terms else left * right.constant


def _combine_floats(name: str, left: float, right: float) -> float:
    """Only what no floating dtype rounds: plain numbers, and a product with one of them."""
    exact = (left in _PLAIN and right in _PLAIN) or (name == "mul" and (left in _PLAIN or right in _PLAIN))
    if name in ("add", "sub", "mul") and exact:
        result: float = getattr(operator, name)(left, right)
        if result == result:
            return result
    raise Unreadable
