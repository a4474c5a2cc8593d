"""Ops that reduce and are no norms: one row each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from onepass.ops.composite import all_dims, moments, put_back
from onepass.ops.opdef import Builder, CompositeDef, Value

_TORCH = "PyTorch operator reference"
# No position in a row: more than any row has elements.
NOWHERE = 2**62


def _cast_if(b: Builder, x: Value, dtype: Any) -> Value:
    return x if dtype is None else b.cast(x, dtype)


def sum_(b: Builder, self: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return b.reduce("sum", _cast_if(b, self, dtype), all_dims(self, dim), keepdim)


def _running(op: str) -> Callable[..., Value]:
    def expand(b: Builder, self: Value, dim: int, dtype: Any = None) -> Value:
        x = b.map("to_int", self) if self.kind == "bool" and dtype is None else _cast_if(b, self, dtype)
        return b.scan(op, x, all_dims(self, dim)[0])

    return expand


def mean(b: Builder, self: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    dims = all_dims(self, dim)
    return b.map("div", sum_(b, self, dims, keepdim, dtype), b.count(self, dims))


def prod(b: Builder, self: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return b.reduce("prod", _cast_if(b, self, dtype), all_dims(self, dim), keepdim)


def nansum(b: Builder, self: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    x = _cast_if(b, self, dtype)
    if x.kind in ("float", "double"):
        x = b.map("where", b.map("isnan", x), 0.0, x)
    return b.reduce("sum", x, all_dims(self, dim), keepdim)


def count_nonzero(b: Builder, self: Value, dim: Any = None) -> Value:
    return b.reduce("sum", b.map("to_int", b.map("to_bool", self)), all_dims(self, dim), False)


def _quantified(op: str) -> Callable[..., Value]:
    """Any or all, as the largest or smallest of truth values."""

    def expand(b: Builder, self: Value, dim: Any = None, keepdim: bool = False) -> Value:
        dims = all_dims(self, dim)
        if b.count(self, dims) == 0:
            b.refuse("no elements: nothing to combine")
        return b.reduce(op, b.map("to_int", b.map("to_bool", self)), dims, keepdim)

    return expand


def _extreme(op: str) -> Callable[..., Value]:
    def expand(b: Builder, self: Value, dim: Any = (), keepdim: bool = False) -> Value:
        return b.reduce(op, self, all_dims(self, list(dim)), keepdim)

    return expand


def _whole_extreme(op: str) -> Callable[..., Value]:
    def expand(b: Builder, self: Value) -> Value:
        return b.reduce(op, self, all_dims(self, None), False)

    return expand


def _found(b: Builder, op: str, x: Value, dims: list[int], keepdim: bool) -> tuple[Value, Value]:
    """The extreme of a row and where it is first; NaN wins."""
    best = b.reduce(op, x, dims, True)
    here = b.map("eq", x, best)
    if x.kind in ("float", "double"):
        here = b.map("logical_or", here, b.map("isnan", x))
    at = b.reduce("min", b.map("where", here, b.position(x, dims), NOWHERE), dims, True)
    return put_back(b, best, dims, keepdim), put_back(b, at, dims, keepdim)


def _position(op: str) -> Callable[..., Value]:
    def expand(b: Builder, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        x = b.map("to_int", self) if self.kind == "bool" else self
        return _found(b, op, x, all_dims(self, dim), keepdim)[1]

    return expand


def _with_position(op: str) -> Callable[..., tuple[Value, Value]]:
    def expand(b: Builder, self: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        x = b.map("to_int", self) if self.kind == "bool" else self
        return _found(b, op, x, all_dims(self, dim), keepdim)

    return expand


def aminmax(b: Builder, self: Value, dim: int | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    dims = all_dims(self, dim)
    return b.reduce("min", self, dims, keepdim), b.reduce("max", self, dims, keepdim)


def var_mean(
    b: Builder, self: Value, dim: Any = None, correction: Any = 1, keepdim: bool = False
) -> tuple[Value, Value]:
    dims = all_dims(self, dim)
    average, _, variance = moments(b, b.floating(self), dims, 1 if correction is None else correction)
    return put_back(b, variance, dims, keepdim), put_back(b, average, dims, keepdim)


def var(b: Builder, self: Value, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Value:
    return var_mean(b, self, dim, correction, keepdim)[0]


def std_mean(
    b: Builder, self: Value, dim: Any = None, correction: Any = 1, keepdim: bool = False
) -> tuple[Value, Value]:
    variance, average = var_mean(b, self, dim, correction, keepdim)
    return b.map("sqrt", variance), average


def std(b: Builder, self: Value, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Value:
    return std_mean(b, self, dim, correction, keepdim)[0]


def logsumexp(b: Builder, self: Value, dim: Any, keepdim: bool = False) -> Value:
    """From the largest element, where it is finite: a row of -inf gives -inf."""
    dims = all_dims(self, dim)
    x = b.floating(self)
    largest = b.reduce("max", x, dims, True)
    infinite = b.map("eq", b.map("abs", largest), math.inf)
    base = b.map("where", infinite, 0.0, largest)
    total = b.reduce("sum", b.map("exp", b.map("sub", x, base)), dims, True)
    return put_back(b, b.map("add", b.map("log", total), base), dims, keepdim)


def vector_norm(
    b: Builder, self: Value, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    x, dims = b.floating(_cast_if(b, self, dtype)), all_dims(self, dim)
    if ord == 2:
        return b.map("sqrt", b.reduce("sum", b.map("square", x), dims, keepdim))
    if ord == 0:
        return b.reduce("sum", b.map("where", b.map("ne", x, 0), 1.0, 0.0), dims, keepdim)
    size = b.map("abs", x)
    if ord == 1:
        return b.reduce("sum", size, dims, keepdim)
    if ord in (math.inf, -math.inf):
        return b.reduce("max" if ord > 0 else "min", size, dims, keepdim)
    return b.map("pow", b.reduce("sum", b.map("pow", size, float(ord)), dims, keepdim), 1.0 / ord)


def norm(
    b: Builder, self: Value, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    return vector_norm(b, self, 2 if p is None else p, dim, keepdim, dtype)


def renorm(b: Builder, self: Value, p: Any, dim: int, maxnorm: float) -> Value:
    kept = dim % len(self.shape)
    size = vector_norm(b, self, p, [d for d in range(len(self.shape)) if d != kept], True)
    shrunk = b.map("div", float(maxnorm), b.map("add", size, 1e-7))
    return b.map("mul", self, b.map("where", b.map("gt", size, float(maxnorm)), shrunk, 1.0))


def dist(b: Builder, self: Value, other: Value, p: Any = 2) -> Value:
    return vector_norm(b, b.map("sub", b.floating(self), other), p)


REDUCED: tuple[CompositeDef, ...] = (
    CompositeDef("sum", ("sum.dim_IntList", "sum.default"), sum_, "sum along dimensions", _TORCH),
    CompositeDef("mean", ("mean.dim", "mean.default"), mean, "mean along dimensions", _TORCH),
    CompositeDef("prod", ("prod.dim_int", "prod.default"), prod, "product along dimensions", _TORCH),
    CompositeDef(
        "cumsum", ("cumsum.default",), _running("sum"), "sum of an element and all before it", _TORCH
    ),
    CompositeDef(
        "cumprod", ("cumprod.default",), _running("prod"), "product of an element and all before it", _TORCH
    ),
    CompositeDef("nansum", ("nansum.default",), nansum, "sum of what is no NaN", _TORCH),
    CompositeDef(
        "count_nonzero",
        ("count_nonzero.dim_IntList", "count_nonzero.default"),
        count_nonzero,
        "how many are not 0",
        _TORCH,
    ),
    CompositeDef(
        "any", ("any.default", "any.dim", "any.dims"), _quantified("max"), "whether one is not 0", _TORCH
    ),
    CompositeDef(
        "all", ("all.default", "all.dim", "all.dims"), _quantified("min"), "whether none is 0", _TORCH
    ),
    CompositeDef("amax", ("amax.default",), _extreme("max"), "largest element along dimensions", _TORCH),
    CompositeDef("amin", ("amin.default",), _extreme("min"), "smallest element along dimensions", _TORCH),
    CompositeDef("max_of_all", ("max.default",), _whole_extreme("max"), "largest element", _TORCH),
    CompositeDef("min_of_all", ("min.default",), _whole_extreme("min"), "smallest element", _TORCH),
    CompositeDef(
        "argmax", ("argmax.default",), _position("max"), "where the largest element is first", _TORCH
    ),
    CompositeDef(
        "argmin", ("argmin.default",), _position("min"), "where the smallest element is first", _TORCH
    ),
    CompositeDef(
        "max_dim", ("max.dim",), _with_position("max"), "largest element, and where it is first", _TORCH
    ),
    CompositeDef(
        "min_dim", ("min.dim",), _with_position("min"), "smallest element, and where it is first", _TORCH
    ),
    CompositeDef("aminmax", ("aminmax.default",), aminmax, "smallest and largest element", _TORCH),
    CompositeDef("var_mean", ("var_mean.correction",), var_mean, "variance and mean, centred", _TORCH),
    CompositeDef("var", ("var.correction",), var, "variance, centred", _TORCH),
    CompositeDef(
        "std_mean", ("std_mean.correction",), std_mean, "standard deviation and mean, centred", _TORCH
    ),
    CompositeDef("std", ("std.correction",), std, "standard deviation, centred", _TORCH),
    CompositeDef("logsumexp", ("logsumexp.default",), logsumexp, "log(sum(exp(x)))", _TORCH),
    CompositeDef("vector_norm", ("linalg_vector_norm.default",), vector_norm, "the p-norm", _TORCH),
    CompositeDef(
        "norm",
        ("norm.ScalarOpt_dim", "norm.Scalar", "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim_dtype"),
        norm,
        "the p-norm",
        _TORCH,
    ),
    CompositeDef(
        "renorm", ("renorm.default",), renorm, "parts whose norm is larger, scaled to a norm", _TORCH
    ),
    CompositeDef("dist", ("dist.default",), dist, "the p-norm of a difference", _TORCH),
)
