"""Running sums and products, fused with what is around them: on the CPU, and for CUDA in the emulator.

Columns: two; a row in one warp; one whose last vectors leave lanes idle; odd ones; one of several warps; the longest that
registers hold. A running sum of n terms in fp32 is off by at most n roundings of the sum of their sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness import together
from harness.oracle import trace
from harness.together import Planned, broken, planned, run_emulated, run_on_cpu
from onepass.codegen.emit import Source
from onepass.emulate import EmulatedKernel, KernelSource, compile_many
from onepass.errors import KernelFault

FP32, BF16, FP64, I64, BOOL = torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool
UNIT = {FP32: 2.0**-24, BF16: 2.0**-9, FP64: 2.0**-53}


def running(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (x.cumsum(-1),)


def product(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return ((1 + x / 64).cumprod(-1),)


def fused(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Between what makes its terms and what takes its results, twice, with a reduction behind it."""
    total = (x * w).cumsum(-1)
    return F.relu(total) + 1, total.cumsum(-1), total.sum(-1)


def normal(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """In two phases: what was scanned is held."""
    total = x.cumsum(-1)
    return (total / total.abs().amax(-1, keepdim=True),)


def down(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x.cumsum(0) * w, x.cumprod(0)


def beside_vectors(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (x[:, 1:].cumsum(-1),)


def counted(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return ((x > 0).cumsum(-1),)


@dataclass(frozen=True)
class Case:
    function: Callable[..., tuple[Tensor, ...]]
    rows: int
    cols: int
    dtype: torch.dtype = FP32

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.function.__name__}-{dtype}-{self.rows}x{self.cols}"


CASES = (
    *(Case(running, 3, n) for n in (2, 7, 64, 129, 1000, 1023, 1024, 4100, 16384)),
    *(Case(running, 5, n, BF16) for n in (9, 1000, 1023, 4096)),
    *(Case(f, 3, n, t) for f in (fused, normal) for n, t in ((63, FP32), (1000, BF16), (2049, FP32))),
    Case(beside_vectors, 3, 1025),
    Case(beside_vectors, 3, 513, BF16),
    Case(product, 4, 777),
    Case(product, 2, 2048, BF16),
    Case(down, 70, 33),
    Case(down, 40, 64, BF16),
    *(Case(f, 3, n, t) for f in (running, counted) for n, t in ((100, I64), (1500, I64), (300, FP64))),
    Case(running, 3, 300, BOOL),
)


def inputs(case: Case) -> list[Tensor]:
    generator = torch.Generator().manual_seed(case.cols)
    x = torch.randn(case.rows, case.cols, generator=generator) + 0.25
    w = torch.randn(case.cols, generator=generator)
    scale = 100 if case.dtype is I64 else 1
    return [(x * scale).to(case.dtype), (w * scale).to(case.dtype)]


def wrong(case: Case, found: Sequence[Tensor]) -> str:
    """How far beyond its bound a result is, if it is."""
    given = inputs(case)
    exact = given if not case.dtype.is_floating_point else [t.double() for t in given]
    # The sum of the sizes of what was added, and again for a sum of sums.
    sizes = [t.abs() if case.dtype is not BOOL else t for t in exact]
    terms = 2 * (case.rows if case.function is down else case.cols) + 16
    for got, right, size in zip(found, case.function(*exact), case.function(*sizes), strict=True):
        if not case.dtype.is_floating_point or not got.dtype.is_floating_point:
            if not torch.equal(got, right.to(got.dtype)):
                return "other integers"
            continue
        bound = terms * 2.0**-24 * (1 if case.dtype is not FP64 else 2.0**-29) * size.abs()
        if case.function is normal:
            bound = bound * terms  # a largest total may be small beside the terms
        over = (got.double() - right).abs() - bound - 4 * UNIT[got.dtype] * (right.abs() + size.abs())
        if not bool((over <= 0).all()):
            return f"off by {float(over.max())} more than it may be"
    return ""


def plans(cases: Sequence[Case], cuda: bool) -> list[Planned]:
    return [planned(trace(c.function, inputs(c)), inputs(c), cuda) for c in cases]


@pytest.fixture(scope="module", params=["cpu", "emulated"])
def ran(request: pytest.FixtureRequest) -> dict[Case, tuple[Planned, list[Tensor]]]:
    cuda = request.param == "emulated"
    made = plans(CASES, cuda)
    results = (run_emulated if cuda else run_on_cpu)(made)
    return dict(zip(CASES, zip(made, results, strict=True), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_kernel_gives_pytorchs_values(ran: dict[Case, tuple[Planned, list[Tensor]]], case: Case) -> None:
    plan, found = ran[case]
    assert not plan.left
    assert len(plan.plan.kernels) == 1, plan.plan.decisions
    assert wrong(case, found) == ""


# Each is broken in one place: what it is called, where, and what stands there instead.
BROKEN = (
    ("the warps before", "emulated", r"if \(first \+ w < warp\) start = Op::of\(start, one\);", ""),
    ("the vectors before", "emulated", r"total = Op::of\(total, one\);", ""),
    ("the first lane", "emulated", r"lane == 0 \? start : ", ""),
    ("a step too few", "emulated", r"d < span; d \*= 2", "d < span / 2; d *= 2"),
    ("no wait for the other warps", "emulated", r"= all;\n      __syncthreads\(\);", "= all;"),
    ("the columns before", "cpu", r"x = total = total OP x;", "x = total OP x;"),
    ("columns seen twice", "cpu", r"(float v\d+_t) = float\(0.0f\)", r"\1 = 1.0f"),
)
BROKEN_CASE = Case(running, 3, 16384)


@pytest.mark.parametrize(("where", "pattern", "new"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_what_is_broken_is_found(where: str, pattern: str, new: str) -> None:
    plan = broken(plans([BROKEN_CASE], where == "emulated")[0], pattern, new)

    def with_their_own_prelude(sources: Sequence[Source]) -> list[EmulatedKernel]:
        return compile_many([KernelSource(s.name, s.text) for s in sources])

    try:
        with mock.patch.object(together, "_cuda_unit", with_their_own_prelude):
            (found,) = (run_emulated if where == "emulated" else run_on_cpu)([plan])
    except KernelFault:
        return
    assert wrong(BROKEN_CASE, found)
