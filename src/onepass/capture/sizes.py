"""Sizes of a captured graph as polynomials."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.printers import PythonPrinter

from onepass.analysis.traffic import UNKNOWN_SIZE
from onepass.ir.symbol import Size, product
from onepass.ir.symbol import name as named


def size(value: Any) -> Size:
    """A size as an int or a polynomial in the graph's sizes.

    What is no polynomial becomes a name of its own: the Python expression of it, in the sizes, ``math`` and ``torch``.
    """
    return _polynomial(value.node.expr) if isinstance(value, torch.SymInt) else int(value)


def _polynomial(expression: Any) -> Size:
    if expression.is_Integer:
        return int(expression)
    if expression.is_Add or expression.is_Mul:
        parts = [_polynomial(a) for a in expression.args]
        return product(parts) if expression.is_Mul else sum(parts[1:], start=parts[0])
    if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
        return product([_polynomial(expression.base)] * int(expression.exp))
    return named(PythonPrinter().doprint(expression))


def is_data_dependent(*numbers: Any) -> bool:
    """Whether any of these sizes or numbers is only known once values are."""
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return any(isinstance(n, symbolic) and bool(free_unbacked_symbols(n)) for n in numbers)


def shares_elements(fake: torch.Tensor) -> bool:
    """Whether several elements lie in the same place, as in an expanded tensor."""
    return any(
        isinstance(stride, int) and stride == 0 and not (isinstance(n, int) and n == 1)
        for n, stride in zip(fake.shape, fake.stride(), strict=True)
    )


def hint(value: int | torch.SymInt) -> int:
    """A size or stride at the values it was captured with."""
    if not isinstance(value, torch.SymInt):
        return int(value)
    return int(value.node.hint) if value.node.has_hint() else UNKNOWN_SIZE
