"""One launch of each CUDA schedule, at odd and at even sizes: what test_sanitizer.py runs under compute-sanitizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from onepass.capture.backend import Backend
from onepass.plan.schedules import row_grid

SCHEDULES = {
    "flat",
    "row-warp",
    "row-block",
    "row-smem",
    "row-cluster",
    "row-grid",
    "row-stream",
    "row-strided",
    "tiled",
}


def gelu_add_layer_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(x) + x, (x.shape[-1],), w, w)


def scaled_gelu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(x) * w


def main() -> None:
    seen: set[str] = set()

    def launch(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
        torch._dynamo.reset()
        backend = Backend()
        with torch.no_grad():
            torch.compile(function, backend=backend)(*inputs)
        torch.cuda.synchronize()
        assert not backend.left
        seen.update(k.schedule.family for c in backend.compiled for k in c.plan.kernels)

    for dtype in (torch.bfloat16, torch.float32):
        made = {"device": "cuda", "dtype": dtype}
        for cols in (256, 1000, 1023, 4096, 16384):  # 16384: computed values in shared memory at fp32
            launch(gelu_add_layer_norm, torch.randn(37, cols, **made), torch.randn(cols, **made))
        launch(
            gelu_add_layer_norm, torch.randn(38, 1001, **made)[1:], torch.randn(1001, **made)
        )  # not aligned
        launch(lambda x: torch.softmax(x, -1), torch.randn(3, 131072, **made))  # a cluster's
        for rows in (3, 100):  # a row a team of blocks, and several
            launch(lambda x: torch.softmax(x, -1), torch.randn(rows, 1 << 21, **made))
        launch(lambda x: F.group_norm(x, 2), torch.randn(40, 16, 256, 256, **made))  # columns in blocks
        with mock.patch.object(row_grid, "schedules", return_value="nowhere"):  # as rows that no device holds
            launch(lambda x: torch.softmax(x, -1), torch.randn(3, 1 << 21, **made))
            launch(lambda x: torch.softmax(x, -1), torch.randn(300, 1 << 21, **made))  # a block a row
        for shape in ((3, 50, 77), (3, 64, 128), (2, 600, 40)):
            launch(lambda x: torch.softmax(x, 1), torch.randn(shape, **made))
        launch(lambda x: (x.sum(0), x.amax(0)), torch.randn(1 << 16, 24, **made))  # rows divided among blocks
        for shape in ((3, 65, 77), (3, 64, 128)):
            launch(lambda x: F.gelu(x.transpose(1, 2)).contiguous(), torch.randn(shape, **made))
        for cols in (1001, 1024):
            launch(scaled_gelu, torch.randn(37, cols, **made), torch.randn(cols, **made))
        launch(
            lambda a, b: F.layer_norm(torch.cat([a, b], -1), (100,)),
            torch.randn(37, 63, **made),
            torch.randn(37, 37, **made),
        )
    table, index = torch.randn(100, 64, device="cuda"), torch.randint(0, 100, (4, 33), device="cuda")
    launch(lambda i, t: F.layer_norm(F.embedding(i, t), (64,)), index, table)
    assert seen == SCHEDULES, seen


if __name__ == "__main__":
    main()
