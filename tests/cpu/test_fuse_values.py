"""Fused functions given values that change from call to call, from wherever they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import onepass
from onepass import api
from onepass.capture import backend
from onepass.errors import CannotFuse
from onepass.runtime.counters import COUNTERS

VALUES = (1.5, 2.5, 3.5, 4.5, 1.5)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Dynamo gives up on a function at its third recompilation, for speed; its own limit is the eighth."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=2):
        yield


def scale(x: Tensor, by: Any) -> Tensor:
    return x * (by["a"][0] if isinstance(by, dict) else by)


class Scaled(torch.nn.Module):
    """x · by."""

    by = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.by


def attribute() -> Callable[[Tensor, float], Tensor]:
    module = Scaled()
    fused = onepass.fuse(module)

    def call(x: Tensor, by: float) -> Tensor:
        module.by = by
        return fused(x)

    return call


def closure() -> Callable[[Tensor, float], Tensor]:
    held = 0.0
    fused = onepass.fuse(lambda x: x * held)

    def call(x: Tensor, by: float) -> Tensor:
        nonlocal held
        held = by
        return fused(x)

    return call


def argument(put: Callable[[float], Any]) -> Callable[[], Callable[[Tensor, float], Tensor]]:
    def make() -> Callable[[Tensor, float], Tensor]:
        fused = onepass.fuse(scale)
        return lambda x, by: fused(x, put(by))

    return make


def keyword() -> Callable[[Tensor, float], Tensor]:
    fused = onepass.fuse(scale)
    return lambda x, by: fused(x, by=by)


@pytest.mark.parametrize(
    "make",
    [
        argument(float),
        keyword,
        argument(lambda by: {"a": [by]}),
        argument(int),
        argument(torch.tensor),
        attribute,
        closure,
    ],
    ids=["argument", "keyword", "inside a dict", "int", "tensor", "attribute", "closure"],
)
def test_numbers_may_change_from_call_to_call(make: Callable[[], Callable[[Tensor, float], Tensor]]) -> None:
    call, x = make(), torch.randn(4, 8)
    for by in VALUES:
        before = COUNTERS.launched
        got = call(x, by)
        assert COUNTERS.launched == before + 1
        assert torch.equal(got, x * by) or torch.equal(got, x * int(by))


def test_words_may_change_from_call_to_call() -> None:
    fused = onepass.fuse(lambda x, word: x * len(word))
    x = torch.randn(4, 8)
    for word in ("a", "bc", "d", "ef", "ghi", "a"):
        assert torch.equal(fused(x, word), x * len(word))


def test_floats_are_compiled_for_once_and_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    compiled_alone = api._compiled_alone

    def counted(*given: Any) -> Any:
        made.append(1)
        return compiled_alone(*given)

    monkeypatch.setattr(api, "_compiled_alone", counted)
    monkeypatch.setattr(api, "MOST_FLOATS", 2)
    fused, x = onepass.fuse(scale), torch.randn(4, 8)
    for by in (1.5, 2.5, 1.5, 2.5):
        fused(x, by)
    assert len(made) == 2
    for by in (3.5, 2.5, 3.5, 1.5):
        fused(x, by)
    assert len(made) == 4


def test_a_call_changes_no_setting_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the process's, and another thread may be compiling."""
    seen: list[bool] = []
    normalize = backend.normalize

    def watched(*given: Any) -> Any:
        seen.append(torch._dynamo.config.specialize_float)
        return normalize(*given)

    monkeypatch.setattr(backend, "normalize", watched)
    onepass.fuse(scale)(torch.randn(4, 8), 1.5)
    assert seen == [torch._dynamo.config.specialize_float] == [False]


def test_what_cannot_be_fused_stays_an_error_and_spoils_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, x = onepass.fuse(scale), torch.randn(4, 8)
    fused(x, 1.5)
    with pytest.raises(CannotFuse, match="dtype: complex64"):
        fused(x.cfloat(), 1.5)
    monkeypatch.setattr(api, "_compiled_alone", None)
    assert torch.equal(fused(x, 1.5), x * 1.5)


def test_inside_a_compiled_function_it_is_a_part() -> None:
    fused = onepass.fuse(scale)
    report = onepass.explain(lambda x: fused(x, 2.5) + 1, torch.randn(4, 8))
    assert report.totals.fused_kernels == 1
    assert report.totals.aten_calls == 0
