"""Rows that no block holds: the same bits whoever works on them, and what broke others, under the emulator.

A Turing multiprocessor holds the fewest columns, so that rows in parts are short enough to emulate.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.shipping import DEVICES, Emulation, captured, layer_norm, prepare, softmax
from onepass.plan.schedules.row_stream import StreamSchedule

FP32, BF16 = torch.float32, torch.bfloat16
COLS = 50001
# A row of more parts than one: the first has no number above -inf, the last is not whole.
MANY = 200


def tensors(
    rows: int, cols: int, dtype: torch.dtype, past: int = 0, mean: float = 1.5, spread: float = 1.0
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(cols)

    def made(*shape: int) -> Tensor:
        x = (torch.randn(shape, generator=generator) * spread + mean).to(dtype)
        return torch.empty(x.numel() + past, dtype=dtype)[past:].view(shape).copy_(x)

    return [made(rows, cols), made(rows, cols), made(cols), made(cols)]


def emulation(function: object, dtype: torch.dtype, rows: int, cols: int, arch: str) -> Emulation:
    return Emulation(captured(dtype, cols, (function,), rows), DEVICES[arch])  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def made() -> dict[str, tuple[Emulation, list[Tensor]]]:
    few, many = tensors(2, COLS, FP32), tensors(MANY, COLS, FP32)
    many[0][0], many[0][-1], many[2:] = few[0][0], few[0][1], few[2:]
    far = tensors(2, COLS, FP32, mean=1e4, spread=1e-1)
    holes = tensors(4, 100_001, BF16)
    holes[0][0, :20_000] = -torch.inf  # the whole first part
    holes[0][1] = -torch.inf
    holes[0][2, 70_000] = torch.nan
    holes[0][3, 100_000] = torch.inf
    cluster, moved = tensors(2, 32_776, FP32), tensors(2, 32_776, FP32, past=1)
    found = {
        "few": (emulation(layer_norm, FP32, 2, COLS, "sm_75"), few),
        "many": (emulation(layer_norm, FP32, MANY, COLS, "sm_75"), many),
        "far": (emulation(layer_norm, FP32, 2, COLS, "sm_75"), far),
        "holes": (emulation(softmax, BF16, 4, 100_001, "sm_75"), holes),
        "cluster": (emulation(layer_norm, FP32, 2, 32_776, "sm_90"), cluster),
        "moved": (emulation(layer_norm, FP32, 2, 32_776, "sm_90"), moved),
    }
    prepare(list(found.values()))
    return found


def run(made: dict[str, tuple[Emulation, list[Tensor]]], name: str) -> Tensor:
    emulation, given = made[name]
    (result,) = emulation.run(given, order_seed=1)
    return result


def test_a_row_has_the_same_bits_however_many_blocks_share_it(
    made: dict[str, tuple[Emulation, list[Tensor]]],
) -> None:
    alone, among = run(made, "few"), run(made, "many")
    assert isinstance(made["few"][0].plan.kernels[0].schedule, StreamSchedule)
    assert [len(made[n][0].reports) for n in ("few", "many")] == [2, 1]
    assert made["few"][0].reports[0].blocks > 2
    assert torch.equal(alone, among[[0, -1]])


def test_a_row_has_the_same_bits_wherever_it_starts(made: dict[str, tuple[Emulation, list[Tensor]]]) -> None:
    assert made["cluster"][0].plan.kernels[0].schedule.family == "row-cluster"
    assert torch.equal(run(made, "cluster"), run(made, "moved"))


def test_a_mean_far_from_zero_costs_no_digits(made: dict[str, tuple[Emulation, list[Tensor]]]) -> None:
    """Squares of 1e4 would leave no digit of a spread of 0.1. What is left is the rounding of the mean, 2^-24 of 1e4."""
    x, _, w, b = (t.double() for t in made["far"][1])
    want = layer_norm(x, x, w, b)
    slack = 4 * 2.0**-24 * 1e4 / 0.1
    error = (run(made, "far").double() - want).abs() / w.abs()
    assert float(error.max()) < slack
    squares = (x.float().square().mean(-1) - x.float().mean(-1).square()).double()
    naive = (x - x.mean(-1, keepdim=True)) * torch.rsqrt(squares.clamp_min(0) + 1e-5)[:, None] * w + b
    assert float(((naive - want).abs() / w.abs()).max()) > slack


def test_infinities_and_nan_of_a_softmax_in_parts_are_pytorchs(
    made: dict[str, tuple[Emulation, list[Tensor]]],
) -> None:
    found, given = run(made, "holes"), made["holes"][1]
    want = torch.softmax(given[0], -1)
    assert torch.equal(found.isnan(), want.isnan())
    assert want.isnan().any(-1).tolist() == [False, True, True, True]
    exact = torch.softmax(given[0][0].double(), -1)
    # Half a rounding of bf16, and the short exponential's 2^-11.
    assert float(((found[0].double() - exact).abs() - exact * (2.0**-8 + 2.0**-10)).max()) <= 2.0**-133
