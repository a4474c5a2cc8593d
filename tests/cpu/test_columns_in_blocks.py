"""Columns in blocks (a group norm's weight, a batch norm's images) in each CUDA schedule, and rows that teams share.

Under the emulator, against float64. Vectors divide a block or they don't; blocks of one dimension and of two; rows that a
warp, a block, a thread-block cluster, a grid hold, and that none does; tensors at 16 bytes and past.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.oracle import capture
from harness.shipping import DEVICES, FEW, H200, Emulation, planning_for, prepare
from onepass import build as pipeline
from onepass.errors import KernelFault

FP32, BF16 = torch.float32, torch.bfloat16
FEWER = replace(H200, units=FEW)
ROUNDING = 2.0**-24


def group_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x, 2, w, b)


def batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    # PyTorch's own batch norm, which the host's tracing would name differently.
    return torch.ops.aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5)[0]


def two_levels(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Over the first, third and last of five dimensions: blocks of two dimensions."""
    y = x.reshape(x.shape[0], w.numel(), 3, 4, -1).permute(1, 3, 0, 2, 4)
    return torch.softmax(y.reshape(4 * w.numel(), -1), -1)


def last_channels(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x.permute(0, 3, 1, 2), 2, w, b).permute(0, 2, 3, 1)


@dataclass(frozen=True)
class Case:
    family: str
    function: Callable[..., Tensor]
    dtype: torch.dtype
    shape: tuple[int, ...]
    past: int = 0  # elements past 16 bytes at which every tensor starts
    device: str = "sm_90"

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.family}-{self.function.__name__}-{dtype}-{'x'.join(map(str, self.shape))}+{self.past}"


CASES = (
    Case("row-warp", group_norm, FP32, (3, 16, 4, 6)),
    Case("row-warp", group_norm, BF16, (5, 8, 4, 6), past=1),
    Case("row-block", group_norm, FP32, (3, 16, 24, 20), past=1),
    Case("row-walk", group_norm, FP32, (3, 16, 5, 7)),
    Case("row-cluster", group_norm, FP32, (2, 16, 60, 84)),
    Case("row-stream", group_norm, FP32, (2, 16, 80, 84), device="sm_75"),
    Case("row-stream", group_norm, FP32, (2, 16, 80, 84), past=1, device="sm_75"),
    Case("row-block", batch_norm, FP32, (3, 5, 20, 20)),
    Case("row-warp", batch_norm, BF16, (3, 5, 20, 20), past=1),
    Case("row-walk", batch_norm, FP32, (3, 5, 7, 9)),
    Case("row-cluster", batch_norm, FP32, (4, 3, 96, 100)),
    Case("row-stream", batch_norm, FP32, (4, 3, 112, 116), device="sm_75"),
    Case("row-warp", two_levels, FP32, (3, 2, 3, 4, 40)),
    Case("row-warp", two_levels, BF16, (3, 2, 3, 4, 40), past=1),
    Case("row-grid", group_norm, FP32, (2, 4, 400, 384), device="few"),
    Case("row-grid", group_norm, BF16, (1, 4, 400, 400), past=1, device="few"),
    Case("row-grid", batch_norm, FP32, (3, 3, 320, 300), device="few"),
)


def inputs(case: Case) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(case.shape))

    def made(*shape: int) -> Tensor:
        x = (torch.randn(shape, generator=generator) + 1.5).to(case.dtype)
        return torch.empty(x.numel() + case.past, dtype=x.dtype)[case.past :].view(shape).copy_(x)

    return [made(*case.shape), made(case.shape[1]), made(case.shape[1])]


def emulation(case: Case, change: Callable[[str], str] = str) -> Emulation:
    device = FEWER if case.device == "few" else DEVICES[case.device]
    with planning_for(device):
        graph = capture(lambda *given: (case.function(*given),), inputs(case), pipeline.fit)
    return Emulation(graph, device, change)


def share_of_bound(case: Case, found: Tensor, given: list[Tensor]) -> float:
    """The largest error as a share of what it may be; NaN counts as infinite.

    Normalised values up to 8 are off by a few roundings, and by one for each number that a lane adds after another: at most
    176 where a row is held, the parts of a streamed row beside them. A 16-bit result is rounded once more.
    """
    want = case.function(*(t.double() for t in given))
    _, w, b = (t.double().abs().max() for t in given)
    bound = 192 * ROUNDING * (8 * w + b + 8) + torch.finfo(case.dtype).eps / 2 * want.abs()
    assert found.shape == want.shape and found.dtype == case.dtype
    return float(torch.nan_to_num((found.double() - want).abs() / bound, nan=float("inf")).max())


@pytest.fixture(scope="module")
def right() -> dict[Case, Emulation]:
    made = {case: emulation(case) for case in CASES}
    prepare([(e, inputs(case)) for case, e in made.items()])
    return made


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_float64s(right: dict[Case, Emulation], case: Case) -> None:
    given = inputs(case)
    before = [x.clone() for x in given]
    (found,) = right[case].run(given, order_seed=1)
    (kernel,) = right[case].plan.kernels
    assert kernel.schedule.family == case.family
    assert kernel.kernel.blocks
    assert share_of_bound(case, found, given) <= 1
    assert all(map(torch.equal, before, given))
    (again,) = right[case].run(given, order_seed=2)
    assert torch.equal(found, again)


def test_channels_last_has_columns_in_one_stride_or_a_schedule() -> None:
    """Its weight's neighbour is a channel away: no vector lies in one block, and results are float64's all the same."""
    case = Case("", last_channels, FP32, (2, 4, 5, 16))
    x, w, b = inputs(case)
    given = [x, w.new_ones(16) + w.mean(), b.new_zeros(16) + b.mean()]
    with planning_for(H200):
        graph = capture(lambda *given: (last_channels(*given),), given, pipeline.fit)
    made = Emulation(graph, H200)
    prepare([(made, given)])
    (found,) = made.run(given)
    assert share_of_bound(case, found, given) <= 1


# One thing is broken in each: a case, the pattern, what replaces it.
BROKEN = (
    (CASES[0], r"/ 24 \* a\.x1_b0", "/ 25 * a.x1_b0"),
    (CASES[5], r"/ 6720 \* a\.x1_b0", "/ 6724 * a.x1_b0"),
    (CASES[7], r"% 400\b", "% 404"),
    (CASES[12], r"/ 40 % 3", "/ 40 % 4"),
    (CASES[14], r"/ 153600 \* a\.x1_b0", "/ 153604 * a.x1_b0"),
)


def test_a_wrong_block_is_found() -> None:
    def breaks(pattern: str, new: str) -> Callable[[str], str]:
        def change(text: str) -> str:
            changed, count = re.subn(pattern, new, text)
            assert count, f"nothing to break: {pattern}"
            return changed

        return change

    made = [emulation(case, breaks(pattern, new)) for case, pattern, new in BROKEN]
    prepare([(e, inputs(case)) for e, (case, _, _) in zip(made, BROKEN, strict=True)])
    for emulated, (case, _, _) in zip(made, BROKEN, strict=True):
        given = inputs(case)
        if case.function is group_norm:  # the next weight, or the last one's neighbour
            assert share_of_bound(case, emulated.run(given)[0], given) > 1, case
            continue
        with pytest.raises(KernelFault, match="out-of-bounds"):
            emulated.run(given)


# Rows that teams share


def test_a_row_has_the_same_bits_whichever_team_takes_it_and_when(right: dict[Case, Emulation]) -> None:
    """Alone, first, and last of five: the third row of a team, after two exchanges each of two others."""
    case = CASES[14]
    x, w, b = inputs(case)
    many = torch.cat([x, x.flip(0), x[:1]])
    results = []
    for given in (x[:1], x, many):
        one = replace(case, shape=tuple(given.shape))
        made = emulation(one)
        made.kernels = right[case].kernels
        prepare([(made, [given, w, b])])
        results += made.run([given, w, b], order_seed=2)
    alone, two, five = results
    assert torch.equal(alone[0], two[0])
    assert torch.equal(five[:2], two)
    assert torch.equal(five[2], two[1])
    assert torch.equal(five[4], two[0])


def test_words_that_another_launch_left_would_be_taken_for_this_ones(right: dict[Case, Emulation]) -> None:
    """What makes the zeros at a launch's start necessary: a word of the first exchange with a sum of 100."""
    case = CASES[14]
    given = inputs(case)

    def stale(self: Tensor) -> Tensor:
        self.view(torch.int64).fill_(1 << 32 | int(torch.tensor(100.0).view(torch.int32)))
        return self

    with mock.patch.object(Tensor, "zero_", stale):
        (found,) = right[case].run(given)
    assert share_of_bound(case, found, given) > 1
