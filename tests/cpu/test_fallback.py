"""Programs whose graph we fail to compile: as users run them PyTorch takes over, with a warning, and all is as in eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import onepass.capture.backend as backend_module
from onepass.capture.backend import Backend
from onepass.errors import LeftToPyTorch
from onepass.runtime.counters import COUNTERS


@pytest.fixture(autouse=True)
def lenient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ONEPASS_STRICT", "0")
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Buffered(torch.nn.Module):
    """A module that counts its calls in a buffer, and has a parameter twice."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(6))
        self.same = self.w
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return F.layer_norm(x, (6,), self.w, self.same) * self.calls


def writes(x: Tensor) -> Tensor:
    x.mul_(2)
    x[:, 0].fill_(1.0)
    return x.relu() + 1


def breaks(x: Tensor) -> Tensor:
    y = x.exp()
    torch._dynamo.graph_break()
    return y * 2 + x


def several(x: Tensor) -> tuple[Any, ...]:
    y = x.sigmoid()
    return y, x, y.view(-1)[2:], None, {"again": [y, x.t()]}, x.shape[0]


def autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.gelu(x @ x.t()).float() + 1


def attention(x: Tensor) -> Tensor:
    q = x[None, None]
    return F.scaled_dot_product_attention(q, q, q, is_causal=True) * 2


PROGRAMS: dict[str, Callable[[], Callable[..., Any]]] = {
    "arithmetic": lambda: lambda x: F.gelu(x) * 0.5 + x,
    "a module with a buffer": Buffered,
    "writes to its input": lambda: writes,
    "a graph break": lambda: breaks,
    "several results": lambda: several,
    "autocast": lambda: autocast,
    "attention": lambda: attention,
    "random numbers": lambda: lambda x: F.dropout(x, 0.5) + torch.rand_like(x),
    "sizes": lambda: lambda x: x.sum(0) / x.shape[0] + torch.arange(x.shape[1]),
}


@pytest.mark.parametrize("stage", ["set_aside", "normalize", "compile_runner"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_left_to_pytorch_runs_as_in_eager(
    program: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for another row count, which is captured anew with symbolic sizes."""

    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("no such register")

    monkeypatch.setattr(backend_module, stage, broken)
    backend = Backend()
    torch.manual_seed(1)
    theirs = PROGRAMS[program]()
    torch.manual_seed(1)
    mine = PROGRAMS[program]()
    compiled = torch.compile(mine, backend=backend)
    launched = COUNTERS.launched
    with pytest.warns(LeftToPyTorch, match="no such register"):  # noqa: PT031 - once for each capture
        for rows in (4, 4, 7, 9):
            x = torch.randn(rows, 6)
            given, kept = x.clone(), x.clone()
            torch.manual_seed(rows)
            got = compiled(given)
            torch.manual_seed(rows)
            expected = theirs(kept)
            torch.testing.assert_close(got, expected, rtol=0, atol=0)
            assert torch.equal(given, kept)
    assert COUNTERS.launched == launched
    assert backend.left and not backend.compiled
    assert all("no such register" in reason for reason in backend.left)


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_is_left_to_pytorch_where_nothing_fails(
    program: str, recwarn: pytest.WarningsRecorder
) -> None:
    """As users run it, without the setting that the other tests have."""
    backend = Backend()
    torch.compile(PROGRAMS[program](), backend=backend)(torch.randn(4, 6))
    assert backend.compiled and not backend.left
    assert not [w for w in recwarn if issubclass(w.category, LeftToPyTorch)]
