"""Each CUDA schedule as planned and generated, under the emulator: right, and with one thing broken, found wrong.

Rows of several blocks, their number no multiple of the rows in a block; columns no multiple of a vector, nor of the
lanes; tensors at 16 bytes and one element past. What is small enough for random graphs is in test_random_graphs.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.shipping import (
    DEVICES,
    FAMILIES,
    FEW,
    H200,
    Emulation,
    add_rms_norm,
    bias_gelu,
    captured,
    gelu_erf_add_layer_norm,
    gelu_tanh_add_layer_norm,
    layer_norm,
    middle_softmax,
    prepare,
    softmax,
    transposed_gelu,
)
from onepass.errors import KernelFault

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
ROUNDING = 2.0**-24
SHORT = 2.0**-11  # what a function for 16-bit results may be off by (test_cuda_prelude.py)


@dataclass(frozen=True)
class Case:
    family: str
    function: Callable[..., Any]
    dtype: torch.dtype
    rows: int
    cols: int
    past: int = 0  # elements past 16 bytes at which every tensor starts
    arch: str = "sm_90"

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.family}-{self.function.__name__}-{dtype}-{self.rows}x{self.cols}+{self.past}"


# 300000 columns are more than thread-block clusters get, and two rows are under way at a time where there are 8
# multiprocessors, so that the first case's teams take several rows.
# 14340 columns are the fewest that lie in shared memory with some lanes idle, 32769 the fewest that four blocks share;
# Turing's multiprocessors hold no row of 50001.
CASES = (
    Case("flat", bias_gelu, FP32, 37, 45),
    Case("flat", bias_gelu, BF16, 37, 520),
    Case("flat", bias_gelu, FP16, 37, 520, past=1),
    Case("row-warp", layer_norm, FP32, 37, 63),
    Case("row-warp", add_rms_norm, BF16, 37, 250),
    Case("row-warp", softmax, FP16, 37, 256, past=1),
    Case("row-block", gelu_tanh_add_layer_norm, BF16, 37, 1500),
    Case("row-block", gelu_erf_add_layer_norm, FP32, 7, 1203),
    Case("row-block", layer_norm, BF16, 7, 4096, past=1),
    Case("row-smem", softmax, FP32, 3, 14340),
    Case("row-smem", gelu_tanh_add_layer_norm, FP32, 3, 16384),
    Case("row-stream", layer_norm, FP32, 3, 50001, arch="sm_75"),
    Case("row-stream", softmax, BF16, 2, 131080, arch="sm_75"),
    Case("row-strided", middle_softmax, FP32, 100, 77),
    Case("row-strided", middle_softmax, BF16, 140, 152),
    Case("row-warp", gelu_tanh_add_layer_norm, BF16, 37, 1000),
    Case("row-cluster", layer_norm, FP32, 3, 32769),
    Case("row-cluster", layer_norm, BF16, 2, 32768, past=1),
    Case("row-cluster", gelu_tanh_add_layer_norm, FP32, 2, 262144),
    Case("row-cluster", softmax, FP32, 2, 131076, past=1),
    Case("row-smem", layer_norm, BF16, 2, 40000, arch="sm_80"),
    Case("tiled", transposed_gelu, FP32, 100, 77, past=1),
    Case("tiled", transposed_gelu, BF16, 72, 80),
    Case("row-grid", layer_norm, FP32, 5, 300004, arch="few"),
    Case("row-grid", gelu_tanh_add_layer_norm, FP32, 2, 300000, arch="few"),
    Case("row-grid", softmax, BF16, 3, 524296, past=1, arch="few"),
)


def inputs(case: Case) -> list[Tensor]:
    generator = torch.Generator().manual_seed(case.rows * case.cols)

    def made(*shape: int) -> Tensor:
        # A mean far from 0 shows an unmasked lane, a large sixth column a sum that leaves it out.
        x = torch.randn(shape, generator=generator).to(case.dtype)
        if len(shape) == 2:
            x += 1.5
            x[:, 5] = 12
        return torch.empty(x.numel() + case.past, dtype=x.dtype)[case.past :].view(shape).copy_(x)

    return [made(case.rows, case.cols), made(case.rows, case.cols), made(case.cols), made(case.cols)]


def share_of_bound(case: Case, found: list[Tensor], given: list[Tensor]) -> float:
    """The largest error as a share of what it may be; NaN counts as infinite.

    A result is rounded to its dtype. Before that, values up to 12 are off by a few roundings, and by one for each number
    that a lane adds after another: at most 64 in registers, 176 where teams hold a row in shared memory too, the parts of a
    streamed row, all where the reduced dimension is in the middle. In a softmax a difference d becomes a relative error of
    |d| roundings. 16-bit results may use the short functions.
    """
    x, r, w, b = (t.double() for t in given)
    expected = case.function(x, r, w, b)
    if case.family == "tiled":  # whose rows are the columns
        w, b = w[:, None], b[:, None]
    serial = {"row-stream": 64 + case.cols / 8192, "row-strided": case.rows / 2, "row-grid": 176}.get(
        case.family, 64
    )
    short = SHORT if case.dtype != FP32 else 0.0
    worst = 0.0
    for y, want in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        if "softmax" in case.function.__name__:
            spread = float(x.max() - x.min())
            slack = want * ((2 * spread + serial + 16) * ROUNDING + short)
        else:
            slack = (serial + 16) * ROUNDING * (12 * w.abs() + b.abs() + 12) + short * 4 * (w.abs() + 1)
        bound = torch.finfo(y.dtype).eps / 2 * want.abs() + slack + torch.finfo(y.dtype).tiny
        assert y.shape == want.shape and y.dtype == case.dtype
        share = torch.nan_to_num((y.double() - want).abs() / bound, nan=float("inf")).max()
        worst = max(worst, float(share))
    return worst


def emulation(case: Case, change: Callable[[str], str] = str) -> Emulation:
    device = replace(H200, units=FEW) if case.arch == "few" else DEVICES[case.arch]
    return Emulation(captured(case.dtype, case.cols, (case.function,), case.rows), device, change)


@pytest.fixture(scope="module")
def right() -> dict[Case, Emulation]:
    made = {case: emulation(case) for case in CASES}
    prepare([(e, inputs(case)) for case, e in made.items()])
    return made


def test_every_schedule_is_here() -> None:
    assert {c.family for c in CASES} == FAMILIES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_float64s(right: dict[Case, Emulation], case: Case) -> None:
    given = inputs(case)
    before = [x.clone() for x in given]
    found = right[case].run(given, order_seed=1)
    assert [k.schedule.family for k in right[case].plan.kernels] == [case.family]
    assert share_of_bound(case, found, given) <= 1
    assert all(map(torch.equal, before, given))
    assert len(right[case].reports) == (2 if case.family == "row-stream" else 1)  # few rows: a launch a walk
    again = right[case].run(given, order_seed=2)
    assert all(map(torch.equal, found, again)), "the order of blocks and lanes changed a bit"


# One thing is broken in each: what it is called, the pattern and what replaces it.
WITHOUT_BARRIER = ("__syncthreads", r"__syncthreads\(\);", "")
WITHOUT_TAIL = (
    "tail of a row",
    r"(if \()?(left > 0|j \* W < left|E <= left|\(j \+ 1\) \* W <= left)",
    r"\1true",
)
BEYOND_LAST_ROW = (
    "row of an idle group",
    r"const i64 row = live \? at : a\.rows - 1;",
    "const i64 row = at;",
)
DROPPED = ("one column", r"= \((v\d+_a) \+ ", r"= (c + e == 5 ? \1 : \1 + ")
DROPPED_INNER = ("one row", r"= \((v\d+_a\[e\]) \+ ", r"= (k == 1 && lane == 1 ? \1 : \1 + ")
BEYOND_LAST_VECTOR = (
    "vector of an idle thread",
    r"c = first < a\.inner \? first : a\.inner - E;",
    "c = first;",
)
WITHOUT_CLUSTER_BARRIER = ("cluster barrier", r"ptx_cluster_arrive\(\);\n    ptx_cluster_wait\(\);", "")
BEFORE_ALL_RUN = ("wait for all to run", r"if \(!begun\) ptx_cluster_wait\(\);", "")
INTO_THE_SAME_HALF = ("other half", r"(?<=ptx_cluster_wait\(\);\n    )half \^= 1;", "")
AFTER_THE_LAST_BARRIER = (
    "last barrier",
    r"return warp_reduce<Op, P>\(v\);",
    "if (lane < C) ptx_cluster_store4(s, lane, v); return warp_reduce<Op, P>(v);",
)
WAIT = "wait for words"
WITHOUT_WAIT = (WAIT, r"while \(word >> 32 != number\) word = ptx_grid_get\(w \+ i\);", "")
WAIT_FOR_ANY = ("number of a word", r"word >> 32 != number\)", "word >> 32 == 0)")
NUMBERS_AGAIN = ("numbers of a later row", r"\+\+number;", "number = number % 2 + 1;")
INTO_THE_SAME_WORDS = ("other words", r"words \+ number % 2 \* P;", "words;")
A_WARP_S_VALUE = ("all threads", r"v = block\.template reduce<Op>\(v\);", "v = warp_reduce<Op, 32>(v);")
BEFORE_THE_RESULT = ("barrier before the result", r"__syncthreads\(\);\n    return result", "return result")
ONE_PART = ("a part", r"for \(int i = threadIdx\.x; i < P;", "for (int i = threadIdx.x; i < P - 1;")
BROKEN: tuple[tuple[Case, tuple[str, str, str], tuple[str, ...]], ...] = (
    (CASES[1], ("total", r"if \(first \+ k \* \d+ < total\)", ""), ("out-of-bounds",)),
    (CASES[3], WITHOUT_TAIL, ("out-of-bounds", "unwritten-shared")),
    (CASES[3], BEYOND_LAST_ROW, ("out-of-bounds",)),
    (CASES[3], DROPPED, ()),
    (CASES[6], WITHOUT_BARRIER, ("shared-race", "unwritten-shared")),
    (CASES[7], WITHOUT_TAIL, ("out-of-bounds", "unwritten-shared")),
    (CASES[6], DROPPED, ()),
    (CASES[9], WITHOUT_BARRIER, ("shared-race", "unwritten-shared")),
    (CASES[9], WITHOUT_TAIL, ("out-of-bounds",)),
    (CASES[9], DROPPED, ()),
    (CASES[11], WITHOUT_BARRIER, ("shared-race", "unwritten-shared")),
    (CASES[11], WITHOUT_TAIL, ("out-of-bounds",)),
    (CASES[11], DROPPED, ()),
    (CASES[13], BEYOND_LAST_VECTOR, ("out-of-bounds",)),
    (CASES[13], WITHOUT_BARRIER, ("shared-race", "unwritten-shared")),
    (CASES[14], DROPPED_INNER, ()),
    (CASES[21], WITHOUT_BARRIER, ("shared-race", "unwritten-shared")),
    (CASES[21], ("edge of a tile", r" && left \+ x < a\.cols", ""), ("out-of-bounds",)),
    (
        CASES[22],
        ("a row of a tile", r"left \+ x, x0_s \+ x \* 66 \+ y", "left + x, x0_s + x * 66 + (y ^ 1)"),
        (),
    ),
    (CASES[16], WITHOUT_CLUSTER_BARRIER, ("shared-race", "unwritten-shared")),
    (CASES[16], BEFORE_ALL_RUN, ("absent-block",)),
    (CASES[16], INTO_THE_SAME_HALF, ("shared-race",)),
    (CASES[16], AFTER_THE_LAST_BARRIER, ("shared-race", "absent-block")),
    (CASES[16], WITHOUT_TAIL, ("out-of-bounds",)),
    (CASES[16], DROPPED, ()),
    (CASES[18], WITHOUT_CLUSTER_BARRIER, ("shared-race", "unwritten-shared")),
    (CASES[19], ("one block's share", r"ptx_cluster_rank\(\) \* B \+ threadIdx", "threadIdx"), ()),
    (CASES[20], ("wait for copies", r"ptx_copies_done\(\);(?=\n  #)", ""), ("unwritten-shared",)),
    (CASES[23], WITHOUT_BARRIER, ("shared-race", "unwritten-shared")),
    (CASES[23], BEFORE_THE_RESULT, ("shared-race", "unwritten-shared")),
    (CASES[23], WITHOUT_WAIT, ()),
    (CASES[23], WAIT_FOR_ANY, ()),
    (CASES[23], NUMBERS_AGAIN, ()),
    (CASES[23], INTO_THE_SAME_WORDS, ("endless-wait",)),
    (CASES[23], A_WARP_S_VALUE, ()),
    (CASES[23], ONE_PART, ()),
    (CASES[23], ("copies past a row", r"if \(\(k \* T \+ lane\) \* E < cols\) ", ""), ("out-of-bounds",)),
)


@pytest.fixture(scope="module")
def broken() -> list[Emulation]:
    def breaks(pattern: str, replacement: str) -> Callable[[str], str]:
        def change(text: str) -> str:
            changed, count = re.subn(pattern, replacement, text)
            assert count, f"nothing to break: {pattern}"
            return changed

        return change

    made = [emulation(case, breaks(pattern, new)) for case, (_, pattern, new), _ in BROKEN]
    prepare([(e, inputs(case)) for e, (case, _, _) in zip(made, BROKEN, strict=True)])
    return made


@pytest.mark.parametrize(
    "index", range(len(BROKEN)), ids=lambda i: f"{BROKEN[i][0].family}-{BROKEN[i][1][0].replace(' ', '_')}"
)
def test_what_is_broken_is_found(broken: list[Emulation], index: int) -> None:
    """A fault where the memory model is broken, an error out of bounds where only the numbers are."""
    case, _, kinds = BROKEN[index]
    given = inputs(case)
    if not kinds:
        assert share_of_bound(case, broken[index].run(given), given) > 1
        return
    with pytest.raises(KernelFault) as caught:
        broken[index].run(given)
    assert caught.value.kind in kinds
