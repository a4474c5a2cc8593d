"""Decide whether a statement about integer indices holds for every size.

A statement is built from linear inequalities over *variables*: an index of a tensor dimension, written as the
dimension's negative position (-1 is the last), or an atom of a size, a sympy expression such as ``s0``. It is
valid when its negation, put into disjunctive form, has no branch with a solution; each branch is refuted by
Fourier-Motzkin elimination over the rationals. What has no rational solution has no integer one, and an atom
taken as a free variable only adds solutions, so a proof is always right; a true statement may stay unproven.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from math import gcd
from typing import TypeAlias

import sympy

Variable: TypeAlias = int | sympy.Expr

# Limits on the work of one proof, not on its correctness: beyond them the statement counts as unproven. The
# masks of the models measured need at most 5 branches and 14 inequalities (docs/notes/003-real-graphs.md).
MAX_BRANCHES = 512
MAX_INEQUALITIES = 2000


@dataclass(frozen=True)
class Linear:
    """constant + sum of coefficient * variable, with integer coefficients."""

    constant: int = 0
    terms: tuple[tuple[Variable, int], ...] = ()

    @staticmethod
    def of(constant: int, terms: Mapping[Variable, int]) -> Linear:
        kept = ((variable, terms[variable]) for variable in sorted(terms, key=str) if terms[variable])
        return Linear(constant, tuple(kept))

    @staticmethod
    def index(dim: int) -> Linear:
        return Linear(0, ((dim, 1),))

    @staticmethod
    def size(expr: sympy.Expr | int) -> Linear | None:
        """The linear form of a size; products and quotients of symbols count as atoms."""
        terms: dict[Variable, int] = {}
        constant = 0
        for atom, factor in sympy.expand(sympy.sympify(expr)).as_coefficients_dict().items():
            if not factor.is_Integer:
                return None
            if atom == 1:
                constant = int(factor)
            else:
                terms[atom] = int(factor)
        return Linear.of(constant, terms)

    def __add__(self, other: Linear | int) -> Linear:
        if isinstance(other, int):
            return Linear(self.constant + other, self.terms)
        terms = dict(self.terms)
        for variable, factor in other.terms:
            terms[variable] = terms.get(variable, 0) + factor
        return Linear.of(self.constant + other.constant, terms)

    def __mul__(self, factor: int) -> Linear:
        return Linear.of(self.constant * factor, {variable: f * factor for variable, f in self.terms})

    def __neg__(self) -> Linear:
        return self * -1

    def __sub__(self, other: Linear | int) -> Linear:
        return self + -other

    def rename(self, dims: Mapping[int, Linear]) -> Linear:
        """Substitute index variables; an index not named stays."""
        result = Linear(self.constant)
        for variable, factor in self.terms:
            replaced = dims.get(variable) if isinstance(variable, int) else None
            result = result + (Linear.of(0, {variable: factor}) if replaced is None else replaced * factor)
        return result

    def tightened(self) -> Linear:
        """The strongest integer form of ``self >= 0``: divided by the terms' common factor, rounded down."""
        divisor = reduce(gcd, (abs(factor) for _, factor in self.terms), 0)
        if divisor < 2:
            return self
        terms = tuple((variable, factor // divisor) for variable, factor in self.terms)
        return Linear(self.constant // divisor, terms)

    def __str__(self) -> str:
        names = {-1: "kv", -2: "q"}
        text = "".join(
            f" {'-' if factor < 0 else '+'} {'' if abs(factor) == 1 else f'{abs(factor)}*'}"
            f"{names.get(variable, f'd{variable}') if isinstance(variable, int) else variable}"
            for variable, factor in self.terms
        )
        if self.constant or not text:
            text += f" {'-' if self.constant < 0 else '+'} {abs(self.constant)}"
        return text.removeprefix(" + ").strip()


@dataclass(frozen=True)
class NonNegative:
    """linear >= 0."""

    linear: Linear

    def __str__(self) -> str:
        return f"{self.linear} >= 0"


@dataclass(frozen=True)
class AllOf:
    """Every part holds; no parts is true."""

    parts: tuple[Formula, ...] = ()

    def __str__(self) -> str:
        return " and ".join(_bracketed(part) for part in self.parts) or "true"


@dataclass(frozen=True)
class AnyOf:
    """Some part holds; no parts is false."""

    parts: tuple[Formula, ...] = ()

    def __str__(self) -> str:
        return " or ".join(_bracketed(part) for part in self.parts) or "false"


Formula = NonNegative | AllOf | AnyOf
TRUE: Formula = AllOf()
FALSE: Formula = AnyOf()


def _bracketed(formula: Formula) -> str:
    return str(formula) if isinstance(formula, NonNegative) or len(formula.parts) < 2 else f"({formula})"


def all_of(*parts: Formula) -> Formula:
    """Conjunction, with constants folded and nested conjunctions flattened."""
    return _join(AllOf, AnyOf, parts)


def any_of(*parts: Formula) -> Formula:
    """Disjunction, with constants folded and nested disjunctions flattened."""
    return _join(AnyOf, AllOf, parts)


def _join(
    kind: type[AllOf] | type[AnyOf], other: type[AllOf] | type[AnyOf], parts: Iterable[Formula]
) -> Formula:
    flat: dict[Formula, None] = {}
    for part in parts:
        if part == other():
            return part
        for inner in part.parts if isinstance(part, kind) else (part,):
            flat[inner] = None
    return next(iter(flat)) if len(flat) == 1 else kind(tuple(flat))


def negation(formula: Formula) -> Formula:
    """The opposite, with the negation pushed down to the inequalities."""
    if isinstance(formula, NonNegative):
        return at_least(-formula.linear - 1, 0)
    if isinstance(formula, AllOf):
        return any_of(*(negation(part) for part in formula.parts))
    return all_of(*(negation(part) for part in formula.parts))


def at_least(left: Linear, right: Linear | int) -> Formula:
    """left >= right."""
    linear = left - right
    if not linear.terms:
        return TRUE if linear.constant >= 0 else FALSE
    return NonNegative(linear)


def rename(formula: Formula, dims: Mapping[int, Linear]) -> Formula:
    """Substitute index variables throughout."""
    if isinstance(formula, NonNegative):
        return at_least(formula.linear.rename(dims), 0)
    if isinstance(formula, AllOf):
        return all_of(*(rename(part, dims) for part in formula.parts))
    return any_of(*(rename(part, dims) for part in formula.parts))


def inequalities(formulas: Iterable[Formula]) -> Iterator[Linear]:
    """Every linear form in the formulas."""
    for formula in formulas:
        if isinstance(formula, NonNegative):
            yield formula.linear
        else:
            yield from inequalities(formula.parts)


def is_valid(formula: Formula, given: Iterable[Linear]) -> bool:
    """Whether the formula holds wherever every linear form of ``given`` is at least zero."""
    known = tuple(given)
    return all(
        count < MAX_BRANCHES and _has_no_solution((*known, *branch))
        for count, branch in enumerate(_branches(negation(formula)))
    )


def _branches(formula: Formula) -> Iterator[tuple[Linear, ...]]:
    """The conjunctions whose disjunction is the formula."""
    if isinstance(formula, NonNegative):
        yield (formula.linear,)
    elif isinstance(formula, AnyOf):
        for part in formula.parts:
            yield from _branches(part)
    else:
        yield from _products(formula.parts)


def _products(parts: tuple[Formula, ...]) -> Iterator[tuple[Linear, ...]]:
    if not parts:
        yield ()
        return
    for first in _branches(parts[0]):
        for rest in _products(parts[1:]):
            yield (*first, *rest)


def _has_no_solution(inequalities: Iterable[Linear]) -> bool:
    """Fourier-Motzkin: eliminate variables one by one; a negative constant left over is a contradiction."""
    system = {inequality.tightened() for inequality in inequalities}
    while True:
        if any(not line.terms and line.constant < 0 for line in system):
            return True
        variables = {variable for line in system for variable, _ in line.terms}
        if not variables or len(system) > MAX_INEQUALITIES:
            return False
        system = _eliminated(
            system, min(variables, key=lambda variable: (_growth(system, variable), str(variable)))
        )


def _growth(system: set[Linear], variable: Variable) -> int:
    factors = [dict(line.terms).get(variable, 0) for line in system]
    return sum(factor > 0 for factor in factors) * sum(factor < 0 for factor in factors)


def _eliminated(system: set[Linear], variable: Variable) -> set[Linear]:
    lower: list[tuple[int, Linear]] = []
    upper: list[tuple[int, Linear]] = []
    result: set[Linear] = set()
    for line in system:
        factor = dict(line.terms).get(variable, 0)
        if factor == 0:
            result.add(line)
        else:
            (lower if factor > 0 else upper).append((abs(factor), line))
    result.update((low * b + up * a).tightened() for a, low in lower for b, up in upper)
    return result
