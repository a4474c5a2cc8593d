"""`onepass.fuse`, and the functionals and modules built like it: kernels all through, or an error that helps."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import onepass
import onepass.functional as OF
from onepass import nn as onn
from onepass.capture import direct as direct_module
from onepass.capture.direct import direct
from onepass.errors import CannotFuse, LeftToPyTorch
from onepass.runtime.counters import COUNTERS

HERE = Path(__file__)


pytestmark = pytest.mark.usefixtures("fresh")


def launches(call: Callable[[], Any]) -> tuple[Any, int]:
    before = COUNTERS.launched
    result = call()
    return result, COUNTERS.launched - before


def near(got: Any, expected: Any) -> None:
    """Within a few roundings of the result's dtype; NaN nowhere that it is not expected."""
    pairs = zip(got, expected, strict=True) if isinstance(expected, tuple) else [(got, expected)]
    for one, other in pairs:
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        rounding = 2e-6 if other.dtype is torch.float32 else 2**-6 if other.dtype is torch.bfloat16 else 2**-9
        torch.testing.assert_close(one, other, rtol=rounding, atol=rounding)


def line_of(function: Callable[..., Any], text: str) -> str:
    """``file:line`` of the line of a function that holds a text."""
    lines, start = inspect.getsourcelines(function)
    return f"{HERE}:{start + next(i for i, line in enumerate(lines) if text in line)}"


# fuse


def gated(x: Tensor, gate: Tensor, scale: Tensor, eps: float = 1e-6) -> Tensor:
    y = F.silu(gate) * x
    return y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + eps) * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fuse_for_several_shapes(dtype: torch.dtype) -> None:
    fused = onepass.fuse(gated)
    for shape in ((4, 33), (7, 33), (2, 5, 33), (7, 64), (1, 64)):
        inputs = [torch.randn(shape).to(dtype) for _ in range(2)] + [torch.randn(shape[-1]).to(dtype)]
        got, count = launches(lambda inputs=inputs: fused(*inputs))
        assert count == 1
        near(got.float(), gated(*(t.float() for t in inputs)).to(dtype).float()) if (
            dtype is torch.float32
        ) else torch.testing.assert_close(
            got.float(), gated(*(t.float() for t in inputs)), rtol=0.02, atol=0.02
        )


def test_fuse_gives_what_the_back_end_gives() -> None:
    inputs = [torch.randn(9, 40), torch.randn(9, 40), torch.randn(40)]
    from onepass.capture.backend import onepass as backend

    assert torch.equal(onepass.fuse(gated)(*inputs), torch.compile(gated, backend=backend)(*inputs))


def test_fuse_as_a_decorator_keeps_name_keywords_and_closures() -> None:
    scale = torch.randn(12)

    @onepass.fuse
    def scaled(x: Tensor, *, by: float = 1.0) -> dict[str, Tensor]:
        """Scales."""
        return {"y": x.exp() * scale * by}

    x = torch.randn(3, 12)
    assert (scaled.__name__, scaled.__doc__) == ("scaled", "Scales.")
    near(scaled(x, by=0.5)["y"], x.exp() * scale * 0.5)
    scale.fill_(2.0)
    near(scaled(x, by=3.0)["y"], x.exp() * 6.0)


def test_fuse_of_a_module() -> None:
    layer = torch.nn.Sequential(torch.nn.GELU(), torch.nn.LayerNorm(16))
    fused = onepass.fuse(layer)
    x = torch.randn(4, 16)
    near(fused(x), layer(x))
    layer[1].weight.mul_(2.0)
    near(fused(x), layer(x))


def sorts(x: Tensor) -> Tensor:
    y = x * 2
    return torch.sort(y)[0] + 1


def multiplies(x: Tensor) -> Tensor:
    return F.gelu(x @ x.t())


def breaks(x: Tensor) -> Tensor:
    y = x + 1
    print("seen")
    return y * 2


def branches(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def inner(x: Tensor) -> Tensor:
    return x.logcumsumexp(-1)


def outer(x: Tensor) -> Tensor:
    return inner(x.exp())


def plain(x: Tensor) -> Tensor:
    return x.exp() + 1


@pytest.mark.parametrize(
    ("function", "x", "where", "told"),
    [
        (sorts, torch.randn(4, 8), (sorts, "torch.sort"), ("sort", "float32[4, 8]", "unsupported op")),
        (multiplies, torch.randn(4, 8), (multiplies, "x @ x"), ("mm", "float32[4, 8]", "compute-bound")),
        (outer, torch.randn(4, 8), (inner, "logcumsumexp"), ("logcumsumexp", "unsupported op")),
        (plain, torch.randn(4, 8).cfloat(), (plain, "x.exp"), ("exp", "complex64[4, 8]", "dtype: complex64")),
        (plain, torch.randn(4, 8).to(torch.complex64), (plain, "x.exp"), ("exp", "complex64[4, 8]")),
        (breaks, torch.randn(4, 8), (breaks, "print("), ("print",)),
        (branches, torch.randn(4, 8), (branches, "if x.sum"), ("data-dependent",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_fused_names_line_op_shapes_and_a_way_out(
    function: Callable[[Tensor], Tensor], x: Tensor, where: tuple[Any, str], told: tuple[str, ...]
) -> None:
    with pytest.raises(CannotFuse) as caught:
        onepass.fuse(function)(x)
    message = str(caught.value)
    assert message.startswith(line_of(*where))
    assert function.__name__ in message
    for word in told:
        assert word.lower() in message.lower()
    assert "torch.compile" in message  # what to do instead


def test_gradients_cannot_be_fused_yet() -> None:
    w = torch.randn(8, requires_grad=True)
    with torch.enable_grad(), pytest.raises(CannotFuse, match=r"gradients.*\n.*no_grad"):
        onepass.fuse(lambda x: x * w)(torch.randn(4, 8))


def test_errors_of_the_function_itself_stay_its_own() -> None:
    with pytest.raises(Exception, match="shape '\\[7\\]' is invalid"):
        onepass.fuse(lambda x: x.view(7) * 2)(torch.randn(8))


def test_disabled_runs_as_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_DISABLE", "1")
    x = torch.randn(4, 8)
    result, count = launches(lambda: onepass.fuse(sorts)(x))
    assert count == 0
    assert torch.equal(result, sorts(x))
    assert launches(lambda: direct(plain)(x))[1] == 0


# Functionals


def args(*shapes: tuple[int, ...]) -> Callable[[torch.dtype], list[Tensor]]:
    return lambda dtype: [torch.randn(shape).to(dtype) for shape in shapes]


X, W = (5, 7, 24), (24,)


def layer(x: Tensor, w: Tensor | None = None, b: Tensor | None = None) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


# What each computes, in PyTorch; in float64 it is the reference.
FUNCTIONALS: dict[
    str, tuple[Callable[..., Any], Callable[..., Any], Callable[[torch.dtype], list[Tensor]]]
] = {
    "layer_norm": (lambda x, w, b: OF.layer_norm(x, (24,), w, b), layer, args(X, W, W)),
    "layer_norm bare": (lambda x: OF.layer_norm(x, [24]), layer, args(X)),
    "layer_norm of two": (
        lambda x: OF.layer_norm(x, (7, 24)),
        lambda x: F.layer_norm(x, (7, 24)),
        args(X),
    ),
    "rms_norm": (
        lambda x, w: OF.rms_norm(x, (24,), w, eps=1e-6),
        lambda x, w: F.rms_norm(x, (24,), w, 1e-6),
        args(X, W),
    ),
    "softmax": (OF.softmax, lambda x: x.softmax(-1), args(X)),
    "softmax inside": (lambda x: OF.softmax(x, 1), lambda x: x.softmax(1), args(X)),
    "log_softmax": (OF.log_softmax, lambda x: x.log_softmax(-1), args(X)),
    "gelu": (OF.gelu, F.gelu, args(X)),
    "gelu tanh": (
        lambda x: OF.gelu(x, approximate="tanh"),
        lambda x: F.gelu(x, approximate="tanh"),
        args(X),
    ),
    "silu": (OF.silu, F.silu, args(X)),
    "swiglu": (OF.swiglu, lambda g, u: F.silu(g) * u, args(X, X)),
    "geglu": (OF.geglu, lambda g, u: F.gelu(g) * u, args(X, X)),
    "bias_gelu": (OF.bias_gelu, lambda x, b: F.gelu(x + b), args(X, W)),
    "add_layer_norm": (OF.add_layer_norm, lambda x, r, w, b: (layer(x + r, w, b), x + r), args(X, X, W, W)),
    "add_rms_norm": (
        lambda x, r, w: OF.add_rms_norm(x, r, w, 1e-6),
        lambda x, r, w: (F.rms_norm(x + r, (24,), w, 1e-6), x + r),
        args(X, X, W),
    ),
    "gelu_add_layer_norm": (
        OF.gelu_add_layer_norm,
        lambda x, r, w, b: layer(F.gelu(x) + r, w, b),
        args(X, X, W, W),
    ),
    "rotary": (
        OF.rotary,
        lambda x, c, s: x * c + torch.cat((-x[..., 12:], x[..., :12]), -1) * s,
        args((2, 3, 7, 24), (7, 24), (7, 24)),
    ),
}


def test_every_functional_is_tested() -> None:
    here = {name.split()[0] for name in FUNCTIONALS}
    elsewhere = (Path(__file__).parent / "test_functional_values.py").read_text()
    assert here <= set(OF.__all__)
    assert [name for name in OF.__all__ if name not in here and f"OF.{name}(" not in elsewhere] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONALS)
def test_functional_is_one_kernel_and_no_less_exact_than_pytorch(name: str, dtype: torch.dtype) -> None:
    function, reference, make = FUNCTIONALS[name]
    inputs = make(dtype)
    kept = [t.clone() for t in inputs]
    results, count = launches(lambda: function(*inputs))
    assert count == 1
    assert all(map(torch.equal, inputs, kept))
    ours, eagers, exact = (
        result if isinstance(result, tuple) else (result,)
        for result in (results, reference(*inputs), reference(*(t.double() for t in inputs)))
    )
    for one, other, right in zip(ours, eagers, exact, strict=True):
        assert one.dtype is dtype
        assert one.shape == right.shape
        error, allowed = ((t.double() - right).norm() for t in (one, other))
        assert error <= 2 * allowed + 1e-7 * right.norm()


def test_functionals_do_without_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("Dynamo was asked")

    monkeypatch.setattr(torch._dynamo.eval_frame, "optimize", refuse)
    monkeypatch.setattr(torch, "compile", refuse)
    near(OF.silu(torch.ones(3, 5)), F.silu(torch.ones(3, 5)))


def recorded() -> tuple[Callable[[Tensor], Tensor], list[int]]:
    """A function that launches directly, and a list that grows with each capture of it."""
    captures: list[int] = []

    def function(x: Tensor, y: Tensor | None = None, scale: float = 1.0) -> Tensor:
        captures.append(1)
        return (x if y is None else x * y).exp() * scale

    return direct(function), captures


def test_one_capture_for_all_row_counts() -> None:
    function, captures = recorded()
    function(torch.randn(4, 8))
    once = len(captures)  # a capture runs the function more than once
    for shape in ((4, 8), (5, 8), (4, 8), (700, 8), (2, 8)):
        x = torch.randn(shape)
        near(function(x), x.exp())
    assert len(captures) == once
    for shape in ((4, 9), (1, 8), (0, 8), (3, 4, 8), (4, 4, 8), (8,), ()):
        x = torch.randn(shape)
        near(function(x), x.exp())


def test_a_capture_holds_only_for_what_it_was_made_for() -> None:
    """Sizes that agree in one call and not in the next, broadcasts, dtypes, constants, layouts, keywords."""
    function, _ = recorded()
    square, wide = torch.randn(6, 6, 8), torch.randn(6, 5, 8)
    packed = torch.randn(6, 5, 24)[..., :8]
    for x, y in (
        (square, square),
        (wide, wide),
        (wide, torch.randn(5, 8)),
        (wide, torch.randn(1, 8)),
        (wide, torch.randn(6, 1, 8)),
        (torch.randn(5, 5, 8), torch.randn(5, 8)),
        (packed, wide),
        (wide, packed),
        (torch.randn(3, 5, 40)[..., :8], torch.randn(3, 5, 8)),
        (torch.randn(5, 6, 8).transpose(0, 1), wide),
        (torch.randn(8, 5, 6).permute(2, 1, 0), wide),
        (torch.randn(5, 8).expand(6, 5, 8), wide),
        (torch.randn(9 * 8)[1:41].view(5, 8), torch.randn(5, 8)),
    ):
        near(function(x, y), (x * y).exp())
        near(function(x, y=y), (x * y).exp())
        near(function(x, y, 0.5), (x * y).exp() * 0.5)
        near(function(x, y, scale=2.0), (x * y).exp() * 2.0)
    narrow = wide.clamp(-1, 1).bfloat16()
    near(function(narrow, narrow), narrow.float().square().exp().bfloat16())


def test_many_shapes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_module, "MOST_SHAPES", 4)
    function, captures = recorded()
    function(torch.randn(2, 8))
    once = len(captures)
    for rows in (*range(2, 14), 3):
        x = torch.randn(rows, 8)
        near(function(x), x.exp())
    assert len(captures) == once


def test_gradients_run_in_pytorch() -> None:
    x, w = torch.randn(4, 8), torch.randn(8, requires_grad=True)
    with torch.enable_grad():
        result, count = launches(lambda: OF.rms_norm(x, (8,), w, 1e-6))
        (got,) = torch.autograd.grad(result.square().sum(), w)
        (expected,) = torch.autograd.grad(F.rms_norm(x, (8,), w, 1e-6).square().sum(), w)
    assert count == 0
    near(got, expected)
    assert launches(lambda: OF.rms_norm(x, (8,), w, 1e-6))[1] == 1


def test_autocast_is_followed() -> None:
    x = torch.randn(4, 8)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            near(OF.softmax(x.to(dtype)), F.softmax(x.to(dtype), -1))
            near(OF.silu(x), F.silu(x))


def test_transforms_and_watchers_see_single_ops() -> None:
    x, w = torch.randn(6, 4, 8), torch.randn(6, 8)
    OF.rms_norm(x, (8,))
    near(torch.vmap(lambda x, w: OF.bias_gelu(x, w))(x, w), F.gelu(x + w[:, None]))
    _, tangent = torch.func.jvp(OF.silu, (x,), (torch.ones_like(x),))
    near(tangent, torch.func.jvp(F.silu, (x,), (torch.ones_like(x),))[1])
    traced = torch.jit.trace(OF.silu, x)
    near(traced(x + 1), F.silu(x + 1))
    with torch.utils.flop_counter.FlopCounterMode(display=False):
        assert launches(lambda: OF.silu(x))[1] == 0
    fake = torch.export.export(onn.LayerNorm(8), (x[0],))
    near(fake.module()(x[0]), F.layer_norm(x[0], (8,)))


def test_inside_a_compiled_function_they_fuse_with_their_neighbours() -> None:
    report = onepass.explain(lambda x: OF.softmax(OF.silu(x) * 2) + 1, torch.randn(4, 8))
    assert report.totals.fused_kernels == 1
    assert report.totals.aten_calls == 0


def test_a_subclass_runs_in_pytorch() -> None:
    class Named(Tensor):
        pass

    result, count = launches(lambda: OF.silu(torch.randn(3, 4).as_subclass(Named)))
    assert (type(result), count) == (Named, 0)


@pytest.mark.parametrize("dtype", [torch.complex64])
def test_dtypes_without_kernels_name_the_callers_line(dtype: torch.dtype) -> None:
    x = torch.randn(4, 8).to(dtype)
    with pytest.raises(CannotFuse) as caught:
        OF.silu(x)  # here
    own = test_dtypes_without_kernels_name_the_callers_line
    assert str(caught.value).startswith(line_of(own, "# here"))
    assert f"{str(dtype).removeprefix('torch.')}[4, 8]" in str(caught.value)


def test_a_failure_of_ours_runs_in_pytorch_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("no such register")

    function, _ = recorded()
    x = torch.randn(3, 8)
    monkeypatch.setattr(direct_module, "compile_graph", broken)
    with pytest.raises(ValueError, match="no such register"):
        function(x)
    monkeypatch.setenv("ONEPASS_STRICT", "0")
    with pytest.warns(LeftToPyTorch, match="no such register"):
        near(function(x), x.exp())
    near(function(x + 1), (x + 1).exp())


def test_threads_share_captures() -> None:
    function, _ = recorded()
    inputs = [torch.randn(rows, 8) for rows in range(2, 18)]
    results: list[Any] = [None] * len(inputs)

    def run(i: int) -> None:
        with torch.no_grad():
            for _ in range(10):
                results[i] = function(inputs[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got, x in zip(results, inputs, strict=True):
        near(got, x.exp())


# Modules


@pytest.mark.parametrize(
    ("ours", "theirs", "inputs", "reference"),
    [
        (onn.LayerNorm(24), torch.nn.LayerNorm(24), 1, lambda m, x: m(x)),
        (onn.LayerNorm(24, bias=False), torch.nn.LayerNorm(24, bias=False), 1, lambda m, x: m(x)),
        (onn.LayerNorm((7, 24), elementwise_affine=False), torch.nn.LayerNorm((7, 24), elementwise_affine=False), 1,
         lambda m, x: m(x)),
        (onn.RMSNorm(24, eps=1e-6), torch.nn.RMSNorm(24, eps=1e-6), 1, lambda m, x: m(x)),
        (onn.AddLayerNorm(24), torch.nn.LayerNorm(24), 2, lambda m, x, r: (m(x + r), x + r)),
        (onn.AddRMSNorm(24, eps=1e-6), torch.nn.RMSNorm(24, eps=1e-6), 2, lambda m, x, r: (m(x + r), x + r)),
        (onn.GELUAddLayerNorm(24), torch.nn.LayerNorm(24), 2, lambda m, x, r: m(F.gelu(x) + r)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else "",
)  # fmt: skip
def test_modules_share_state_with_pytorchs(ours: Any, theirs: Any, inputs: int, reference: Any) -> None:
    for parameter in theirs.parameters():
        parameter.copy_(torch.randn_like(parameter))
    ours.load_state_dict(theirs.state_dict())
    given = [torch.randn(X) for _ in range(inputs)]
    result, count = launches(lambda: ours(*given))
    assert count == 1
    near(result, reference(theirs, *given))
    with torch.enable_grad():
        trained = ours(*given)
    if any(True for _ in ours.parameters()):
        assert (trained[0] if isinstance(trained, tuple) else trained).requires_grad


def test_every_module_is_tested() -> None:
    source = inspect.getsource(test_modules_share_state_with_pytorchs)
    assert all(f"onn.{name}(" in source for name in onn.__all__)


# The package


@pytest.mark.parametrize("module", ["onepass.api", "onepass.functional", "onepass.nn"])
def test_examples_in_docstrings(module: str) -> None:
    # In a process of its own: what Dynamo compiled in a doctest's scope outlives the scope.
    script = (
        f"import doctest, importlib, torch; torch.set_grad_enabled(False);"
        f"print(doctest.testmod(importlib.import_module('{module}')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=_env()
    )
    result = done.stdout.strip().splitlines()[-1]
    assert result.startswith("TestResults(failed=0, attempted="), done.stdout + done.stderr
    assert not result.endswith("attempted=0)")


def test_public_docstrings_have_an_example() -> None:
    for module in (OF, onn):
        for name in module.__all__:
            assert doctest.DocTestFinder().find(getattr(module, name))[0].examples, name


def test_importing_onepass_imports_nothing_large() -> None:
    script = (
        "import sys, onepass; before = set(sys.modules); assert 'torch' not in before;"
        "import torch; assert not torch.cuda.is_initialized();"
        "print(sorted(m for m in before if m.startswith('onepass')), onepass.__all__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=_env()
    )
    assert done.stdout.startswith("['onepass'] ")


def test_the_public_names() -> None:
    for name in onepass.__all__:
        assert getattr(onepass, name) is not None
    assert onepass.functional is OF
    with pytest.raises(AttributeError, match="no_such_name"):
        onepass.no_such_name  # noqa: B018


def _env() -> dict[str, str]:
    import os

    return os.environ | {"PYTHONPATH": str(HERE.parents[2] / "src")}
