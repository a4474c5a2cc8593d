"""How rows are spread over lanes on an H200: what was measured best is what is chosen first, also one vector beside it.

Where the numbers come from, item by item: docs/notes/004-cuda-row-schedules.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.shipping import (
    H200,
    add_rms_norm,
    captured,
    gelu_tanh_add_layer_norm,
    layer_norm,
    planning_for,
    softmax,
)
from onepass import build as pipeline
from onepass.analysis.resources import Resources
from onepass.plan.schedules.row import RowSchedule
from onepass.runtime.load import Binary

FP32, BF16 = torch.float32, torch.bfloat16


def variance(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (F.gelu(x) + r).var(-1)


# Lanes a row, vectors a lane, blocks resident.
Split = tuple[int, int, int]
BEST: list[tuple[Callable[..., Any], torch.dtype, int, Split]] = [
    # a second block is resident (1); a value that is held lies in shared memory (5)
    (layer_norm, FP32, 4096, (256, 4, 4)),
    (gelu_tanh_add_layer_norm, BF16, 16384, (512, 4, 2)),
    (gelu_tanh_add_layer_norm, FP32, 16384, (512, 8, 2)),
    (variance, FP32, 16384, (512, 8, 2)),
    # up to 128 vectors a warp; short rows with a value held (10)
    (layer_norm, BF16, 1024, (32, 4, 8)),
    (gelu_tanh_add_layer_norm, FP32, 256, (32, 2, 12)),
    # in and out twice (11)
    (add_rms_norm, FP32, 16384, (1024, 4, 1)),
    (add_rms_norm, FP32, 10240, (512, 5, 1)),
    (add_rms_norm, BF16, 16384, (256, 8, 2)),
    # no lanes idle, or as few as can be (12)
    (layer_norm, FP32, 5120, (256, 5, 3)),
    (layer_norm, FP32, 5140, (256, 6, 3)),
    (gelu_tanh_add_layer_norm, FP32, 5140, (256, 6, 3)),
    # rows that no vector divides: about 32 elements a lane, in units of four, two and one (note 008)
    (layer_norm, BF16, 5140, (256, 6, 4)),
    (layer_norm, BF16, 1023, (32, 16, 8)),
    (layer_norm, FP32, 1023, (32, 32, 8)),
    (softmax, FP32, 768, (64, 3, 8)),
    (layer_norm, BF16, 640, (16, 5, 6)),
    (layer_norm, BF16, 1536, (64, 3, 8)),
    (layer_norm, FP32, 1000, (128, 2, 0)),
    # three vectors a lane in blocks of 256 and more (13)
    (layer_norm, BF16, 12288, (256, 6, 3)),
    (layer_norm, BF16, 12280, (256, 6, 3)),
    (gelu_tanh_add_layer_norm, FP32, 6144, (256, 6, 3)),
    (gelu_tanh_add_layer_norm, FP32, 6140, (256, 6, 3)),
]


@pytest.mark.parametrize(
    ("function", "dtype", "cols", "best"), BEST, ids=lambda v: getattr(v, "__name__", str(v))
)
def test_what_was_measured_best_is_chosen_first(
    function: Callable[..., Any], dtype: torch.dtype, cols: int, best: Split
) -> None:
    unspilled = Binary(b"", Resources(0, 0, 0, 0))
    with planning_for(H200), mock.patch.object(pipeline, "binary", return_value=unspilled):
        (built,) = pipeline.build(captured(dtype, cols, (function,)).program, {}).kernels
    schedule = built.schedule
    assert isinstance(schedule, RowSchedule)
    assert (schedule.lanes, schedule.steps, schedule.min_blocks) == best
    assert (schedule.family == "row-smem") == (
        cols == 16384 and dtype is FP32 and function is not add_rms_norm
    )
