"""Rows that start anywhere, under the emulator: right, and the same bits wherever each tensor starts.

Tensors start at every element of 16 bytes, each at another one. Rows: odd (units of one or two, through shared memory),
divided by a half of a vector, by a whole one (narrower accesses where a tensor starts elsewhere); held by a part of a warp,
by one, by several; windows of a concatenation, a gathered row, slices of wider rows and elements two apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.oracle import capture
from harness.shipping import (
    DEVICES,
    Emulation,
    add_rms_norm,
    gelu_tanh_add_layer_norm,
    layer_norm,
    planning_for,
    prepare,
    softmax,
)
from onepass import build as pipeline
from onepass.errors import KernelFault
from onepass.plan.schedules import row
from onepass.plan.schedules.row import RowSchedule

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
H200 = DEVICES["sm_90"]
ROUNDING = 2.0**-24
SHORT = 2.0**-11  # of a function for 16-bit results


def joined(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A cat whose pieces end between vectors."""
    return F.layer_norm(torch.cat([x, r[:, :40], x * 2], -1), (2 * x.shape[-1] + 40,))


def gathered(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Rows of a table, from the last to the first."""
    rows = r.shape[0] - 1 - torch.arange(r.shape[0])
    return F.layer_norm(F.embedding(rows, r) + x, x.shape[-1:], w, b)


def sliced(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Rows inside wider ones, and elements two apart."""
    half = (x.shape[-1] - 1) // 2
    return F.layer_norm(x[:, 1 : 1 + half] + r[:, : 2 * half : 2], (half,), w[:half], b[:half])


def mixed(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A result of another dtype, twice as wide."""
    return F.layer_norm(x.float() + r.float(), x.shape[-1:], w.float(), b.float())


Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    function: Function
    dtype: torch.dtype
    rows: int
    cols: int

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.function.__name__}-{dtype}-{self.rows}x{self.cols}"

    @property
    def starts(self) -> int:
        """Elements in 16 bytes."""
        return 16 // self.dtype.itemsize


CASES = (
    Case(layer_norm, BF16, 9, 1023),
    Case(add_rms_norm, FP32, 9, 1023),
    Case(gelu_tanh_add_layer_norm, BF16, 3, 1203),
    Case(softmax, FP16, 21, 195),
    Case(layer_norm, FP32, 19, 131),
    Case(add_rms_norm, BF16, 9, 516),
    Case(softmax, FP32, 9, 514),
    Case(layer_norm, BF16, 3, 2048),
    Case(gelu_tanh_add_layer_norm, FP32, 9, 256),
    Case(add_rms_norm, FP16, 9, 248),
    Case(joined, BF16, 5, 173),
    Case(gathered, BF16, 9, 261),
    Case(sliced, BF16, 9, 301),
    Case(mixed, BF16, 9, 129),
    Case(softmax, BF16, 9, 3),
    Case(gelu_tanh_add_layer_norm, FP32, 9, 1),
)


def inputs(case: Case, past: int) -> list[Tensor]:
    """Tensor number i begins past × (i + 1) elements past 16 bytes, counted round."""
    generator = torch.Generator().manual_seed(case.cols)

    def made(i: int, *shape: int) -> Tensor:
        # A mean far from 0 shows an unmasked lane, a large last column a sum that leaves it out.
        x = torch.randn(shape, generator=generator).to(case.dtype) + 1.5
        x[..., -1] = 12
        start = past * (i + 1) % case.starts
        return torch.empty(x.numel() + start, dtype=x.dtype)[start:].view(shape).copy_(x)

    rows, cols = case.rows, case.cols
    return [made(0, rows, cols), made(1, rows, cols), made(2, cols), made(3, cols)]


def emulations(case: Case, change: Callable[[str], str] = str) -> list[Emulation]:
    """One for each start; the planner does not see where tensors start."""

    def function(*given: Tensor) -> tuple[Tensor, ...]:
        results = case.function(*given)
        return results if isinstance(results, tuple) else (results,)

    with planning_for(H200):
        graph = capture(function, inputs(case, 0), pipeline.fit)
    return [Emulation(graph, H200, change, past=past) for past in range(case.starts)]


@pytest.fixture(scope="module")
def made() -> dict[Case, list[Emulation]]:
    found = {case: emulations(case) for case in CASES}
    prepare([(e, inputs(case, e.past)) for case, each in found.items() for e in each])
    return found


def share_of_bound(case: Case, found: list[Tensor], given: list[Tensor]) -> float:
    """The largest error as a share of what it may be: that of the same schedules in test_emulated_schedules.py."""
    doubles = [t.double() for t in given]
    expected = (
        case.function(*doubles)
        if case.function is not mixed
        else layer_norm(doubles[0] + doubles[1], *doubles[1:])
    )
    short = SHORT if case.dtype != FP32 else 0.0
    worst = 0.0
    for y, want in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        if case.function is softmax:
            spread = float(doubles[0].max() - doubles[0].min())
            slack = want * ((2 * spread + 80) * ROUNDING + short)
        else:
            slack = 80 * ROUNDING * 12 * 14 + short * 4 * 13
        bound = torch.finfo(y.dtype).eps / 2 * want.abs() + slack + torch.finfo(y.dtype).tiny
        worst = max(worst, float(torch.nan_to_num((y.double() - want).abs() / bound, nan=float("inf")).max()))
    return worst


@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_bits_wherever_tensors_start(made: dict[Case, list[Emulation]], case: Case) -> None:
    given = inputs(case, 0)
    (kernel,) = made[case][0].plan.kernels
    assert isinstance(kernel.schedule, RowSchedule)
    first = made[case][0].run(given, order_seed=1)
    assert share_of_bound(case, first, given) <= 1
    for e in made[case][1:]:
        shifted = inputs(case, e.past)
        before = [x.clone() for x in shifted]
        found = e.run(shifted, order_seed=1 + e.past)
        assert all(map(torch.equal, found, first)), f"{e.past} elements past 16 bytes"
        assert all(map(torch.equal, before, shifted))


def test_staged_or_not_gives_the_same_bits() -> None:
    case = CASES[0]
    through, directly = emulations(case)[0], emulations(case)[0]
    built = directly.plan.kernels[0]
    schedule = row.staged(built.kernel, built.schedule, 0)
    assert built.schedule.staged and not schedule.staged
    source = pipeline.emit(built.kernel, schedule, built.source.name)
    directly.plan = replace(directly.plan, items=(replace(built, schedule=schedule, source=source),))
    given = inputs(case, 0)
    prepare([(through, given), (directly, given)])
    assert all(map(torch.equal, through.run(given), directly.run(given)))


def test_a_start_that_changed_the_lanes_is_seen() -> None:
    """Half the lanes, twice the steps, where a tensor starts elsewhere: right to rounding, in other bits."""

    def halved(kernel: Any, schedule: RowSchedule, accesses: tuple[int, ...], device: Any) -> RowSchedule:
        less = replace(schedule, accesses=accesses, lanes=schedule.lanes // 2, steps=2 * schedule.steps)
        return replace(less, groups=schedule.threads // less.lanes)

    case = Case(layer_norm, FP32, 9, 256)
    at, past = emulations(case)[:2]
    with mock.patch.object(row, "narrower", halved):
        prepare([(at, inputs(case, 0)), (past, inputs(case, 1))])
        first, second = at.run(inputs(case, 0)), past.run(inputs(case, 1))
    assert not all(map(torch.equal, first, second))


# What is broken, and the faults that may be found: a result that is poison, memory read before it is written, two threads
# at one place, an access outside a tensor.
BROKEN: tuple[tuple[Case, str, str, tuple[str, ...]], ...] = (
    (CASES[0], r"group_barrier<T>\(\);", "", ("shared-race", "unwritten-shared")),
    (CASES[2], r"group_barrier<T>\(\);", "", ("shared-race", "unwritten-shared")),
    (CASES[0], r"if \(partial && i < 2 \* per\) s\[e\]", "if (false) s[e]", ("unwritten-shared",)),
    (CASES[0], r"if \(partial && i < 2 \* per && e >= 0 && e < N\)", "if (false)", ()),
    (CASES[0], r"at >= past && at \+ 16 <= past \+ bytes", "true", ("out-of-bounds",)),
    (CASES[0], r"odd = \(unsigned long long\)s & 2;", "odd = false;", ("misaligned", "crash")),
)


@pytest.mark.parametrize("index", range(len(BROKEN)))
def test_what_is_broken_is_found(index: int) -> None:
    case, pattern, new, kinds = BROKEN[index]

    def change(text: str) -> str:
        changed, count = re.subn(pattern, new, text)
        assert count, f"nothing to break: {pattern}"
        return changed

    e = emulations(case, change)[1]
    given = inputs(case, 1)
    prepare([(e, given)])
    if not kinds:
        assert share_of_bound(case, e.run(given), given) > 1
        return
    with pytest.raises(KernelFault) as caught:
        e.run(given)
    assert caught.value.kind in kinds


def test_what_is_copied_is_waited_for() -> None:
    """The emulator copies at once; on a device a copy is there only after this thread waited and all met."""
    for case in CASES:
        for built in emulations(case)[0].plan.kernels:
            body = built.source.text[built.source.text.rindex('extern "C"') :]
            steps = re.findall(r"stage_in<|ptx_copies_wait|group_barrier|load_all|_l\.load", body)
            if "stage_in<" in steps:
                last = len(steps) - 1 - steps[::-1].index("stage_in<")
                assert steps[last + 1 : last + 3] == ["ptx_copies_wait", "group_barrier"]
                assert set(steps[: last + 1]) == {"stage_in<"}
