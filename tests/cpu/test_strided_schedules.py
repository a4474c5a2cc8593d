"""Reductions with inner dimensions and tiles, under the emulator, over sizes that leave lanes, vectors and blocks over.

The reduced dimension takes 1, 3, 37, 129 and more, the inner one 1 to 128, tensors start at 16 bytes and one element past;
rows that are divided among blocks are small ones with the limit lowered. Results are held to float64: an element is off by
one rounding of its dtype and, before that, by one rounding of fp32 for each term that a lane adds after another and each
step of the tree, at most 64, of values up to 8, which a norm divides by a deviation near 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from harness.oracle import trace
from harness.together import Planned, changed, planned, run_emulated
from onepass.ir.kernel import Accumulate, ColumnLoop, Kernel
from onepass.plan.schedules import row_strided
from onepass.plan.schedules.row_strided import StridedSchedule
from onepass.plan.schedules.tiled import TiledSchedule

FP32, BF16 = torch.float32, torch.bfloat16
SERIAL, LARGEST = 64, 8.0
Function = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
Shape = tuple[int, int, int]


def softmax(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (F.softmax(x, 1),)


def rms_norm(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Channels first: a weight for each channel."""
    return (x * torch.rsqrt((x * x).mean(1, True) + 1e-6) * w[:, None],)


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Weights for each channel and for each inner element; the statistics are stored too."""
    mean = x.mean(1, True)
    variance = (x - mean).square().mean(1, True)
    return (x - mean) * torch.rsqrt(variance + 1e-2) * w[:, None] + b, mean, variance


def several(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return x.mean(1), x.amax(1), x.amin(1) * b, x.float().mean(1) > 1.5


def down(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Columns of a matrix: nothing outside the reduced dimension."""
    x = x.flatten(0, 1)
    return x.mean(0), x.amax(0) + b


def normalized(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    x = x.flatten(0, 1)
    return ((x - x.mean(0)) * torch.rsqrt(x.var(0, correction=0) + 1e-2) + b,)


def across(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Rows that run across memory, as where an image's channels are made last; the result lies along the rows."""
    y = x.transpose(1, 2)
    return F.layer_norm(y, (x.shape[1],), w, w, 1e-2), y.sum(-1), F.softmax(y, -1)


def across_with_residual(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    y = x.transpose(1, 2) * 2 + x.reshape(x.shape[0], x.shape[2], x.shape[1])
    return F.rms_norm(y, (x.shape[1],), w, 1e-2), y


def turned(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (x.transpose(1, 2).contiguous() * 2,)


def turned_with_operands(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """One operand for each channel, one for each inner element, one that is not turned, one read across."""
    straight = x.reshape(x.shape[0], x.shape[2], x.shape[1])
    return ((F.silu(x.transpose(1, 2)) * w + b.T + straight).contiguous(),)


def reversed_dimensions(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (x.permute(2, 1, 0).contiguous() + 1,)


def both_ways(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    y = x * 2 + b
    return y, F.relu(y.transpose(1, 2)).contiguous()


def channels_last(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (F.silu(x.unflatten(2, (1, -1))).to(memory_format=torch.channels_last),)


REDUCTIONS: tuple[Function, ...] = (softmax, rms_norm, layer_norm, several, down, normalized)
REDUCED: tuple[Shape, ...] = ((2, 50, 77), (9, 3, 5), (3, 37, 8), (2, 64, 64), (3, 129, 3), (2, 1, 37))
TURNS: tuple[Function, ...] = (turned, turned_with_operands, reversed_dimensions, both_ways, channels_last)
TURNED: tuple[Shape, ...] = ((2, 50, 77), (3, 64, 128), (1, 129, 3), (1, 2, 200), (2, 70, 72), (10, 1, 37))


def inputs(shape: Shape, dtype: torch.dtype, past: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(shape) + past)

    def made(*size: int) -> Tensor:
        x = (torch.randn(size, generator=generator) + 1.5).to(dtype)
        return torch.empty(x.numel() + past, dtype=dtype)[past:].view(size).copy_(x)

    return [made(*shape), made(shape[1]), made(1, shape[2])]


def graphs(functions: Sequence[Function], shapes: Sequence[Shape]) -> list[tuple[Function, Planned]]:
    """Each function at each shape; dtypes and alignments take turns, so that each meets each function and shape class."""
    found = []
    for i, shape in enumerate(shapes):
        for j, function in enumerate(functions):
            given = inputs(shape, (FP32, BF16)[(i + j) % 2], (i + j) // 2 % 2)
            found.append((function, planned(trace(function, given), given, cuda=True)))
    return found


def share_of_bound(function: Function, given: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    """The largest error as a share of what it may be; NaN counts as infinite."""
    worst = 0.0
    for y, want in zip(found, function(*(x.double() for x in given)), strict=True):
        assert y.shape == want.shape
        if y.dtype == torch.bool:
            worst = max(worst, float("inf") if not torch.equal(y, want) else 0.0)
            continue
        narrow = 2.0**-11 * 4 if y.dtype == BF16 else 0.0  # the short forms of functions
        bound = (torch.finfo(y.dtype).eps / 2 + narrow) * want.abs() + (SERIAL * 2.0**-24 + narrow) * LARGEST
        share = torch.nan_to_num((y.double() - want).abs() / bound, nan=float("inf")).max()
        worst = max(worst, float(share))
    return worst


def wrong(cases: Sequence[tuple[Function, Planned]]) -> list[str]:
    results = run_emulated([c for _, c in cases])
    return [
        f"{f.__name__} {tuple(c.inputs[0].shape)} {c.inputs[0].dtype}: {share:.1f}"
        for (f, c), found in zip(cases, results, strict=True)
        if (share := share_of_bound(f, c.inputs, found)) > 1
    ]


def schedules(cases: Sequence[tuple[Function, Planned]]) -> Iterator[Any]:
    return (k.schedule for _, c in cases for k in c.plan.kernels)


@contextmanager
def dividing(part_bytes: int) -> Iterator[None]:
    """Rows of a few kilobytes are divided among blocks, and none is held."""
    with (
        mock.patch.object(row_strided, "SPLIT_FROM_BYTES", 2 * part_bytes),
        mock.patch.object(row_strided, "PART_BYTES", part_bytes),
        mock.patch.object(row_strided, "held", return_value="not now"),
    ):
        yield


def test_rows_in_registers() -> None:
    cases = graphs(REDUCTIONS, REDUCED)
    assert not [c.left for _, c in cases if c.left]
    assert all(isinstance(s, StridedSchedule) for s in schedules(cases))
    assert any(s.held for s in schedules(cases))
    assert not wrong(cases)


def test_rows_divided_among_blocks() -> None:
    with dividing(1500):
        cases = graphs((layer_norm, several, down, normalized), ((2, 50, 77), (5, 129, 3), (1, 300, 20)))
        assert len({s.parts for s in schedules(cases)}) > 3
        assert max(s.parts for s in schedules(cases)) > 8
        assert not wrong(cases)


def test_rows_across_memory() -> None:
    cases = graphs((across, across_with_residual), ((2, 50, 77), (3, 96, 64), (2, 400, 12), (1, 3, 130)))
    assert all(isinstance(s, StridedSchedule) for s in schedules(cases))
    assert not wrong(cases)


def test_rows_across_memory_do_not_depend_on_their_number() -> None:
    x, w, b = inputs((2, 130, 24), BF16, 0)
    given = [[x, w, b], [x[:, :, :3].contiguous(), w, b]]
    whole, three = run_emulated([planned(trace(across, g), g, cuda=True) for g in given])
    assert all(torch.equal(a[:, :3], b) for a, b in zip(whole, three, strict=True))


def test_tiles() -> None:
    cases = graphs(TURNS, TURNED)
    assert not [c.left for _, c in cases if c.left]
    found = [s for s in schedules(cases) if isinstance(s, TiledSchedule)]
    assert len(found) > 12
    assert {s.height for s in found} >= {1, 2, 4, 8}
    assert not wrong(cases)


def test_a_result_depends_on_neither_batch_nor_alignment() -> None:
    """Rows one by one and together, in aligned vectors and element by element, held and divided: the same bits."""
    x, w, b = inputs((3, 130, 24), BF16, 0)
    off = torch.empty(x.numel() + 1, dtype=BF16)[1:].view(x.shape).copy_(x)
    given = [[x, w, b], [off, w, b], [x[1:2].contiguous(), w, b]]
    for limits in (None, dividing(1500)):
        with limits or mock.MagicMock():
            cases = [planned(trace(layer_norm, g), g, cuda=True) for g in given]
            whole, unaligned, alone = run_emulated(cases)
        parts = {s.parts for c in cases for s in (k.schedule for k in c.plan.kernels)}
        assert (parts == {1}) == (limits is None)
        for one, two, three in zip(whole, unaligned, alone, strict=True):
            assert torch.equal(one, two)
            assert torch.equal(one[1:2], three)


@pytest.mark.parametrize("function", [layer_norm, turned_with_operands])
def test_sizes_known_at_run_time(function: Function) -> None:
    """One kernel for every size: whether rows are divided, and how wide accesses are, shows when it is called."""
    with dividing(4000), torch.no_grad():
        first = inputs((5, 50, 76), FP32, 0)
        case = planned(make_fx(function, tracing_mode="symbolic")(*first), first, cuda=True)
        cases = [replace(case, inputs=inputs(s, FP32, 0)) for s in ((5, 50, 76), (7, 33, 77), (3, 6, 64))]
        assert not case.left
        assert not wrong([(function, c) for c in cases])


def test_a_million_terms_keep_their_digits() -> None:
    """Whole and divided: no lane adds more than 32 terms, or sums of them, one after the other."""
    x = torch.rand(1 << 18, 2, generator=torch.Generator().manual_seed(3)) + 1
    for limit in (1 << 40, 1 << 16):
        with mock.patch.object(row_strided, "SPLIT_FROM_BYTES", limit):
            ((found,),) = run_emulated([planned(trace(lambda x: (x.sum(0),), [x]), [x], cuda=True)])
        assert torch.allclose(found.double(), x.double().sum(0), rtol=40 * 2.0**-24, atol=0)


def without_a_term(kernel: Kernel) -> Kernel:
    """A kernel that adds what it should add times nothing in its last reduction."""
    stages = list(kernel.stages)
    at = max(i for i, s in enumerate(stages) if isinstance(s, ColumnLoop) and _sums(s))
    loop = stages[at]
    assert isinstance(loop, ColumnLoop)
    body = tuple(replace(s, value=1.0) if s in _sums(loop) else s for s in loop.body)
    stages[at] = ColumnLoop(body)
    return replace(kernel, stages=tuple(stages))


def _sums(loop: ColumnLoop) -> list[Accumulate]:
    return [s for s in loop.body if isinstance(s, Accumulate) and s.op == "sum"]


def transposed_wrongly(kernel: Kernel) -> Kernel:
    """A kernel that takes a step too few from column to column of what it turns."""
    turned_ones = (replace(a, step=a.step - 1) if a.column == "strided" else a for a in kernel.accesses)
    return replace(kernel, accesses=tuple(turned_ones))


@pytest.mark.parametrize(("function", "change"), [(rms_norm, without_a_term), (turned, transposed_wrongly)])
def test_a_wrong_kernel_is_noticed(function: Function, change: Callable[[Kernel], Kernel]) -> None:
    given = inputs((2, 64, 128), FP32, 0)
    case = planned(trace(function, given), given, cuda=True)
    assert not wrong([(function, case)])
    assert wrong([(function, changed(case, change))])
