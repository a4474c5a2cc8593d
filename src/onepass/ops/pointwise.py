"""Element-wise ops made of others, one row each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from onepass.ops.opdef import Builder, CompositeDef, Value

_TORCH = "PyTorch operator reference"


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float))


def _integers(*operands: Any) -> bool:
    """Whether no operand is a float: tensors by class, numbers by type."""
    kinds = [getattr(x, "kind", None) or ("float" if isinstance(x, float) else "int") for x in operands]
    return all(k in ("int", "bool") for k in kinds)


def _divided(b: Builder, op: str, x: Value, divisor: Any) -> Value:
    """An integer division: by tensors, and by numbers that are not zero, for which PyTorch raises."""
    if _is_number(divisor) and divisor == 0:
        b.refuse("constant: PyTorch raises for a division by zero")
    return b.map(op, x, divisor)


def power(b: Builder, self: Value, exponent: Any) -> Value:
    if self.kind in ("int", "bool") and isinstance(exponent, int):
        if exponent < 0:
            b.refuse("dtype: a negative power of integers")
        return b.map("int_pow", self, exponent)
    simple = {2: "square", 1: "copy", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    x = b.floating(self)
    if exponent in simple:
        return b.map(simple[exponent], x)
    if exponent == 3:
        return b.map("mul", b.map("square", x), x)
    return b.map("pow", x, exponent)


def scalar_power(b: Builder, self: Any, exponent: Value) -> Value:
    return b.map("int_pow" if _integers(self, exponent) else "pow", self, exponent)


def tensor_power(b: Builder, self: Value, exponent: Value) -> Value:
    return b.map("int_pow" if _integers(self, exponent) else "pow", self, exponent)


def divide(b: Builder, self: Value, other: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return b.map("div", self, other)
    if _integers(self, other):
        return _divided(b, "int_floor_quotient" if rounding_mode == "floor" else "int_quotient", self, other)
    if rounding_mode == "floor":
        return b.map("floor_quotient", self, other)
    return b.map("trunc", b.map("div", self, other))


def floor_divide(b: Builder, self: Value, other: Any) -> Value:
    return divide(b, self, other, "floor")


def fmod(b: Builder, self: Value, other: Any) -> Value:
    return _divided(b, "int_fmod", self, other) if _integers(self, other) else b.map("fmod", self, other)


def remainder(b: Builder, self: Any, other: Any) -> Value:
    if not _integers(self, other):
        return b.map("remainder", self, other)
    return _divided(b, "int_remainder", self, other)


def _bitwise(truth: str, bits: str) -> Callable[..., Value]:
    def expand(b: Builder, self: Value, other: Any) -> Value:
        kinds = {getattr(x, "kind", "bool" if isinstance(x, bool) else "int") for x in (self, other)}
        return b.map(truth if kinds == {"bool"} else bits, self, other)

    return expand


def bitwise_not(b: Builder, self: Value) -> Value:
    return b.map("logical_not" if self.kind == "bool" else "int_not", self)


def shift_left(b: Builder, self: Value, other: Any) -> Value:
    return b.map("int_shift_left", self, other) if _integers(self, other) else _scaled(b, self, other)


def _scaled(b: Builder, self: Value, other: Any) -> Value:
    return b.map("mul", self, b.map("pow", 2.0, other))


def shift_right(b: Builder, self: Value, other: Any) -> Value:
    if not _integers(self, other):
        b.refuse("dtype: a shift of floating-point numbers")
    return b.map("int_shift_right", self, other)


def ldexp(b: Builder, self: Value, other: Value) -> Value:
    return _scaled(b, self, other)


def _rounded(op: str) -> Callable[..., Value]:
    def expand(b: Builder, self: Value) -> Value:
        return b.map("copy" if _integers(self) else op, self)

    return expand


def round_(b: Builder, self: Value, decimals: int = 0) -> Value:
    if decimals == 0 or _integers(self):
        return b.map("copy" if _integers(self) else "round", self)
    scale = 10.0 ** abs(decimals)
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    return b.map(back, b.map("round", b.map(there, self, scale)), scale)


def sign(b: Builder, self: Value) -> Value:
    if self.kind == "bool":
        return b.map("copy", self)
    return b.map("int_sign" if self.kind == "int" else "sign", self)


def absolute(b: Builder, self: Value) -> Value:
    return b.map("copy" if self.kind == "bool" else "abs", self)


def signbit(b: Builder, self: Value) -> Value:
    return b.map("lt", self, 0) if _integers(self) else b.map("signbit", self)


def frac(b: Builder, self: Value) -> Value:
    return b.map("sub", self, b.map("trunc", self))


def _is_infinite(*which: float) -> Callable[..., Value]:
    def expand(b: Builder, self: Value) -> Value:
        x = b.floating(self)
        found = [b.map("eq", x, v) for v in which]
        return found[0] if len(found) == 1 else b.map("logical_or", *found)

    return expand


def nan_to_num(
    b: Builder,
    self: Value,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Value:
    if _integers(self):
        return b.map("copy", self)
    ends = torch.finfo(self.torch_dtype)
    y = b.map("where", b.map("isnan", self), nan or 0.0, self)
    y = b.map("where", b.map("eq", self, math.inf), ends.max if posinf is None else posinf, y)
    return b.map("where", b.map("eq", self, -math.inf), ends.min if neginf is None else neginf, y)


def _scaled_by(factor: float) -> Callable[..., Value]:
    def expand(b: Builder, self: Value) -> Value:
        return b.map("mul", b.floating(self), factor)

    return expand


def angle(b: Builder, self: Value) -> Value:
    x = b.floating(self)
    return b.map("where", b.map("isnan", x), x, b.map("where", b.map("lt", x, 0), math.pi, 0.0))


def sinc(b: Builder, self: Value) -> Value:
    x = b.floating(self)
    turned = b.map("mul", x, math.pi)
    return b.map("where", b.map("eq", x, 0), 1.0, b.map("div", b.map("sin", turned), turned))


def logit(b: Builder, self: Value, eps: float | None = None) -> Value:
    x = b.floating(self)
    if eps is not None:
        x = b.map("minimum", b.map("maximum", x, eps), 1 - eps)
    return b.map("log", b.map("div", x, b.map("sub", 1.0, x)))


def entropy(b: Builder, self: Value) -> Value:
    x = b.floating(self)
    inside = b.map("neg", b.map("mul", x, b.map("log", x)))
    outside = b.map("where", b.map("eq", x, 0), 0.0, b.map("where", b.map("isnan", x), x, -math.inf))
    return b.map("where", b.map("gt", x, 0), inside, outside)


def _times_log(log: str) -> Callable[..., Value]:
    """x log y, and 0 where x is, unless y is NaN."""

    def expand(b: Builder, self: Any, other: Any) -> Value:
        x, y = b.floating(self), b.floating(other)
        product = b.map("where", b.map("eq", x, 0), 0.0, b.map("mul", x, b.map(log, y)))
        return b.map("where", b.map("isnan", y), math.nan, product)

    return expand


def heaviside(b: Builder, self: Value, values: Value) -> Value:
    step = b.map("where", b.map("gt", self, 0), 1, 0) if _integers(self) else _float_step(b, self)
    return b.map("where", b.map("eq", self, 0), values, step)


def _float_step(b: Builder, x: Value) -> Value:
    return b.map("where", b.map("isnan", x), 0.0, b.map("where", b.map("gt", x, 0), 1.0, 0.0))


def _ignoring_nan(op: str) -> Callable[..., Value]:
    def expand(b: Builder, self: Value, other: Value) -> Value:
        if _integers(self, other):
            return b.map(op, self, other)
        x, y = b.floating(self), b.floating(other)
        other_if_nan = b.map("where", b.map("isnan", y), x, b.map(op, x, y))
        return b.map("where", b.map("isnan", x), y, other_if_nan)

    return expand


def _log_sum_exp_of_two(exp: str, log1p_scale: float) -> Callable[..., Value]:
    def expand(b: Builder, self: Value, other: Value) -> Value:
        x, y = b.floating(self), b.floating(other)
        gap = b.map(exp, b.map("neg", b.map("abs", b.map("sub", x, y))))
        tail = b.map("log1p", gap)
        tail = tail if log1p_scale == 1 else b.map("mul", tail, log1p_scale)
        total = b.map("add", b.map("maximum", x, y), tail)
        same = b.map("logical_and", b.map("eq", x, y), b.map("eq", b.map("abs", x), math.inf))
        return b.map("where", same, x, total)

    return expand


def nextafter(b: Builder, self: Value, other: Value) -> Value:
    if self.torch_dtype not in (torch.float32, torch.float64) or self.torch_dtype != other.torch_dtype:
        b.refuse("dtype: the next number of 16 bits")
    return b.map("nextafter", self, other)


def hardshrink(b: Builder, self: Value, lambd: float = 0.5) -> Value:
    inside = b.map("logical_and", b.map("ge", self, -lambd), b.map("le", self, lambd))
    return b.map("where", inside, 0.0, self)


def softshrink(b: Builder, self: Value, lambd: float = 0.5) -> Value:
    low = b.map("where", b.map("lt", self, -lambd), b.map("add", self, lambd), b.map("mul", self, 0.0))
    return b.map("where", b.map("gt", self, lambd), b.map("sub", self, lambd), low)


def threshold(b: Builder, self: Value, threshold: Any, value: Any) -> Value:
    return b.map("where", b.map("le", self, threshold), value, self)


def prelu(b: Builder, self: Value, weight: Value) -> Value:
    return b.map("where", b.map("gt", self, 0), self, b.map("mul", self, weight))


def celu(b: Builder, self: Value, alpha: float = 1.0) -> Value:
    negative = b.map("mul", b.map("expm1", b.map("div", self, alpha)), alpha)
    return b.map("where", b.map("gt", self, 0), self, negative)


def mish(b: Builder, self: Value) -> Value:
    return b.map("mul", self, b.map("tanh", b.map("softplus", self)))


def log_sigmoid(b: Builder, self: Value) -> tuple[Value, Value]:
    """And the exponential that PyTorch keeps for backward on the CPU; on a GPU it keeps nothing."""
    e = b.map("exp", b.map("neg", b.map("abs", self)))
    return b.map("sub", b.map("minimum", self, 0.0), b.map("log1p", e)), e


def glu(b: Builder, self: Value, dim: int = -1) -> Value:
    first, second = b.halves(self, dim)
    return b.map("mul", first, b.map("sigmoid", second))


def fill(b: Builder, self: Any, value: Any) -> Value:
    return (
        b.constant(self.shape, value, self.torch_dtype)
        if _is_number(value)
        else b.cast(value, self.torch_dtype)
    )


def copy(b: Builder, self: Any, src: Value, non_blocking: bool = False) -> Value:
    return b.cast(src, self.torch_dtype)


def _triangle(op: str) -> Callable[..., Value]:
    def expand(b: Builder, self: Value, diagonal: int = 0) -> Value:
        rank = len(self.shape)
        apart = b.map("sub", b.position(self, [rank - 1]), b.position(self, [rank - 2]))
        return b.map("where", b.map(op, apart, diagonal), self, 0)

    return expand


def flip(b: Builder, self: Value, dims: list[int]) -> Value:
    return b.map("copy", b.reverse(self, [d % max(len(self.shape), 1) for d in dims]))


POINTWISE: tuple[CompositeDef, ...] = (
    CompositeDef("pow", ("pow.Tensor_Scalar",), power, "x to a constant power", _TORCH),
    CompositeDef("pow_scalar", ("pow.Scalar",), scalar_power, "a constant to the power x", _TORCH),
    CompositeDef("pow_tensor", ("pow.Tensor_Tensor",), tensor_power, "x to the power y", _TORCH),
    CompositeDef("div_mode", ("div.Tensor_mode", "div.Scalar_mode"), divide, "x / y, rounded", _TORCH),
    CompositeDef(
        "floor_divide", ("floor_divide.default", "floor_divide.Scalar"), floor_divide, "floor(x / y)", _TORCH
    ),
    CompositeDef("fmod", ("fmod.Tensor", "fmod.Scalar"), fmod, "x - y trunc(x / y)", _TORCH),
    CompositeDef(
        "remainder",
        ("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor"),
        remainder,
        "x - y floor(x / y)",
        _TORCH,
    ),
    CompositeDef(
        "bitwise_and",
        ("bitwise_and.Tensor", "bitwise_and.Scalar", "__and__.Scalar", "__and__.Tensor"),
        _bitwise("logical_and", "int_and"),
        "bits of both",
        _TORCH,
    ),
    CompositeDef(
        "bitwise_or",
        ("bitwise_or.Tensor", "bitwise_or.Scalar", "__or__.Scalar", "__or__.Tensor"),
        _bitwise("logical_or", "int_or"),
        "bits of either",
        _TORCH,
    ),
    CompositeDef(
        "bitwise_xor",
        ("bitwise_xor.Tensor", "bitwise_xor.Scalar", "__xor__.Scalar", "__xor__.Tensor"),
        _bitwise("logical_xor", "int_xor"),
        "bits of one alone",
        _TORCH,
    ),
    CompositeDef("bitwise_not", ("bitwise_not.default",), bitwise_not, "the bits of x flipped", _TORCH),
    CompositeDef(
        "shift_left",
        (
            "bitwise_left_shift.Tensor",
            "bitwise_left_shift.Tensor_Scalar",
            "__lshift__.Scalar",
            "__lshift__.Tensor",
        ),
        shift_left,
        "x 2^y",
        _TORCH,
    ),
    CompositeDef(
        "shift_right",
        (
            "bitwise_right_shift.Tensor",
            "bitwise_right_shift.Tensor_Scalar",
            "__rshift__.Scalar",
            "__rshift__.Tensor",
        ),
        shift_right,
        "floor(x / 2^y)",
        _TORCH,
    ),
    CompositeDef("ldexp", ("ldexp.Tensor",), ldexp, "x 2^y", _TORCH),
    CompositeDef("floor", ("floor.default",), _rounded("floor"), "greatest integer <= x", _TORCH),
    CompositeDef("ceil", ("ceil.default",), _rounded("ceil"), "least integer >= x", _TORCH),
    CompositeDef(
        "trunc", ("trunc.default", "fix.default"), _rounded("trunc"), "x without its fraction", _TORCH
    ),
    CompositeDef(
        "round", ("round.default", "round.decimals"), round_, "nearest multiple of 10^-decimals", _TORCH
    ),
    CompositeDef("sign", ("sign.default", "sgn.default"), sign, "-1, 0 or 1 by the sign of x", _TORCH),
    CompositeDef("abs", ("abs.default",), absolute, "|x|", _TORCH),
    CompositeDef("signbit", ("signbit.default",), signbit, "true for negative numbers and -0", _TORCH),
    CompositeDef("frac", ("frac.default",), frac, "x - trunc(x)", _TORCH),
    CompositeDef(
        "isinf", ("isinf.default",), _is_infinite(math.inf, -math.inf), "true for infinities", _TORCH
    ),
    CompositeDef("isposinf", ("isposinf.default",), _is_infinite(math.inf), "true for infinity", _TORCH),
    CompositeDef("isneginf", ("isneginf.default",), _is_infinite(-math.inf), "true for -infinity", _TORCH),
    CompositeDef("nan_to_num", ("nan_to_num.default",), nan_to_num, "numbers for NaN and infinities", _TORCH),
    CompositeDef("deg2rad", ("deg2rad.default",), _scaled_by(math.pi / 180), "pi x / 180", _TORCH),
    CompositeDef("rad2deg", ("rad2deg.default",), _scaled_by(180 / math.pi), "180 x / pi", _TORCH),
    CompositeDef("angle", ("angle.default",), angle, "0, or pi below zero", _TORCH),
    CompositeDef("sinc", ("sinc.default",), sinc, "sin(pi x) / (pi x)", _TORCH),
    CompositeDef("logit", ("logit.default",), logit, "log(x / (1 - x))", _TORCH),
    CompositeDef("entropy", ("special_entr.default",), entropy, "-x log(x)", _TORCH),
    CompositeDef(
        "xlogy",
        ("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other"),
        _times_log("log"),
        "x log(y)",
        _TORCH,
    ),
    CompositeDef(
        "xlog1py",
        ("special_xlog1py.default", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar"),
        _times_log("log1p"),
        "x log(1 + y)",
        _TORCH,
    ),
    CompositeDef("heaviside", ("heaviside.default",), heaviside, "0, v or 1 by the sign of x", _TORCH),
    CompositeDef(
        "fmax", ("fmax.default",), _ignoring_nan("maximum"), "the larger; numbers win over NaN", _TORCH
    ),
    CompositeDef(
        "fmin", ("fmin.default",), _ignoring_nan("minimum"), "the smaller; numbers win over NaN", _TORCH
    ),
    CompositeDef(
        "logaddexp", ("logaddexp.default",), _log_sum_exp_of_two("exp", 1), "log(e^x + e^y)", _TORCH
    ),
    CompositeDef(
        "logaddexp2",
        ("logaddexp2.default",),
        _log_sum_exp_of_two("exp2", math.log2(math.e)),
        "log2(2^x + 2^y)",
        _TORCH,
    ),
    CompositeDef("nextafter", ("nextafter.default",), nextafter, "the next number from x towards y", _TORCH),
    CompositeDef("hardshrink", ("hardshrink.default",), hardshrink, "x, 0 within lambda of 0", _TORCH),
    CompositeDef("softshrink", ("softshrink.default",), softshrink, "x nearer to 0 by lambda", _TORCH),
    CompositeDef("threshold", ("threshold.default",), threshold, "x above a threshold, else a value", _TORCH),
    CompositeDef("prelu", ("_prelu_kernel.default",), prelu, "x, or w x below zero", "arXiv:1502.01852"),
    CompositeDef(
        "celu", ("celu.default",), celu, "x, or alpha (exp(x / alpha) - 1) below zero", "arXiv:1704.07483"
    ),
    CompositeDef("mish", ("mish.default",), mish, "x tanh(softplus(x))", "arXiv:1908.08681"),
    CompositeDef("log_sigmoid", ("log_sigmoid_forward.default",), log_sigmoid, "log(sigmoid(x))", _TORCH),
    CompositeDef(
        "glu", ("glu.default",), glu, "x sigmoid(y), the two halves", "arXiv:1612.08083", narrows=True
    ),
    CompositeDef("fill", ("fill.Scalar", "fill.Tensor"), fill, "one value everywhere", _TORCH),
    CompositeDef("copy_into", ("copy.default",), copy, "y with the dtype of x", _TORCH),
    CompositeDef("tril", ("tril.default",), _triangle("le"), "zero above a diagonal", _TORCH),
    CompositeDef("triu", ("triu.default",), _triangle("ge"), "zero below a diagonal", _TORCH),
    CompositeDef("flip", ("flip.default",), flip, "dimensions backwards", _TORCH),
)
