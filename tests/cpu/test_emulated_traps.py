"""Inputs that broke others, through CUDA kernels under the emulator; each class with a fault that must be found.

Rows of every schedule that reduces. Exact results are float64's; bounds are roundings of fp32, in which sums are, and one
of the result's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.planted import in_table, mean_in_16_bits, mean_of_squares, moments, overflowing, without
from harness.shipping import DEVICES, Emulation, captured, prepare
from onepass.ops.table import REDUCE

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
ROUNDING = 2.0**-24
EPS = 2.0**-17


def norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return F.layer_norm(x, x.shape[-1:], w, b, EPS), F.rms_norm(x, x.shape[-1:], w, EPS)


def largest(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return F.softmax(x, -1), x.amax(-1), x.amin(-1), x.sum(-1)


def middle(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (F.softmax(x.reshape(2, -1, x.shape[-1]), 1),)


@dataclass(frozen=True)
class Case:
    family: str
    function: Callable[..., tuple[Tensor, ...]]
    dtype: torch.dtype
    rows: int
    cols: int
    arch: str = "sm_90"


CASES = {
    "warp": Case("row-warp", norm, FP32, 21, 63),
    "warp, bf16": Case("row-warp", norm, BF16, 21, 250),
    "warp, fp16": Case("row-warp", norm, FP16, 21, 256),
    "block": Case("row-block", norm, FP32, 5, 4099),
    "stream": Case("row-stream", norm, FP32, 3, 50001, arch="sm_75"),
    "largest": Case("row-warp", largest, FP32, 9, 63),
    "largest, block": Case("row-block", largest, FP32, 9, 4099),
    "middle": Case("row-strided", middle, FP32, 22, 77),
}


def emulation(case: Case, change: Callable[[str], str] = str) -> Emulation:
    graph = captured.__wrapped__(case.dtype, case.cols, (case.function,), case.rows)
    return Emulation(graph, DEVICES[case.arch], change)


def random_inputs(case: Case, seed: int = 0) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    shapes = ((case.rows, case.cols), (case.rows, case.cols), (case.cols,), (case.cols,))
    return [torch.randn(s, generator=g).to(case.dtype) for s in shapes]


def moved(x: Tensor, past: int) -> Tensor:
    """The same numbers, some elements past where memory starts."""
    return x.new_zeros(x.numel() + past)[past:].view(x.shape).copy_(x)


# The traps: each gives what is wrong, or nothing


def large_mean(e: Emulation, case: Case) -> str:
    """Classes 1 and 6: means to 1e6, spreads to 1e-3, and a mean that no 16 bits hold beside its spread."""
    x, r, w, b = random_inputs(case)
    means = torch.tensor([1e2, 1e3, 1e4, 1e5, 1e6, 100.0]).repeat(4)[: case.rows, None]
    spread = torch.tensor([1e-3, 1e-2, 1e-1, 1.0, 1.0, 0.5]).repeat(4)[: case.rows, None]
    x = (means + spread * x.float()).to(case.dtype)
    found = e.run([x, r, w, b])[0].double()
    d = x.double()
    exact = F.layer_norm(d, d.shape[-1:], w.double(), b.double(), EPS)
    # The mean is off by some roundings of itself, over the spread that there is: eps at least.
    off = (
        24
        * ROUNDING
        * d.mean(-1, keepdim=True).abs()
        / torch.sqrt(d.var(-1, correction=0, keepdim=True) + EPS)
    )
    bound = (off * w.double().abs()) * (1 + exact.abs()) + 1e-5 * (1 + exact.abs())
    bound += torch.finfo(case.dtype).eps / 2 * exact.abs()
    return _over(found, exact, bound)


def large_squares(e: Emulation, case: Case) -> str:
    """Class 2: rows to 1e18, fp16 to 6e4; long ones to 1e17, whose squares add up to less than fp32's largest."""
    x, r, w, b = random_inputs(case)
    most = 6e4 if case.dtype == FP16 else 1e18 if case.cols < 1000 else 1e17
    x = (x.float().abs().clamp(max=3) / 3 * most).to(case.dtype)
    d = x.double()
    exact = [
        F.layer_norm(d, d.shape[-1:], w.double(), b.double(), EPS),
        F.rms_norm(d, d.shape[-1:], w.double(), EPS),
    ]
    for y, want in zip(e.run([x, r, w, b]), exact, strict=True):
        wrong = _over(y.double(), want, (1e-4 + torch.finfo(case.dtype).eps / 2) * (1 + want.abs()))
        if wrong:
            return wrong
    return ""


def odd_values(e: Emulation, case: Case) -> str:
    """Class 3: NaN and infinities in single lanes, at the end, in whole rows: where PyTorch has them."""
    x, r, w, b = random_inputs(case)
    last = case.cols - 1
    x[0, 0], x[1, last], x[2, 20] = math.nan, math.nan, math.nan
    x[3, 0], x[4, last], x[5, 17] = math.inf, -math.inf, math.inf
    x[6, :], x[7, :last] = -math.inf, -math.inf
    for y, want in zip(e.run([x, r, w, b]), case.function(x, r, w, b), strict=True):
        if not torch.equal(y.isnan(), want.isnan()):
            return (
                f"NaN at {y.isnan().nonzero().tolist()[:5]}, PyTorch at {want.isnan().nonzero().tolist()[:5]}"
            )
        if not torch.allclose(y, want, rtol=1e-4, atol=1e-4, equal_nan=True):
            return "another value"
    return ""


def odd_weights(e: Emulation, case: Case) -> str:
    """Class 5: weights of zero and below, constant rows."""
    x, r, w, b = random_inputs(case)
    x[1], x[2] = 3.0, 0.0
    w[::3] = 0.0
    exact = norm(*(t.double() for t in (x, r, w, b)))
    for y, want in zip(e.run([x, r, w, b]), exact, strict=True):
        if wrong := _over(y.double(), want, (2e-5 + torch.finfo(case.dtype).eps / 2) * (1 + want.abs())):
            return wrong
    return ""


def same_bits(e: Emulation, case: Case) -> str:
    """Class 8: not another bit in another place, beside other rows, or at another alignment."""
    given = random_inputs(case)
    first = e.run(given, order_seed=1)
    if not all(map(torch.equal, first, e.run(given, order_seed=5))):
        return "another order of lanes, other bits"
    if case.function is not middle:
        order = torch.randperm(case.rows, generator=torch.Generator().manual_seed(1))
        others = e.run([given[0][order].contiguous(), given[1][order].contiguous(), *given[2:]])
        if not all(torch.equal(a[order], b) for a, b in zip(first, others, strict=True)):
            return "another place, other bits"
    for past in (1, 2):
        if not all(map(torch.equal, first, e.run([moved(t, past) for t in given]))):
            return f"{past} elements past, other bits"
    return ""


def _over(found: Tensor, exact: Tensor, bound: Tensor) -> str:
    off = torch.nan_to_num((found - exact).abs() / bound, nan=math.inf)
    return f"{float(off.max()):.3g} of the bound" if bool((off > 1).any()) else ""


Trap = Callable[[Emulation, Case], str]
TRAPS: tuple[tuple[Trap, str], ...] = (
    *((large_mean, name) for name in ("warp", "warp, bf16", "block", "stream")),
    *((large_squares, name) for name in ("warp", "warp, bf16", "warp, fp16", "stream")),
    *((odd_values, name) for name in ("largest", "largest, block", "middle")),
    *((odd_weights, name) for name in ("warp", "warp, bf16", "block")),
    *((same_bits, name) for name in ("warp", "warp, bf16", "warp, fp16", "block", "largest", "middle")),
)


@pytest.fixture(scope="module")
def right() -> dict[str, Emulation]:
    made = {name: emulation(case) for name, case in CASES.items()}
    prepare([(e, _shifted(CASES[name], past)) for name, e in made.items() for past in (0, 1, 2)])
    return made


def _shifted(case: Case, past: int) -> list[Tensor]:
    return [moved(t, past) for t in random_inputs(case)]


@pytest.mark.parametrize(("trap", "name"), TRAPS, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_traps(right: dict[str, Emulation], trap: Trap, name: str) -> None:
    assert {k.schedule.family for k in right[name].plan.kernels} == {CASES[name].family}
    wrong = trap(right[name], CASES[name])
    assert not wrong, wrong


# A fault for each


def dropping_nan() -> AbstractContextManager[Any]:
    return in_table(REDUCE, "max", combine="({0} > {1} ? {0} : {1})")


def by_row(text: str) -> str:
    return text.replace("= group.sum(", "= (row & 1 ? 1.0000002f : 1.0f) * group.sum(")


def by_alignment(text: str) -> str:
    return text.replace("= group.sum(", "= ((i64)a.x0 & 15 ? 1.0000002f : 1.0f) * group.sum(")


FAULTS: dict[str, tuple[Trap, str, Callable[[], AbstractContextManager[Any]], Callable[[str], str]]] = {
    "1 the mean of squares less the square of the mean": (
        large_mean,
        "warp",
        lambda: moments(mean_of_squares),
        str,
    ),
    "1 the same, in a row that is walked": (large_mean, "stream", lambda: moments(mean_of_squares), str),
    "2 squares that overflow": (large_squares, "warp", lambda: moments(overflowing), str),
    "3 a maximum that drops NaN": (odd_values, "largest", dropping_nan, str),
    "5 no eps": (odd_weights, "warp", lambda: moments(without(EPS)), str),
    "6 a mean in 16 bits": (large_mean, "block", lambda: moments(mean_in_16_bits), str),
    "8 sums that depend on the row": (same_bits, "warp", nullcontext, by_row),
    "8 sums that depend on alignment": (same_bits, "warp, fp16", nullcontext, by_alignment),
}


@pytest.fixture(scope="module")
def wrong() -> dict[str, Emulation]:
    made = {}
    for fault, (_, name, plant, change) in FAULTS.items():
        with plant():
            made[fault] = emulation(CASES[name], change)
    prepare([(e, _shifted(CASES[FAULTS[f][1]], past)) for f, e in made.items() for past in (0, 1, 2)])
    return made


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(wrong: dict[str, Emulation], fault: str) -> None:
    trap, name, _, change = FAULTS[fault]
    text = wrong[fault].plan.kernels[0].source.text
    assert change is str or change(text) != text, "nothing to change"
    assert trap(wrong[fault], CASES[name])
