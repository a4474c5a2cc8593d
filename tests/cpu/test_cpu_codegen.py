"""Printed CPU kernels at the ends of rows, in place, along strides, and with outputs past the caches."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.capture.backend import Backend

# Below, at and above one vector of 16, four and eight of them, and widths no vector divides.
COLS = (1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 257, 1000, 1023, 1025)
# Sums of up to 1025 terms, a square root and a division: each rounds a few times; the terms are about 1.
FP32_ERROR = 32 * 2.0**-24


def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def softmax(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.softmax(x, -1) * w + b


def residual_norm(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    s = F.gelu(x, approximate="tanh") + x
    return F.layer_norm(s, s.shape[-1:], w, b), s


def elementwise(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.tanh(x * w) + b


FUNCTIONS = (norm, softmax, residual_norm, elementwise)


def compiled(function: Callable[..., Any], dynamic: bool | None = None) -> tuple[Callable[..., Any], Backend]:
    torch._dynamo.reset()
    backend = Backend()
    return torch.compile(function, backend=backend, dynamic=dynamic), backend


def poison(*shape: int) -> None:
    """NaN where the next outputs of this shape will lie."""
    blocks = [torch.full(shape, torch.nan) for _ in range(3)]
    del blocks


def close(got: Any, exact: Any) -> bool:
    got, exact = (x if isinstance(x, tuple) else (x,) for x in (got, exact))
    return all(
        bool(((g.double() - e).abs() <= FP32_ERROR * (1 + e.abs())).all())
        for g, e in zip(got, exact, strict=True)
    )


def of_inputs(rows: int, cols: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(cols)
    shapes: Sequence[tuple[int, ...]] = ((rows, cols), (cols,), (cols,))
    # A mean of 3: a column that a mask forgot, read as 0, shows in every statistic.
    return [torch.randn(s, generator=generator) + 3 * (len(s) == 2) for s in shapes]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_every_row_length(function: Callable[..., Any]) -> None:
    run, backend = compiled(function, dynamic=True)
    with torch.no_grad():
        for cols in COLS:
            inputs = of_inputs(5, cols)
            poison(5, cols)
            assert close(run(*inputs), function(*(t.double() for t in inputs))), cols
    assert all(len(c.plan.kernels) == 1 for c in backend.compiled)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_row_is_the_same_wherever_it_stands(function: Callable[..., Any]) -> None:
    """Alone or among others, aligned or not: the same bits."""
    run, _ = compiled(function, dynamic=True)
    x, w, b = of_inputs(64, 1000)
    shifted = torch.empty(64 * 1000 + 1)[1:].view(64, 1000).copy_(x)
    with torch.no_grad():
        whole, moved, alone = run(x, w, b), run(shifted, w, b), run(x[17:19], w, b)
    for a, m, o in zip(*(r if isinstance(r, tuple) else (r,) for r in (whole, moved, alone)), strict=True):
        assert torch.equal(a, m)
        assert torch.equal(a[17:19], o)


@pytest.mark.parametrize("cols", [7, 17, 33, 1000])
def test_in_place(cols: int) -> None:
    """An element at the end of a row is not read again after it was overwritten."""

    def twice(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(w).add_(1.0)
        return x

    run, _ = compiled(twice)
    x, w, _ = of_inputs(5, cols)
    exact = x.double() * w.double() + 1
    with torch.no_grad():
        assert close(run(x, w), exact)
    assert close(x, exact)


@pytest.mark.parametrize("cols", [17, 64, 129])
def test_strided_rows_and_columns(cols: int) -> None:
    run, _ = compiled(norm)
    x, w, b = of_inputs(cols, 40)
    view = x.t()[:, : min(cols, 30)]
    w, b = w[: view.shape[1]], b[: view.shape[1]]
    with torch.no_grad():
        assert close(run(view, w, b), norm(view.double(), w.double(), b.double()))


@pytest.mark.parametrize("cols", [1024, 1000, 1023])
@pytest.mark.parametrize("function", [norm, residual_norm, elementwise], ids=lambda f: f.__name__)
def test_large_outputs(function: Callable[..., Any], cols: int) -> None:
    """Large enough to be stored past the caches, where rows are aligned and where they are not."""
    run, backend = compiled(function)
    rows = backend_threshold() // (4 * cols) + 3
    inputs = of_inputs(rows, cols)
    poison(rows, cols)
    with torch.no_grad():
        assert close(run(*inputs), function(*(t.double() for t in inputs)))
    (kernel,) = backend.compiled[0].plan.kernels
    assert "store_or_stream" in kernel.source.text


def backend_threshold() -> int:
    from onepass.device import last_cache_bytes

    return min(last_cache_bytes() // 4, 64 << 20)


def test_sixteen_bit_outputs_stay_in_the_caches() -> None:
    run, backend = compiled(norm)
    inputs = [t.bfloat16() for t in of_inputs(4, 64)]
    with torch.no_grad():
        run(*inputs)
    (kernel,) = backend.compiled[0].plan.kernels
    assert ", past)" not in kernel.source.text


def test_the_next_row_is_asked_for_only_with_one_large_input() -> None:
    def two(x: Tensor, y: Tensor) -> Tensor:
        return F.softmax(x + y, -1)

    x, w, b = of_inputs(4, 64)
    for function, inputs, ahead in ((norm, (x, w, b), True), (two, (x, x.clone()), False)):
        run, backend = compiled(function)
        with torch.no_grad():
            run(*inputs)
        (kernel,) = backend.compiled[0].plan.kernels
        assert ("prefetch(x0_g + a->" in kernel.source.text) is ahead


def test_squares_are_added_with_one_rounding() -> None:
    """Only where the square goes nowhere else: its value is needed rounded there."""

    def squares(x: Tensor) -> Tensor:
        return (x * x).sum(-1)

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * x
        return y, y.sum(-1)

    x, _, _ = of_inputs(5, 1000)
    for function, once in ((squares, True), (both, False)):
        run, backend = compiled(function)
        with torch.no_grad():
            assert close(run(x), function(x.double()))
        (kernel,) = backend.compiled[0].plan.kernels
        text = kernel.source.text
        assert ("op_fma" in text[text.index("struct Args {") :]) is once


def test_the_comparison_rejects_a_row_that_lacks_its_last_column() -> None:
    x, w, b = of_inputs(5, 1000)
    short = F.pad(norm(x[:, :-1], w[:-1], b[:-1]), (0, 1))
    exact = norm(x.double(), w.double(), b.double())
    assert not close(short, exact)
    assert not close(torch.full_like(x, torch.nan), exact)
