"""Each row of the op table alone: its reference is PyTorch's op in float64, and its CPU kernel is its reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from harness.together import _cpu_unit
from harness.tolerance import EXACT, stated
from onepass.build import Built, one
from onepass.capture import launch
from onepass.device import cpu
from onepass.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT64, DType
from onepass.ir.address import contiguous
from onepass.ir.cluster import Cluster, Load, Map, Node, Space, Store, Tensor
from onepass.ops.opdef import OpDef
from onepass.ops.table import OPS, REDUCE
from onepass.runtime.calibration import rates_of

FLOATS = (FLOAT32, BFLOAT16, FLOAT16, FLOAT64)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-30, 1e4, -1e4, math.inf, -math.inf, math.nan)
# What float64 may be off by: exponentials of arguments up to 30, each off by a unit or two.
LIBRARY = 64 * FLOAT64.unit_roundoff
COUNT = 999  # odd: the last vector is not full
# What PyTorch calls a row that has no overload of its own, or whose overload wants further arguments.
PYTORCH: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "copy": torch.clone,
    "to_float": lambda x: x.double(),
    "to_double": lambda x: x.double(),
    "wrap_i32": lambda x: x.to(torch.int32),
    "wrap_i16": lambda x: x.to(torch.int16),
    "wrap_i8": lambda x: x.to(torch.int8),
    "wrap_u8": lambda x: x.to(torch.uint8),
    "to_int": lambda x: x.long(),
    "to_bool": lambda x: x.bool(),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "softplus": lambda x: torch.where(x > 20, x, torch.log1p(torch.exp(x))),
    "where": torch.where,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "pow": torch.pow,
    "nextafter": torch.nextafter,
    "floor_quotient": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "signbit": torch.signbit,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "int_not": torch.bitwise_not,
    "int_sign": torch.sign,
    "int_and": torch.bitwise_and,
    "int_or": torch.bitwise_or,
    "int_xor": torch.bitwise_xor,
    "int_shift_left": torch.bitwise_left_shift,
    "int_shift_right": torch.bitwise_right_shift,
    "int_pow": lambda x, y: torch.tensor([_power(*v) for v in zip(x.tolist(), y.tolist(), strict=True)]),
    "int_floor_quotient": torch.floor_divide,
    "int_quotient": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "int_fmod": torch.fmod,
    "int_remainder": torch.remainder,
    "round_e4m3": lambda x: x.to(torch.float8_e4m3fn).double(),
    "round_e5m2": lambda x: x.to(torch.float8_e5m2).double(),
    "round_bf16": lambda x: x,
    "round_f16": lambda x: x,
}
ROUNDS = {
    "round_bf16": BFLOAT16.unit_roundoff,
    "round_f16": FLOAT16.unit_roundoff,
    "round_e4m3": 0.0,  # whose reference rounds
    "round_e5m2": 0.0,
}


def _power(x: int, y: int) -> int:
    """Of Python's integers, the low 64 bits; what is left of a fraction when y is negative."""
    if y < 0:
        return (1 if y % 2 == 0 else x) if abs(x) == 1 else 0
    low = pow(x, y, 2**64)
    return low - 2**64 if low >= 2**63 else low


def kinds(op: OpDef) -> list[str]:
    if op.operands == "condition":
        return ["bool", *["float"] * (len(op.args) - 1)]
    return [op.operands if op.operands in ("bool", "int") else "float"] * len(op.args)


def inputs(op: OpDef, dtype: torch.dtype, special: bool = True) -> list[torch.Tensor]:
    """Random values of the domain, then every pair of special ones."""
    g = torch.Generator().manual_seed(3)
    pairs = torch.cartesian_prod(torch.tensor(SPECIAL), torch.tensor(SPECIAL))
    made = []
    for i, kind in enumerate(kinds(op)):
        if kind == "bool":
            made.append(torch.rand(COUNT, generator=g) < 0.5)
            continue
        if kind == "int":
            x = torch.randint(-(2**40), 2**40, (COUNT,), generator=g)
            x >>= torch.randint(0, 41, (COUNT,), generator=g)
            made.append(torch.where(x == 0, 1, x) if i else x)  # a divisor is not zero
            continue
        low, high = op.domain
        x = torch.rand(COUNT, generator=g) * (high - low) + low
        if special and op.name not in ("to_int", "nextafter"):
            # C++ leaves open what an infinity is as an integer; the number next to it is another in each dtype.
            x[-len(pairs) :] = pairs[:, i % 2]
        made.append(x.to(dtype))
    return made


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


def pytorch(op: OpDef) -> Callable[..., torch.Tensor]:
    if op.name in PYTORCH:
        return PYTORCH[op.name]
    overload = op.aten[0].split(".")[0]
    found: Callable[..., torch.Tensor] = getattr(torch.ops.aten, overload)
    return found


@pytest.mark.parametrize("name", OPS)
def test_reference_is_pytorch(name: str) -> None:
    op = OPS[name]
    x = [wide(v) for v in inputs(op, torch.float64)]
    found, expected = op.reference(*x), pytorch(op)(*x)
    # GELU's references keep the tail that PyTorch's own float64 loses below 1e-16.
    torch.testing.assert_close(found.to(expected.dtype), expected, rtol=1e-12, atol=1e-15, equal_nan=True)


@pytest.mark.parametrize("name", REDUCE)
def test_reduction_is_pytorch(name: str) -> None:
    x = torch.rand(3, 37, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 0.25
    own = {"sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin}[name]
    for special in (0.0, math.inf, -math.inf, math.nan):
        x[1, 17, 2] = special
        found = REDUCE[name].reference(x, [1])
        torch.testing.assert_close(found, own(x, 1, keepdim=True), rtol=1e-12, atol=0, equal_nan=True)


def alone(op: OpDef, dtype: DType) -> Built:
    stored = {"float": dtype, "double": FLOAT64, "bool": BOOL, "int": INT64}
    result: Any = dtype.kind if op.result == "same" or op.operands == "condition" else op.result
    if op.operands in ("bool", "int") and op.result == "same":
        result = op.operands
    tensors, nodes = {}, list[Node]()
    for i, kind in enumerate(kinds(op)):
        tensors[f"x{i}"] = Tensor(f"x{i}", stored[kind], (COUNT,), contiguous((COUNT,)))
        nodes.append(Load(f"v{i}", "full", f"x{i}", contiguous((COUNT,)), stored[kind].kind))
    nodes.append(Map("r", "full", op.name, tuple(n.name for n in nodes), result))
    out = dtype if result == dtype.kind else FLOAT32 if result == "float" else stored[result]
    tensors["y"] = Tensor("y", out, (COUNT,), contiguous((COUNT,)))
    stores = (Store("y", "r", "full", contiguous((COUNT,))),)
    return one(
        Cluster(op.name, Space(COUNT), tuple(nodes), stores, (op.name,), tensors), {}, rates_of(cpu()), False
    )


def run(built: Built, x: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    y = torch.full((COUNT,), 77, dtype=dtype)
    places = {**{f"x{i}": v.data_ptr() for i, v in enumerate(x)}, "y": y.data_ptr()}
    values = [
        places[f.tensor] if f.kind == "pointer" else int(f.size)  # type: ignore[arg-type]
        for f in built.source.block
        if f.kind != "extra"
    ]
    plan = launch.launch_plan(built)
    rows, extent = (int(s) for s in plan.sizes)  # type: ignore[arg-type]
    plan.call(rows, extent, *values)
    return y


def wrong(op: OpDef, x: list[torch.Tensor], found: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Which elements are further off than the prelude states and one rounding to the dtype allow."""
    exact = op.reference(*map(wide, x))
    if not found.is_floating_point():
        return found != exact.to(found.dtype)
    by = 0.0 if op.name in EXACT else stated(op.name, dtype.nbytes == 2)
    if found.dtype is torch.float64:
        by = 0.0 if op.name in EXACT else LIBRARY
    rounded = exact.to(found.dtype)
    to_half = dtype is FLOAT16 or op.name == "round_f16"
    smallest = (
        2.0**-24
        if to_half
        else torch.finfo(found.dtype if found.dtype is torch.float64 else torch.float32).smallest_normal
    )
    allowed = (by + dtype.unit_roundoff + ROUNDS.get(op.name, 0.0)) * exact.abs() + smallest
    near = (found.double() - exact).abs() <= allowed
    return ~(near | (found.isnan() & exact.isnan()) | (found == rounded))


def test_every_op_alone_on_the_cpu() -> None:
    cases = [
        (op, dtype, alone(op, dtype))
        for dtype in FLOATS
        for op in OPS.values()
        if not (dtype is FLOAT64 and op.name in ROUNDS)
    ]
    texts = {b.source.text: b.source for _, _, b in cases}
    kernels = dict(zip(texts, _cpu_unit(list(texts.values())), strict=True))
    complaints = []
    with mock.patch.object(launch, "cpu_kernel", lambda source: kernels[source.text]):
        for op, dtype, built in cases:
            x = inputs(op, getattr(torch, dtype.name))
            y = run(built, x, getattr(torch, built.cluster.tensors["y"].dtype.name))
            bad = wrong(op, x, y, dtype)
            if bool(bad.any()):
                at = int(bad.nonzero()[0])
                complaints.append((op.name, dtype.short, [float(v[at]) for v in x], float(y[at])))
            # The same comparison refuses a result that is one element late.
            if op.name in ("exp", "tanh", "div"):
                assert bool(wrong(op, x, y.roll(1), dtype).any())
    assert not complaints
