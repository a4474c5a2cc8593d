"""Element-wise kernels whose rows no vector divides, emulated: one walk over all elements, row vectors by column.

Tensors at 16 bytes and one element past; the last block full, one element short of it, one element more; rows that end
inside a vector, at its first element and at its last; a row shorter than a block and one longer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.oracle import capture
from harness.shipping import DEVICES, Emulation, planning_for, prepare
from onepass import build as pipeline
from onepass.errors import KernelFault
from onepass.plan.schedules.flat import FlatSchedule

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
H200 = DEVICES["sm_90"]
SHORT = 2.0**-11  # of a function for 16-bit results
Results = tuple[Tensor, ...]


def bias_gelu(x: Tensor, r: Tensor, b: Tensor) -> Results:
    return (F.gelu(x + b, approximate="tanh"),)


def swiglu(x: Tensor, r: Tensor, b: Tensor) -> Results:
    return (F.silu(x) * r,)


def scaled_and_shifted(x: Tensor, r: Tensor, b: Tensor) -> Results:
    total = x * b[0] + r
    return total, total * b + r


def widened(x: Tensor, r: Tensor, b: Tensor) -> Results:
    return (x.float() + b.float(),)


def narrowed(x: Tensor, r: Tensor, b: Tensor) -> Results:
    return (x.bfloat16(), x > r)


def causal(x: Tensor, r: Tensor, b: Tensor) -> Results:
    """Positions along both dimensions."""
    q, k = torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])[None]
    return (torch.where(q + 7 >= 3 * k, x + b, -100.0),)


def band(x: Tensor, r: Tensor, b: Tensor) -> Results:
    """A result of one byte, and nothing read."""
    q, k = torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])[None]
    return ((q >= k) & (q - k < 5),)


@dataclass(frozen=True)
class Case:
    function: Callable[..., Results]
    dtype: torch.dtype
    rows: int
    cols: int
    past: int = 0  # elements past 16 bytes at which every tensor starts

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.function.__name__}-{dtype}-{self.rows}x{self.cols}+{self.past}"


CASES = (
    Case(bias_gelu, BF16, 37, 45),
    Case(bias_gelu, BF16, 9, 1023),
    Case(bias_gelu, BF16, 9, 1023, past=1),
    Case(bias_gelu, FP16, 21, 390),  # 8190 elements, two fewer than two blocks
    Case(bias_gelu, FP32, 3, 683),  # one more than a block of 2048
    Case(bias_gelu, FP32, 5, 2051, past=1),
    Case(swiglu, BF16, 13, 631),  # 8203 elements
    Case(swiglu, FP32, 1, 4095),
    Case(swiglu, FP32, 3, 1365, past=3),
    Case(scaled_and_shifted, FP32, 11, 101),
    Case(scaled_and_shifted, BF16, 11, 19),
    Case(widened, BF16, 7, 333),
    Case(narrowed, FP32, 7, 333),
    Case(causal, BF16, 37, 45),
    Case(causal, FP32, 37, 145, past=1),
    Case(causal, FP32, 3, 3),
    Case(band, FP32, 37, 145),
)


def inputs(case: Case) -> list[Tensor]:
    generator = torch.Generator().manual_seed(case.rows * case.cols)

    def made(*shape: int) -> Tensor:
        x = torch.randn(shape, generator=generator).to(case.dtype) + 0.5
        return torch.empty(x.numel() + case.past, dtype=x.dtype)[case.past :].view(shape).copy_(x)

    return [made(case.rows, case.cols), made(case.rows, case.cols), made(case.cols)]


def emulation(case: Case, change: Callable[[str], str] = str) -> Emulation:
    with planning_for(H200):
        graph = capture(case.function, inputs(case), pipeline.fit)
    return Emulation(graph, H200, change, past=case.past)


@pytest.fixture(scope="module")
def made() -> dict[Case, Emulation]:
    found = {case: emulation(case) for case in CASES}
    prepare([(e, inputs(case)) for case, e in found.items()])
    return found


def share_of_bound(case: Case, found: list[Tensor], given: list[Tensor]) -> float:
    """Of what an element may be off by: a few roundings of values up to 5 before the result's own; NaN is infinite."""
    doubles = [t.double() for t in given]
    if case.function in (narrowed, causal, band):
        expected: Results = case.function(*given)
    else:
        function = case.function
        expected = function(*(doubles if function is not widened else given))
    worst = 0.0
    for y, want in zip(found, expected, strict=True):
        if y.dtype is torch.bool:
            worst = max(worst, 0.0 if torch.equal(y, want) else float("inf"))
            continue
        want = want.double()
        short = SHORT if case.dtype != FP32 else 0.0
        bound = torch.finfo(y.dtype).eps / 2 * want.abs() + (8 * 2.0**-24 + short) * (want.abs() + 5)
        worst = max(worst, float(torch.nan_to_num((y.double() - want).abs() / bound, nan=float("inf")).max()))
    return worst


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_float64s(made: dict[Case, Emulation], case: Case) -> None:
    given = inputs(case)
    before = [x.clone() for x in given]
    found = made[case].run(given, order_seed=1)
    (kernel,) = made[case].plan.kernels
    assert isinstance(kernel.schedule, FlatSchedule) and kernel.schedule.level
    assert share_of_bound(case, found, given) <= 1
    assert all(map(torch.equal, before, given))


def test_no_access_is_wider_than_16_bytes_a_lane(made: dict[Case, Emulation]) -> None:
    """Where dtypes differ, the widest decides: its lanes' accesses lie side by side."""
    for case in CASES:
        (kernel,) = made[case].plan.kernels
        whole = [a for a in kernel.kernel.accesses if any(s != 0 for s in a.outer) or not a.outer]
        assert all(a.column == "unit" for a in whole)
        assert max(a.dtype.nbytes for a in whole) * kernel.schedule.width == 16


def test_rows_that_vectors_divide_are_walked_as_rows() -> None:
    for cols in (48, 1024):
        (kernel,) = emulation(Case(bias_gelu, BF16, 9, cols)).plan.kernels
        assert isinstance(kernel.schedule, FlatSchedule) and not kernel.schedule.level


BROKEN: tuple[tuple[Case, str, str, tuple[str, ...]], ...] = (
    (CASES[0], r"c \+ i < cols \? c \+ i : c \+ i - cols", "c + i", ("out-of-bounds",)),
    (CASES[1], r"hop = T \* E % cols", "hop = 0", ()),
    (CASES[1], r"odd = c & 1", "odd = 0", ("misaligned", "crash")),
    (CASES[6], r"else if \(block \+ \d+ <= total\)", "else if (true)", ("out-of-bounds",)),
    (CASES[13], r"c \+ e >= cols \?", "false ?", ()),
    (CASES[7], r"total - first\)", "total - first - 1)", ()),
)


@pytest.mark.parametrize("index", range(len(BROKEN)))
def test_what_is_broken_is_found(index: int) -> None:
    case, pattern, new, kinds = BROKEN[index]

    def change(text: str) -> str:
        changed, count = re.subn(pattern, new, text)
        assert count, f"nothing to break: {pattern}"
        return changed

    e: Any = emulation(case, change)
    given = inputs(case)
    prepare([(e, given)])
    if not kinds:
        assert share_of_bound(case, e.run(given), given) > 1
        return
    with pytest.raises(KernelFault) as caught:
        e.run(given)
    assert caught.value.kind in kinds
