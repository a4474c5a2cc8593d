"""Element-wise ops whose functions come from the target's C library, and ops of integers, one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from onepass.ops.opdef import OpDef

_C = "C library, CUDA math library"
_TORCH = "PyTorch operator reference"
Domain = tuple[float, float]


def _function(
    name: str, doc: str, own: Callable[..., Any], domain: Domain = (-4.0, 4.0), aten: str = ""
) -> OpDef:
    """A function of one float. What it costs differs from library to library: about what exp takes, four times."""
    overload = (aten or f"{name}.default",)
    return OpDef(
        name,
        ("self",),
        overload,
        f"lib_{name}({{0}})",
        own,
        doc,
        _C,
        operands="float",
        cost=32,
        domain=domain,
    )


def _of_two(name: str, doc: str, own: Callable[..., Any], *aten: str, cost: int = 32) -> OpDef:
    return OpDef(
        name, ("self", "other"), aten, f"lib_{name}({{0}}, {{1}})", own, doc, _C, operands="float", cost=cost
    )


def _integer(name: str, doc: str, expr: str, own: Callable[..., Any], *aten: str, cost: int = 2) -> OpDef:
    args = ("self", "other") if "{1}" in expr else ("self",)
    return OpDef(name, args, aten, expr, own, doc, _TORCH, operands="int", cost=cost)


def _division(name: str, doc: str, own: Callable[..., Any]) -> OpDef:
    args = ("self", "other")
    return OpDef(
        name, args, (), f"{name}({{0}}, {{1}})", own, doc, _TORCH, operands="int", divides=True, cost=60
    )


def _floor_divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.div(x, y, rounding_mode="floor")


def _power(x: Any, y: Any) -> torch.Tensor:
    """Integers to integer powers that may be negative."""
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    positive = torch.pow(x, y.clamp(min=0))
    inverse = torch.where(x == 1, 1, torch.where(x == -1, 1 - 2 * (y & 1), 0))
    return torch.where(y < 0, inverse, positive)


LIBRARY: tuple[OpDef, ...] = (
    _function("tan", "tangent", torch.tan),
    _function("asin", "arc sine", torch.asin, (-1.0, 1.0)),
    _function("acos", "arc cosine", torch.acos, (-1.0, 1.0)),
    _function("atan", "arc tangent", torch.atan),
    _function("sinh", "hyperbolic sine", torch.sinh),
    _function("cosh", "hyperbolic cosine", torch.cosh),
    _function("asinh", "inverse hyperbolic sine", torch.asinh),
    _function("acosh", "inverse hyperbolic cosine", torch.acosh, (1.0, 8.0)),
    _function("atanh", "inverse hyperbolic tangent", torch.atanh, (-1.0, 1.0)),
    _function("log10", "base-10 logarithm", torch.log10, (0.0, 8.0)),
    _function("erfc", "1 - erf(x), exact in its tail", torch.erfc),
    _function("erfinv", "the inverse of erf", torch.erfinv, (-1.0, 1.0)),
    _of_two("atan2", "angle of the point (y, x)", torch.atan2, "atan2.default"),
    _of_two("hypot", "sqrt(x^2 + y^2) without overflow", torch.hypot, "hypot.default"),
    _of_two(
        "copysign", "|x| with the sign of y", torch.copysign, "copysign.Tensor", "copysign.Scalar", cost=1
    ),
    _of_two("nextafter", "the next number from x towards y", torch.nextafter, cost=12),
    _of_two("floor_quotient", "floor(x / y) as if x / y were exact", _floor_divide, cost=40),
    OpDef(
        "signbit",
        ("self",),
        (),
        "lib_signbit({0})",
        torch.signbit,
        "true for negative numbers and -0",
        _C,
        operands="float",
        result="bool",
    ),
    OpDef(
        "fmod",
        ("self", "other"),
        (),
        "op_fmod({0}, {1})",
        torch.fmod,
        "x - y trunc(x / y), exact",
        _C,
        operands="float",
        cost=71,
        special=2,
        domain=(0.5, 4.0),
    ),
    OpDef(
        "remainder",
        ("self", "other"),
        (),
        "op_remainder({0}, {1})",
        torch.remainder,
        "x - y floor(x / y), with the sign of y",
        _TORCH,
        operands="float",
        cost=75,
        special=2,
        domain=(0.5, 4.0),
    ),
    _integer("int_not", "the bits of x flipped", "int_not({0})", lambda x: ~x),
    _integer("int_sign", "-1, 0 or 1 by the sign of x", "int_sign({0})", torch.sign),
    _integer("int_and", "bits of both", "int_and({0}, {1})", lambda x, y: x & y),
    _integer("int_or", "bits of either", "int_or({0}, {1})", lambda x, y: x | y),
    _integer("int_xor", "bits of one alone", "int_xor({0}, {1})", lambda x, y: x ^ y),
    _integer(
        "int_shift_left", "x 2^y, 0 where y < 0", "int_shift_left({0}, {1})", torch.bitwise_left_shift, cost=6
    ),
    _integer(
        "int_shift_right",
        "floor(x / 2^y), 0 or -1 where y < 0",
        "int_shift_right({0}, {1})",
        torch.bitwise_right_shift,
        cost=6,
    ),
    _integer("int_pow", "x to the y", "int_pow({0}, {1})", _power, cost=200),
    _integer("int_gcd", "greatest common divisor", "int_gcd({0}, {1})", torch.gcd, "gcd.default", cost=400),
    _integer("int_lcm", "least common multiple", "int_lcm({0}, {1})", torch.lcm, "lcm.default", cost=480),
    _division("int_floor_quotient", "floor(x / y)", _floor_divide),
    _division("int_quotient", "trunc(x / y)", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
    _division("int_fmod", "x - y trunc(x / y)", torch.fmod),
    _division("int_remainder", "x - y floor(x / y)", torch.remainder),
)
