"""A kernel that begins while the one before it ends reads what that one wrote, and overwrites nothing it still reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from onepass.runtime.launch_cuda import may_begin_early

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

STEPS = 60


def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Row i of the next tensor is made of row n - 1 - i of this one: by another multiprocessor."""
    return F.layer_norm(x.flip(0) + w, (x.shape[-1],), w, w) * 3


def chain(
    f: Callable[..., torch.Tensor], x: torch.Tensor, w: torch.Tensor, between: Callable[[], None]
) -> torch.Tensor:
    """Each step's result takes the memory of the one before last, which the step before has just read."""
    x = x.clone()
    for step in range(STEPS):
        if step % 7 == 3:
            x = x.add_(0.5)  # a kernel of PyTorch's between
        x = f(x, w)
        between()
    return x


@pytest.mark.parametrize("rows", [1, 64, 4096, 40000])
@pytest.mark.parametrize("cols", [1000, 1024, 32768])
def test_a_chain_has_the_bits_of_its_steps(rows: int, cols: int) -> None:
    if rows * cols > 1 << 29:
        pytest.skip("4 GiB a tensor tell nothing that 1 GiB does not")
    torch.manual_seed(rows + cols)
    x = torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16) + 1
    w = torch.randn(cols, device="cuda", dtype=torch.bfloat16)
    f = torch.compile(layer, backend="onepass")
    expected = chain(f, x, w, torch.cuda.synchronize)
    assert expected.isfinite().all()
    for _ in range(5):
        assert torch.equal(chain(f, x, w, lambda: None), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain(f, x, w, lambda: None)
    for _ in range(3):
        captured.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, expected)


def test_grids_do_begin_early_on_this_machine() -> None:
    major, minor = torch.cuda.get_device_capability()
    assert may_begin_early(f"sm_{major}{minor}") == (major >= 9)
