"""Sizes that are known only at run time: polynomials with integer coefficients in named sizes, each at least one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

Monomial = tuple[str, ...]  # the names multiplied, sorted


@dataclass(frozen=True, eq=False)
class Poly:
    """A sum of coefficient × product of names. Never constant: arithmetic gives an int where the names cancel."""

    terms: tuple[tuple[Monomial, int], ...]  # sorted by monomial

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __add__(self, other: Size) -> Size:
        return _sum((*self.terms, *_terms(other)))

    def __sub__(self, other: Size) -> Size:
        return _sum((*self.terms, *((m, -c) for m, c in _terms(other))))

    def __rsub__(self, other: Size) -> Size:
        return _sum((*_terms(other), *((m, -c) for m, c in self.terms)))

    def __mul__(self, other: Size) -> Size:
        if other == 1:
            return self
        return _sum([(tuple(sorted(a + b)), x * y) for a, x in self.terms for b, y in _terms(other)])

    def __neg__(self) -> Size:
        return self * -1

    __radd__ = __add__
    __rmul__ = __mul__

    def __str__(self) -> str:
        return " + ".join("*".join([*([str(c)] if c != 1 or not m else []), *m]) for m, c in self.terms)

    __repr__ = __str__

    @property
    def names(self) -> set[str]:
        return {name for m, _ in self.terms for name in m}

    def value(self, sizes: Mapping[str, int]) -> int:
        return sum(c * prod(sizes[name] for name in m) for m, c in self.terms)

    def text(self, spell: Callable[[str], str] = str) -> str:
        """A Python or C expression; ``spell`` gives each name."""
        return "(" + " + ".join("*".join([str(c), *map(spell, m)]) for m, c in self.terms) + ")"


Size = int | Poly


def name(symbol: str) -> Poly:
    return Poly((((symbol,), 1),))


def _terms(x: Size) -> Iterable[tuple[Monomial, int]]:
    return x.terms if isinstance(x, Poly) else ((((), x),) if x else ())


def _sum(terms: Iterable[tuple[Monomial, int]]) -> Size:
    total: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    kept = tuple(sorted((m, c) for m, c in total.items() if c))
    if not kept:
        return 0
    return kept[0][1] if len(kept) == 1 and not kept[0][0] else Poly(kept)


def product(sizes: Iterable[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        result = result * size
    return result


def quotient(a: Size, b: Size) -> Size | None:
    """a / b where that is a polynomial with integer coefficients, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if a == b:
        return 1
    if a == 0:
        return 0
    lead, coefficient = max(_terms(b), default=((), 0))
    if coefficient == 0:
        return None
    result: Size = 0
    rest: Size = a
    for _ in range(len(tuple(_terms(a)))):
        top, times = max(_terms(rest))
        left = _without(top, lead)
        if left is None or times % coefficient:
            return None
        term = _sum([(left, times // coefficient)])
        result, rest = result + term, rest - term * b
        if rest == 0:
            return result
    return None


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    left = list(monomial)
    for symbol in divisor:
        if symbol not in left:
            return None
        left.remove(symbol)
    return tuple(left)


def at_least(a: Size, b: Size) -> bool:
    """Whether a >= b whatever the sizes, as far as the coefficients around "every size is one" show it."""
    gap = a - b
    if isinstance(gap, int):
        return gap >= 0
    around: Size = 0
    for monomial, coefficient in gap.terms:
        term: Size = coefficient
        for symbol in monomial:
            term = term * (name(symbol) + 1)
        around = around + term
    return all(c >= 0 for _, c in _terms(around))


def evaluate(size: Size, sizes: Mapping[str, int]) -> int:
    return size if isinstance(size, int) else size.value(sizes)
