"""What functionals are given that no kernel can take, or that changes between calls: each gives what PyTorch gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import onepass.functional as OF
from onepass import nn as onn
from onepass.capture import direct as direct_module
from onepass.capture.direct import _Captured, _Direct, direct
from onepass.errors import BadSetting, LeftToPyTorch
from onepass.runtime.counters import COUNTERS


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture(params=["0", "1"], ids=["lenient", "strict"])
def strictness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ONEPASS_STRICT", request.param)
    return str(request.param)


def launches(call: Callable[[], Any]) -> int:
    before = COUNTERS.launched
    call()
    return COUNTERS.launched - before


# Tensors that are not plain memory


def unusual() -> dict[str, tuple[Tensor, Tensor]]:
    """Tensors that a kernel would misread, each with a plain one of the same shape."""
    z = torch.randn(3, 4, dtype=torch.complex64)
    return {
        "negated when read": (z.conj().imag, z.imag),
        "a negated slice": (z.conj().imag[:, 1:], z.imag[:, 1:]),
        "mkldnn": (torch.randn(3, 4).to_mkldnn(), torch.randn(3, 4)),
    }


@pytest.mark.parametrize("name", unusual())
@pytest.mark.parametrize("first", ["plain", "unusual"])
def test_a_capture_is_not_used_for_tensors_that_are_not_plain_memory(name: str, first: str) -> None:
    function = direct(F.gelu)
    odd, plain = unusual()[name]
    for x in (plain, odd, plain) if first == "plain" else (odd, plain, odd):
        got, expected = function(x), F.gelu(x)
        if x.layout is not torch.strided:
            got, expected = got.to_dense(), expected.to_dense()
        torch.testing.assert_close(got, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("make", [Tensor.to_sparse, Tensor.to_sparse_csr], ids=["coo", "csr"])
def test_sparse_tensors_run_in_pytorch(make: Callable[[Tensor], Tensor], strictness: str) -> None:
    x = torch.eye(3)
    assert torch.equal(direct(torch.relu)(make(x)).to_dense(), x)


# Arguments that are neither tensors nor constants


class Two(torch.nn.Module):
    """A norm and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = onn.AddRMSNorm(8, eps=1e-6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        normed, total = self.norm(x, y)
        return OF.swiglu(normed, total)


def plainly(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    total = x + y
    return F.silu(F.rms_norm(total, (8,), w, 1e-6)) * total


def test_symbolic_tracing_sees_the_ops_once(strictness: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        single = fx.symbolic_trace(onn.LayerNorm(8))
        both = fx.symbolic_trace(Two())
    assert [n.target for n in single.graph.nodes if n.op == "call_function"] == [F.layer_norm]
    assert sum(n.target is F.silu for n in both.graph.nodes) == 1
    assert sum(n.target is F.rms_norm for n in both.graph.nodes) == 1
    x, y = torch.randn(2, 4, 8)
    torch.testing.assert_close(both(x, y), plainly(x, y, both.norm.weight))


def test_numbers_of_numpy_and_lists_of_sizes_are_taken(strictness: str) -> None:
    x = torch.randn(3, 8)
    for shape, eps in ((torch.Size([8]), np.float64(1e-5)), ([8], 1e-5), (x.shape[-1:], 1e-5)):
        assert launches(lambda shape=shape, eps=eps: OF.layer_norm(x, shape, eps=eps)) == 1
    torch.testing.assert_close(OF.layer_norm(x, (np.int64(8),)), F.layer_norm(x, (8,)))


# Mistakes of the caller


@pytest.mark.parametrize(
    "call",
    [
        lambda: OF.bias_gelu(torch.randn(2, 8), torch.randn(7)),
        lambda: OF.gelu(torch.randn(2, 8), "foo"),
        lambda: OF.layer_norm(torch.randn(2, 8), (7,)),
        lambda: OF.layer_norm(torch.randn(2, 8), {8}),
        lambda: OF.layer_norm(torch.randn(2, 8), [[8]]),
        lambda: OF.softmax(torch.randn(2, 8), "last"),
        lambda: OF.silu(),
        lambda: OF.silu(torch.randn(3), weight=1),
        lambda: OF.silu("x"),
        lambda: onn.RMSNorm(8)(torch.randn(2, 7)),
        lambda: OF.silu(torch.nested.nested_tensor([torch.randn(2), torch.randn(3)])).shape,
    ],
)
def test_mistakes_are_told_in_pytorchs_words(call: Callable[[], Any], strictness: str) -> None:
    told: list[str] = []
    for disabled in ("1", "0"):
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("error", LeftToPyTorch)
            patch.setenv("ONEPASS_DISABLE", disabled)
            with pytest.raises(Exception) as caught:  # noqa: PT011 - PyTorch's own, the same both times
                call()
        told.append(f"{caught.type.__name__}: {caught.value}")
        assert caught.value.__context__ is None or disabled == "1"
    assert told[0] == told[1]


# Settings


@pytest.mark.parametrize(
    ("deny", "call"),
    [
        ("gelu", lambda x: OF.gelu(x)),
        ("gelu.default", lambda x: OF.bias_gelu(x, x[0])),
        ("native_layer_norm", lambda x: OF.gelu_add_layer_norm(x, x)),
        ("mul", lambda x: OF.swiglu(x, x)),
    ],
)
def test_a_denied_op_runs_in_pytorch(
    deny: str, call: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(3, 10)
    expected = call(x)
    monkeypatch.setenv("ONEPASS_DENY", deny)
    x = torch.randn(2, 3, 10)  # a kind not met before
    got: list[Tensor] = []
    assert launches(lambda: got.append(call(x))) == 0
    assert launches(lambda: OF.silu(x)) == 1
    monkeypatch.delenv("ONEPASS_DENY")
    assert launches(lambda: torch.testing.assert_close(call(x), got[0], rtol=2e-6, atol=2e-6)) == 1
    assert expected.shape == (3, 10)


def test_disabling_does_not_outlast_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    function, x = direct(lambda x: x.exp() * 2), torch.randn(3, 9)
    monkeypatch.setenv("ONEPASS_DISABLE", "1")
    assert launches(lambda: function(x)) == 0
    monkeypatch.setenv("ONEPASS_DISABLE", "0")
    assert launches(lambda: function(x)) == 1


def test_a_bad_setting_is_told(monkeypatch: pytest.MonkeyPatch, strictness: str) -> None:
    monkeypatch.setenv("ONEPASS_FUEL", "some")
    with pytest.raises(BadSetting):
        direct(lambda x: x.exp())(torch.randn(3, 9))


# What is kept


def counted(f: Callable[..., Any]) -> tuple[_Direct, list[int]]:
    """A function whose captures run as they are written, and a list that grows with each capture."""
    made: list[int] = []

    class Counted(_Direct):
        def compile(self, of_tensors: Any, tensors: Any, kind: Any, options: Any) -> _Captured:
            made.append(1)
            shapes, strides = tuple(tuple(t.shape) for t in tensors), tuple(t.stride() for t in tensors)
            return _Captured(kind, lambda given: of_tensors(*given), shapes, strides)

    return Counted(f, "counted"), made


def test_captures_are_bounded_and_the_one_used_longest_ago_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_module, "MOST_CAPTURES", 4)
    held, made = counted(lambda x, eps: x + eps)
    x = torch.randn(2, 8)
    for i in range(30):
        assert torch.equal(held.call((x, float(i)), {}), x + float(i))
        held.by_arguments.clear()  # so that the capture is looked for, and counts as used
        assert torch.equal(held.call((x, 0.0), {}), x)
    assert len(made) == 30
    assert len(held.captures) == 4
    held.call((torch.randn(3, 8), 0.0), {})
    assert len(held.captures) == 4
    assert len(held.by_arguments) <= 4
    held.call((x, 1.0), {})
    assert len(made) == 32


def test_a_failing_capture_is_tried_once_for_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def broken(*_: Any) -> Any:
        tried.append(1)
        raise ValueError("no such register")

    monkeypatch.setattr(direct_module, "compile_graph", broken)
    monkeypatch.setenv("ONEPASS_STRICT", "0")
    warnings.simplefilter("error", LeftToPyTorch)  # outside of pytest.warns there is none
    function = direct(lambda x, by=1.0: x.exp() * by)
    with pytest.warns(LeftToPyTorch, match="no such register"):
        function(torch.randn(2, 8))
    for rows in range(2, 12):
        x = torch.randn(rows, 8)
        assert torch.equal(function(x), x.exp())
    assert len(tried) == 1
    with pytest.warns(LeftToPyTorch):
        function(torch.randn(2, 8), 2.0)
    assert len(tried) == 2


# What is looked up by sizes alone, once arguments were seen, and checked by one guard


class Watch(TorchDispatchMode):
    """Counts the ops that PyTorch is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops += 1
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


# What is different from fp32 tensors of 3 × 4 that were seen: how the call goes, and kernels it launches.
Changed = tuple[Callable[[Callable[..., Any], Tensor, Tensor], Any], int]
CHANGED: dict[str, Changed] = {
    "nothing": (lambda f, x, w: f(x, w), 1),
    "dtype": (lambda f, x, w: f(x.bfloat16(), w.bfloat16()), 1),
    "strides": (lambda f, x, w: f(x.t().contiguous().t(), w), 1),
    "expanded": (lambda f, x, w: f(x[:1].expand(3, 4), w), 1),
    "negated when read": (lambda f, x, w: f(torch.complex(x, x).conj().imag, w), 0),
    "inference mode": (lambda f, x, w: _within(torch.inference_mode(), f, x, w), 1),
    "a tensor made in inference mode": (
        lambda f, x, w: f(_within(torch.inference_mode(), torch.clone, x), w),
        1,
    ),
    "a parameter, without gradients": (lambda f, x, w: f(x, torch.nn.Parameter(w)), 1),
    "gradients": (lambda f, x, w: _within(torch.enable_grad(), f, x, w.detach().requires_grad_()), 0),
    "autocast": (lambda f, x, w: _within(torch.autocast("cpu", torch.bfloat16), f, x, w), 1),
    "a dispatch mode": (lambda f, x, w: _within(Watch(), f, x, w), 0),
    "a function mode": (lambda f, x, w: _within(Functions(), f, x, w), 0),
    "vmap over rows": (lambda f, x, w: torch.vmap(f, (0, None))(x.expand(2, 3, 4), w), 0),
    "inside a vmap, not mapped": (lambda f, x, w: torch.vmap(lambda _: f(x, w))(x), 0),
    "functionalized": (lambda f, x, w: torch.func.functionalize(f)(x, w), 0),
    "traced by the JIT": (lambda f, x, w: torch.jit.trace(f, (x, w), check_trace=False)(x, w), 0),
    "traced by make_fx": (lambda f, x, w: fx.experimental.proxy_tensor.make_fx(f)(x, w)(x, w), 0),
}


def _within(manager: Any, f: Callable[..., Any], *given: Any) -> Any:
    with manager:
        return f(*given)


def bias_gelu_anew() -> Callable[[Tensor, Tensor], Tensor]:
    return direct(lambda x, w: F.gelu(x * w + 1))


@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_arguments_that_were_seen_do_not_stand_for_others(change: str) -> None:
    function = bias_gelu_anew()
    x, w = torch.randn(3, 4), torch.randn(4)
    for _ in range(3):  # captured, looked up, found by its sizes
        function(x, w)
    call, kernels = CHANGED[change]
    found: list[Tensor] = []
    assert launches(lambda: found.append(call(function, x, w))) == kernels
    expected = call(lambda x, w: F.gelu(x * w + 1), x, w)
    assert (found[0].dtype, found[0].shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(found[0], expected)
    assert found[0].is_inference() == expected.is_inference()
    assert launches(lambda: function(x, w)) == 1


def test_a_guard_that_takes_everything_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that the test above is for: with the sizes alone, the wrong kernel runs."""
    monkeypatch.setattr(direct_module, "_guard", lambda tensors: lambda *others: True)
    for change in ("dtype", "strides", "expanded", "negated when read", "a dispatch mode"):
        with pytest.raises((AssertionError, RuntimeError)):
            test_arguments_that_were_seen_do_not_stand_for_others(change)


def test_many_sizes_are_seen_and_forgotten_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_module, "MOST_SHAPES", 3)
    held = _Direct(lambda x: F.silu(x) + 1, "test")
    for rows in (2, 3, 4, 5, 6, 2, 3):
        x = torch.randn(rows, 8)
        for _ in range(3):
            torch.testing.assert_close(held.call((x,), {}), F.silu(x) + 1)
        assert len(held.seen) <= len(held.by_arguments) <= 3
