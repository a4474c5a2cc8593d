"""A result lies where the last input that its kernel reads lay, and only where nobody could tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import onepass
from harness.oracle import capture
from harness.shipping import planning_for
from onepass import build as pipeline
from onepass.capture import backend as backend_module
from onepass.capture import in_place as module
from onepass.capture.backend import Backend
from onepass.capture.in_place import in_place
from onepass.capture.runner import Compiled
from onepass.device import KNOWN

pytestmark = pytest.mark.usefixtures("fresh")


def only(f: Callable[..., Any], *inputs: Tensor) -> Compiled:
    """The compiled graph of a function, which gives what it gives where nothing is in place, to the bit."""
    backend, apart = Backend(), Backend()
    found = run(f, backend, inputs)
    with mock.patch.object(backend_module, "in_place", return_value={}):
        expected = run(f, apart, inputs)
    assert [t.dtype for t in found] == [t.dtype for t in expected]
    assert all(map(torch.equal, found, expected))
    (compiled,) = backend.compiled
    return compiled


def run(f: Callable[..., Any], backend: Backend, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    torch._dynamo.reset()
    given = [x.clone() for x in inputs]
    torch._dynamo.maybe_mark_dynamic(given[0], 0)  # type: ignore[attr-defined]
    result = torch.compile(f, backend=backend)(*given)
    assert all(map(torch.equal, given, inputs)), "an input was written"
    return result if isinstance(result, tuple) else (result,)


def feed_forward(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.layer_norm(x + F.gelu(x @ up) @ down, x.shape[-1:]) @ up


def sizes(rows: int, narrow: int, wide: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return (
        torch.randn(rows, narrow, dtype=dtype),
        torch.randn(narrow, wide, dtype=dtype),
        torch.randn(wide, narrow, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(37, 32, 48), (5, 16, 64), (130, 64, 256), (3, 256, 1024)], ids=str)
def test_both_kernels_of_a_feed_forward_block(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    compiled = only(feed_forward, *sizes(*shape, dtype))
    assert len(in_place(compiled.plan)) == len(compiled.plan.kernels) == 2
    assert "empty_" not in compiled.text


def test_not_where_the_end_of_a_row_is_read_twice() -> None:
    compiled = only(feed_forward, *sizes(37, 20, 33))
    assert len(compiled.plan.kernels) == 2
    assert not in_place(compiled.plan)


def test_a_sum_that_is_kept_and_its_norm() -> None:
    """Two results and two inputs, of which one is a matmul's: only one result may lie there."""

    def f(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        total = x + x @ up @ down
        return (F.layer_norm(total, x.shape[-1:]) @ up) @ down + total

    compiled = only(f, *sizes(37, 32, 48))
    assert len(in_place(compiled.plan)) == 1


def returned(x: Tensor, up: Tensor, down: Tensor) -> Any:
    wide = x @ up
    return F.gelu(wide) @ down, wide


def returned_as_a_view(x: Tensor, up: Tensor, down: Tensor) -> Any:
    wide = x @ up
    return F.gelu(wide) @ down, wide.t()


def read_later(x: Tensor, up: Tensor, down: Tensor) -> Any:
    wide = x @ up
    return F.gelu(wide) @ down + wide @ down


def result_returned(x: Tensor, up: Tensor, _: Tensor) -> Any:
    return F.gelu(x @ up)


def an_input(x: Tensor, up: Tensor, _: Tensor) -> Any:
    return F.gelu(x) @ up


def a_narrower_dtype(x: Tensor, up: Tensor, down: Tensor) -> Any:
    return F.gelu(x @ up).bfloat16() @ down.bfloat16()


def another_dtype_of_that_width(x: Tensor, up: Tensor, down: Tensor) -> Any:
    return F.gelu(x.bfloat16() @ up.bfloat16()).half() @ down.half()


def integers_of_that_width(x: Tensor, up: Tensor, _: Tensor) -> Any:
    whole = (x @ up).relu().to(torch.int32)
    return whole.t() @ whole.square()


def transposed(x: Tensor, up: Tensor, _: Tensor) -> Any:
    square = x @ up[:, :48]
    return F.gelu(square.t() + 1).contiguous() @ square.new_ones(48, 2)


def several_writers(x: Tensor, up: Tensor, down: Tensor) -> Any:
    wide = x @ up
    return torch.cat([wide[:32].sigmoid(), wide[32:] * 2]) @ down


def a_writer_before_the_source(x: Tensor, up: Tensor, down: Tensor) -> Any:
    first = up.relu()
    later = torch.addmm(up[0], x[:40, :20], first)
    return torch.cat([first, later[20:].sigmoid()]) @ down


def repeated(x: Tensor, up: Tensor, down: Tensor) -> Any:
    row = x[:1] @ up
    return (F.gelu(row.expand(48, 64)) + x[:, :1]) @ down


@pytest.mark.parametrize(
    "f",
    [
        returned,
        returned_as_a_view,
        read_later,
        result_returned,
        an_input,
        a_narrower_dtype,
        another_dtype_of_that_width,
        integers_of_that_width,
        transposed,
        several_writers,
        a_writer_before_the_source,
        repeated,
    ],
    ids=lambda f: f.__name__,
)
def test_not_where_it_could_be_told(f: Callable[..., Any]) -> None:
    compiled = only(f, *sizes(48, 20, 64))
    assert compiled.plan.kernels
    assert not in_place(compiled.plan)


def test_a_place_that_another_element_is_read_from_later_gives_wrong_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_fits", lambda *_: True)
    for f, shape in ((transposed, (48, 20, 64)), (feed_forward, (37, 32, 33))):
        with pytest.raises(AssertionError):
            only(f, *sizes(*shape))


def test_not_on_a_gpu() -> None:
    with planning_for(KNOWN[0]):
        program = capture(feed_forward, sizes(37, 32, 48), pipeline.fit).program
        plan = pipeline.build(program, {}, run=False)
    assert plan.kernels
    assert not in_place(plan)
    assert in_place(pipeline.build(program, {}, run=False))


def test_measuring_a_kernel_again_and_again_changes_nothing() -> None:
    class Caching(torch.nn.Module):
        cache: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(64, 64)
            self.register_buffer("cache", torch.zeros(32, 64))

        def forward(self, x: Tensor) -> Tensor:
            y = (self.linear(x) * 2 + 1).exp()
            self.cache.copy_(self.linear(y))
            return y @ self.linear.weight

    model, x = Caching(), torch.randn(32, 64) / 10
    model(x)
    want = model.cache.clone()
    onepass.explain(model, x, run=True)
    torch.testing.assert_close(model.cache, want)
