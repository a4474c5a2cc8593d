"""Sizes written as text in rungs.toml: whole numbers, + - * // %, comparisons, and a few functions."""

from __future__ import annotations

import ast
import operator
import threading
from collections.abc import Callable, Mapping
from typing import Any

Number = int | float

# Rungs are read by several threads, and two of them parsing at once upset Python 3.11's count of recursion.
_PARSING = threading.Lock()

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LtE: operator.le,
    ast.Lt: operator.lt,
    ast.GtE: operator.ge,
    ast.Gt: operator.gt,
    ast.Eq: operator.eq,
}


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _pow2(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


_FUNCTIONS: dict[str, Callable[..., Any]] = {"cdiv": _cdiv, "pow2": _pow2, "min": min, "max": max}


def evaluate(text: str, names: Mapping[str, Number]) -> Any:
    """The value of an expression.

    Raises: ValueError, saying what is not understood.
    """
    try:
        with _PARSING:
            tree = ast.parse(text, mode="eval")
        return _value(tree.body, names)
    except SyntaxError as e:
        raise ValueError(f"{text!r} is no expression: {e.msg}") from None


def _value(node: ast.AST, names: Mapping[str, Number]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left, names), _value(node.right, names))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _BINARY:
        return _BINARY[type(node.ops[0])](_value(node.left, names), _value(node.comparators[0], names))
    if isinstance(node, ast.BoolOp):
        values = [_value(v, names) for v in node.values]
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.IfExp):
        return _value(node.body if _value(node.test, names) else node.orelse, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _FUNCTIONS[node.func.id](*(_value(a, names) for a in node.args))
    known = ", ".join([*names, *_FUNCTIONS])
    raise ValueError(f"{ast.unparse(node)!r} is not understood; known are {known}")
