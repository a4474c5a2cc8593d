"""Integers divided by tensors: PyTorch's results, and its error where one divisor is zero, wherever that lies."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch

from onepass.capture.backend import Backend
from onepass.codegen import cpu

DIVISIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "floor": lambda x, y: x // y + 1,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "fmod": torch.fmod,
    "remainder": lambda x, y: torch.where(y == 0, 0, torch.remainder(x, y)),
    "by_row": lambda x, y: x // y[0] - x % y[:, :1],
    "of_sums": lambda x, y: x.sum(0) // y.sum(0),
}
# Columns below a vector, one vector, a vector and an overlapping end: what lies past the end is no divisor.
WIDTHS = (5, 16, 37)


def operands(width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.randint(-100, 120, (3, width)), torch.randint(1, 20, (3, width))
    y[1:] *= torch.where(torch.rand(2, width) < 0.5, 2, 1)
    return x.to(dtype), y.to(dtype)


def compiled(
    function: Callable[..., torch.Tensor], *given: torch.Tensor
) -> tuple[Callable[..., torch.Tensor], Backend]:
    torch._dynamo.reset()
    backend = Backend()
    run = torch.compile(function, backend=backend, dynamic=False)
    with torch.no_grad():
        run(*given)
    return run, backend


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("width", WIDTHS)
def test_divisions_by_tensors(name: str, width: int) -> None:
    function = DIVISIONS[name]
    x, y = operands(width, torch.int32 if width == 16 else torch.int64)
    run, backend = compiled(function, x, y)
    (plan,) = (c.plan for c in backend.compiled)
    assert plan.kernels and not plan.calls
    with torch.no_grad():
        assert torch.equal(run(x, y), function(x, y))
        for at in (0, width - 1):
            zero = y.clone()
            zero[:, at] = 0
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                function(x, zero)
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                run(x, zero)
        assert torch.equal(run(x, y), function(x, y))


def test_a_kernel_that_reports_nothing_is_seen(fresh: None) -> None:
    x, y = operands(5, torch.int64)
    with mock.patch.object(cpu, "_divides", return_value=False):
        run, _ = compiled(DIVISIONS["trunc"], x, y)
        y[0, 2] = 0
        with torch.no_grad():
            run(x, y)
