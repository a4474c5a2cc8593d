"""How a CUDA C++ file says how its kernel is launched: `// onepass-check: rows=8 x=randn(rows, 64) … grid=rows block=256`.

NAME=VALUE pairs: `grid`, `block`, `shared`, `kernel`, `ref`, `rtol`, a value for each parameter of the kernel, and any
other name as a shorthand. A value is arithmetic over numbers and names that came before; `grid` and `block` may be
(x, y, z). A buffer is one of `FILLS`. `// onepass-check[NAME]: …` adds a case: the pairs above with these in their place.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onepass.emulate import Parameter
from onepass.errors import BadLaunch

_LINE = re.compile(r"^[ \t]*//[ \t]*onepass-check(?:\[([\w-]+)\])?:(.*)$", re.MULTILINE)
MAX_ELEMENTS = 1 << 28  # of a buffer; it is made in eight bytes each
_MOST_BITS = 64
_OWN = ("grid", "block", "shared", "kernel", "ref", "rtol")
_AS_TEXT = ("kernel", "ref")
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda base, exponent: _power(base, exponent),
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs, "int": int, "float": float}


@dataclass(frozen=True)
class Case:
    """One launch: pairs of name and value as written."""

    name: str  # empty for the pairs that all cases start from
    pairs: Mapping[str, str]

    def changed(self, pairs: Mapping[str, str]) -> Case:
        """With these pairs in the place of those of their names."""
        return Case(self.name, {**self.pairs, **pairs})


@dataclass(frozen=True)
class Launch:
    """One launch, its values worked out."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    rtol: float | None
    arguments: Mapping[str, Any]  # tensors and numbers by parameter
    rows: int | None = None  # what `rows` is, where it has a value


@dataclass(frozen=True)
class Fill:
    """A buffer to make once its element type is known."""

    make: Callable[[torch.Generator], Tensor]  # float64 or int64 elements
    offset: int  # elements past a multiple of 16 bytes


def cases_of(text: str, file: str) -> list[Case]:
    """The cases that a file's lines give, the unnamed one first, unless its lines say no grid and block.

    Raises: BadLaunch for a pair that is not one.
    """
    base: dict[str, str] = {}
    named: dict[str, dict[str, str]] = {}
    for m in _LINE.finditer(text):
        (named.setdefault(m.group(1), {}) if m.group(1) else base).update(pairs_of(m.group(2), file))
    cases = [Case(n, {**base, **pairs}) for n, pairs in named.items()]
    shared_only = bool(cases) and not (
        {"grid", "block"} & set(base)
    )  # what the named ones have in common, no launch
    return cases if shared_only else [Case("", base), *cases]


def pairs_of(text: str, file: str) -> dict[str, str]:
    """NAME=VALUE pairs, cut at the spaces that lie in no bracket.

    Raises: BadLaunch for what is no pair.
    """
    words, depth = [""], 0
    for c in text.strip():
        depth += (c in "([<") - (c in ")]>")
        if c.isspace() and depth <= 0:
            words.append("")
        else:
            words[-1] += c
    pairs = {}
    for word in filter(None, words):
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier() or not value:
            raise BadLaunch(
                file, f"{word!r} is no pair of a name and a value", "Write NAME=VALUE, no space around the =."
            )
        pairs[name] = value
    return pairs


def launch_of(case: Case, parameters: Sequence[Parameter], file: str, seed: int = 0) -> Launch:
    """Work a case out for a kernel; random buffers depend on the seed and on the parameter's place alone.

    Raises: BadLaunch, with the pairs that are missing.
    """
    kinds = {p.name: (i, p) for i, p in enumerate(parameters)}
    missing = [n for n in ("grid", "block", *kinds) if n not in case.pairs]
    if missing:
        raise BadLaunch(file, f"no value for {', '.join(missing)}", _how_to(missing, parameters))
    known: dict[str, Any] = {}
    for name, value in case.pairs.items():
        if name in _AS_TEXT:
            continue
        known[name] = _evaluate(value, known, file, name)
        if isinstance(known[name], Fill):
            if name not in kinds:
                raise BadLaunch(
                    file, f"{name} is a buffer, and the kernel has no such parameter", _takes(parameters)
                )
            place, parameter = kinds[name]
            known[name] = _buffer(known[name], parameter, seed * 1000 + place, file)
    rtol = known.get("rtol")
    return Launch(
        _sizes(known["grid"], file, "grid"),
        _sizes(known["block"], file, "block"),
        int(known.get("shared", 0)),
        None if rtol is None else float(rtol),
        {n: known[n] for n in kinds},
        int(known["rows"]) if isinstance(known.get("rows"), int) and known["rows"] > 0 else None,
    )


def _takes(parameters: Sequence[Parameter]) -> str:
    return f"The kernel takes {', '.join(p.name for p in parameters)}."


def _how_to(missing: Sequence[str], parameters: Sequence[Parameter]) -> str:
    """The line to put into the file."""
    kinds = {p.name: p for p in parameters}

    def example(name: str) -> str:
        if name not in kinds:
            return f"{name}={'1' if name == 'grid' else '256'}"
        p = kinds[name]
        return f"{name}={'1024' if not p.pointer else 'randn(1024)' if p.read_only else 'out(1024)'}"

    return f"Say how to launch it, in the file or with --args: // onepass-check: {' '.join(map(example, missing))}"


def _sizes(value: Any, file: str, name: str) -> tuple[int, ...]:
    sizes = value if isinstance(value, tuple) else (value,)
    if not 1 <= len(sizes) <= 3 or any(isinstance(s, Tensor) or s != int(s) or s < 1 for s in sizes):
        raise BadLaunch(file, f"{name}={value} is no size", f"Write {name}=N or {name}=(x,y,z), from 1 on.")
    return tuple(int(s) for s in sizes)


def _buffer(fill: Fill, parameter: Parameter, seed: int, file: str) -> Tensor:
    from onepass.insight.check import dtype_of

    if not parameter.pointer:
        raise BadLaunch(file, f"{parameter.name} is a number, not a buffer", f"Write {parameter.name}=VALUE.")
    generator = torch.Generator().manual_seed(seed)
    made = fill.make(generator)
    dtype = dtype_of(parameter)
    whole = torch.empty(made.numel() + fill.offset, dtype=dtype)
    held = whole[fill.offset :].view(made.shape)
    if made.is_floating_point() and not dtype.is_floating_point:
        made = made.nan_to_num(-1 if dtype not in (torch.bool, torch.uint8) else 1).round()
    return held.copy_(made)


# Values


def _evaluate(text: str, known: Mapping[str, Any], file: str, name: str) -> Any:
    try:
        return _value(ast.parse(text, mode="eval").body, known)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RuntimeError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        remedy = f"Values are numbers, names given before, + - * / // % ** and {', '.join(FILLS)}."
        raise BadLaunch(file, f"{name}={text}: {reason}", remedy) from error


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return value
        case ast.Name(id=name):
            if name in known:
                return known[name]
            near = difflib.get_close_matches(name, [*known, *FILLS], 1)
            raise ValueError(f"{name} has no value yet" + (f"; did you mean {near[0]}?" if near else ""))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, known), _value(right, known))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, known))
        case ast.Tuple(elts=parts):
            return tuple(_value(p, known) for p in parts)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            given = [_value(a, known) for a in args]
            named = {k.arg or "**": _value(k.value, known) for k in keywords}
            return _called(name, given, named)
    raise ValueError(f"{ast.unparse(node)} is not understood")


def _called(name: str, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](*given, **named)
    if name not in FILLS:
        near = difflib.get_close_matches(name, FILLS, 1)
        raise ValueError(f"there is no {name}()" + (f"; did you mean {near[0]}()?" if near else ""))
    offset = int(named.get("offset", 0))
    make = FILLS[name](*given, **{k: v for k, v in named.items() if k != "offset"})
    return Fill(make, offset)


def _power(base: Any, exponent: Any) -> Any:
    if abs(base) > 1 and exponent > _MOST_BITS:
        raise ValueError("the number is too large")
    return base**exponent


def _shape(sizes: Sequence[Any]) -> tuple[int, ...]:
    if not sizes or any(isinstance(s, Tensor) or s != int(s) or s < 0 for s in sizes):
        raise ValueError(f"{tuple(sizes)} is no shape")
    if math.prod(int(s) for s in sizes) > MAX_ELEMENTS:
        raise ValueError(
            f"a buffer of {tuple(sizes)} is too large to emulate: it holds {MAX_ELEMENTS} elements"
        )
    return tuple(int(s) for s in sizes)


def _randn(*sizes: Any, mean: float = 0.0, std: float = 1.0) -> Callable[[torch.Generator], Tensor]:
    shape = _shape(sizes)
    return lambda g: torch.randn(shape, generator=g, dtype=torch.float64) * std + mean


def _rand(*sizes: Any, low: float = 0.0, high: float = 1.0) -> Callable[[torch.Generator], Tensor]:
    shape = _shape(sizes)
    return lambda g: torch.rand(shape, generator=g, dtype=torch.float64) * (high - low) + low


def _randint(*sizes: Any, low: int = 0, high: int) -> Callable[[torch.Generator], Tensor]:
    shape = _shape(sizes)
    return lambda g: torch.randint(int(low), int(high), shape, generator=g)


def _arange(*sizes: Any) -> Callable[[torch.Generator], Tensor]:
    shape = _shape(sizes)
    return lambda g: torch.arange(int(torch.Size(shape).numel())).view(shape)


def _full(*sizes: Any, value: float) -> Callable[[torch.Generator], Tensor]:
    shape = _shape(sizes)
    return lambda g: torch.full(shape, value)


def _zeros(*sizes: Any) -> Callable[[torch.Generator], Tensor]:
    return _full(*sizes, value=0)


def _ones(*sizes: Any) -> Callable[[torch.Generator], Tensor]:
    return _full(*sizes, value=1)


def _out(*sizes: Any) -> Callable[[torch.Generator], Tensor]:
    return _full(*sizes, value=float("nan"))


# Buffers, each of a shape: randn(8, 64, mean=0, std=1), rand(…, low=0, high=1), randint(…, low=0, high=N),
# full(…, value=V); out is NaN (-1 for integers) so that what is never written shows. offset=N starts a buffer N elements
# past 16 bytes.
FILLS: dict[str, Callable[..., Callable[[torch.Generator], Tensor]]] = {
    "randn": _randn,
    "rand": _rand,
    "randint": _randint,
    "arange": _arange,
    "full": _full,
    "zeros": _zeros,
    "ones": _ones,
    "out": _out,
}
