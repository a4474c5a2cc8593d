"""Programs and tensors that a back end has to take as they come: each gives what eager gives."""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional as F

import onepass.capture.backend as backend_module
from harness.like_eager import compiled_like_eager, same
from onepass.capture.backend import GRADIENTS, Backend, onepass
from onepass.capture.options import KEYS, MODES
from onepass.errors import BadOption, CompileError, LeftToPyTorch
from onepass.runtime.counters import COUNTERS

pytestmark = pytest.mark.usefixtures("fresh")


def work(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x) * 0.5 + x


X = torch.randn(5, 33)


# Modes and options


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_pytorch_are_taken(mode: str) -> None:
    compiled_like_eager(work, X, mode=mode)


def test_options_change_what_is_done() -> None:
    backend = compiled_like_eager(work, X, options={"deny": ["gelu"], "fuel": 0})
    (plan,) = (compiled.plan for compiled in backend.compiled)
    assert [call.target for call in plan.calls] == ["gelu.default"]
    assert "denied" in plan.calls[0].reason
    assert not any(decision.verdict == "fused" for decision in plan.decisions)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"mode": "fastest"}, MODES),
        ({"options": {"triton.cudagraphs": True}}, tuple(KEYS)),
        ({"options": {"fuel": -1}}, ("whole number",)),
        ({"options": {"deny": "gelu"}}, ("list of names",)),
        ({"options": {"strict": 1}}, ("True or False",)),
    ],
    ids=str,
)
def test_unknown_modes_and_options_are_errors_that_list_the_known(
    given: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        torch.compile(work, backend=onepass, **given)(X)
    assert isinstance(caught.value.inner_exception, BadOption)
    for word in named:
        assert word in str(caught.value)


def test_unknown_options_are_errors_when_not_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_STRICT", "0")
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(work, backend=onepass, options={"no_such_key": 1})(X)


# Failures of ours


def broken(*_: Any, **__: Any) -> Any:
    raise CompileError("gelu_add", "int x = 1;\nint y = x z;", "2:11: expected ';'", "cc", (2,))


@pytest.mark.parametrize("stage", ["set_aside", "normalize", "build", "compile_runner"])
def test_a_failure_leaves_the_graph_to_pytorch_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setenv("ONEPASS_STRICT", "0")
    monkeypatch.setattr(backend_module, stage, broken)
    with pytest.warns(LeftToPyTorch) as warned:
        backend = compiled_like_eager(work, X, kernels=False)
    (warning,) = warned
    for words in ("gelu_add did not compile", "2 | int y = x z;", "expected ';'", "report"):
        assert words in str(warning.message)
    assert backend.left == ["failure: CompileError: gelu_add did not compile"]
    assert not backend.compiled


def test_a_failure_of_one_graph_does_not_touch_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def two_graphs(x: torch.Tensor) -> torch.Tensor:
        y = work(x)
        torch._dynamo.graph_break()
        return y * 2

    real, calls = backend_module.build, []

    def first_fails(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return broken() if len(calls) == 1 else real(*args, **kwargs)

    monkeypatch.setenv("ONEPASS_STRICT", "0")
    monkeypatch.setattr(backend_module, "build", first_fails)
    with pytest.warns(LeftToPyTorch):
        backend = compiled_like_eager(two_graphs, X)
    assert len(backend.left) == len(backend.compiled) == 1


def test_a_failure_raises_when_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "build", broken)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="gelu_add did not compile"):
        torch.compile(work, backend=onepass)(X)


def test_disabled_runs_as_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_DISABLE", "1")
    assert compiled_like_eager(work, X, kernels=False).left == ["ONEPASS_DISABLE is set"]


# Gradients


def test_gradients_run_in_pytorch_and_are_right() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(33, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    backend = Backend()
    compiled = torch.compile(layer, backend=backend)
    with torch.enable_grad():
        expected = torch.autograd.grad(layer(X).square().sum(), list(layer.parameters()))
        got = torch.autograd.grad(compiled(X).square().sum(), list(layer.parameters()))
    same(got, expected)
    assert backend.left == [GRADIENTS]
    assert not backend.compiled


def test_a_gradient_asked_for_inside_runs_in_pytorch() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return F.gelu(x * w)

    w = torch.randn(33, requires_grad=True)
    backend = Backend()
    out = torch.compile(f, backend=backend)(X, w)
    with torch.enable_grad():
        same(torch.autograd.grad(out.sum(), w), torch.autograd.grad(f(X, w).sum(), w))
    assert backend.left == [GRADIENTS]


def test_parameters_that_nothing_differentiates_do_not_stop_compiling() -> None:
    layer = torch.nn.LayerNorm(33)

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return layer(work(x))

    with torch.enable_grad():
        assert not compiled_like_eager(f, X).left


def test_a_view_of_a_parameter_needs_no_gradient_by_itself() -> None:
    token = torch.nn.Parameter(torch.randn(1, 33))
    assert not compiled_like_eager(lambda x: work(x + token.expand(5, 33)), X).left


def test_the_same_function_with_and_without_gradients() -> None:
    layer = torch.nn.LayerNorm(33)
    compiled = torch.compile(layer, backend=Backend())
    for _ in range(2):
        same(compiled(X), layer(X))
        with torch.enable_grad():
            same(compiled(X), layer(X))


# Modes of execution


def test_inference_mode() -> None:
    with torch.inference_mode():
        compiled_like_eager(work, X.clone())
        compiled_like_eager(lambda x: (x.add_(1), work(x)), X.clone())


def test_autocast_outside_and_inside() -> None:
    linear = torch.nn.Linear(33, 16)

    def inside(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.layer_norm(work(linear(x)), (16,))

    compiled_like_eager(inside, X)
    with torch.autocast("cpu", torch.bfloat16):
        compiled_like_eager(lambda x: F.layer_norm(work(linear(x)), (16,)), X)


def test_autocast_changes_between_calls() -> None:
    linear = torch.nn.Linear(33, 16)
    compiled = torch.compile(lambda x: work(linear(x)), backend=Backend())
    for enabled in (False, True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            assert compiled(X).dtype is (torch.bfloat16 if enabled else torch.float32)


def test_autocast_with_attention_of_mixed_dtypes() -> None:
    def attend(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q * 1.5, q, v) + 1

    q = torch.randn(2, 3, 8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        compiled_like_eager(attend, q, torch.randn(2, 3, 8, 16).bfloat16())


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_default_dtype(default: torch.dtype) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return work(x), torch.full((33,), 0.5) + 1, x.new_ones(3) * 2

    torch.set_default_dtype(default)
    try:
        compiled_like_eager(f, X)
    finally:
        torch.set_default_dtype(torch.float32)


# Programs


def test_graph_breaks() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = work(x)
        torch._dynamo.graph_break()
        return y.sum(dim=-1) + 1

    assert len(compiled_like_eager(f, X).compiled) == 2


def test_branches_on_values() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = work(x)
        return y + 1 if y.sum() > 0 else y - 1

    compiled_like_eager(f, X.abs())
    compiled_like_eager(f, -X.abs())


@pytest.mark.parametrize("capture", [False, True])
def test_data_dependent_shapes(capture: bool) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = work(x)
        kept = y[y > 0]
        return kept * 2 + 1, torch.nonzero(y > 1), F.softmax(y, -1)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=capture):
        compiled_like_eager(f, X)


def test_values_taken_out_of_tensors() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return work(x) * n.item()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled_like_eager(f, X, torch.tensor(3.0))


@pytest.mark.parametrize("dynamic", [None, True])
def test_another_row_count_and_back(dynamic: bool | None) -> None:
    backend = Backend()
    compiled = torch.compile(work, backend=backend, dynamic=dynamic)
    counts = []
    for rows in (5, 7, 64, 3, 5, 1, 0):
        x = torch.randn(rows, 33)
        same(compiled(x), work(x))
        counts.append((len(backend.compiled), COUNTERS.compiled))
    assert counts[2] == counts[4]
    assert counts[4][1] == counts[1][1]


def test_sizes_as_numbers() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return work(x) * x.shape[0] + x.size(1) / 7

    for rows in (5, 6, 9):
        compiled_like_eager(f, torch.randn(rows, 33), dynamic=True)


def test_random_numbers_follow_the_seed() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return work(x) + torch.rand_like(x), F.dropout(x, 0.5), torch.randn(3)

    compiled = torch.compile(f, backend=Backend())
    torch.manual_seed(7)
    expected = [f(X), f(X)]
    torch.manual_seed(7)
    same([compiled(X), compiled(X)], expected)


# Aliases and writes


def test_an_input_is_written_to() -> None:
    compiled_like_eager(lambda x, y: (x.mul_(2), work(y)), X, X + 1)
    compiled_like_eager(lambda x, y: work(x.add_(y)), X, X + 1)
    compiled_like_eager(lambda x, y: x[1:3].copy_(work(y)[1:3]).sum(), X, X + 1)
    compiled_like_eager(lambda x, y: x.t().exp_().t() + y, X, X + 1)


def test_an_input_is_read_before_and_after_it_is_written() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = work(x)
        x.add_(y)
        return before, work(x)

    compiled_like_eager(f, X, X + 1)


def test_the_same_tensor_twice() -> None:
    compiled_like_eager(lambda x, y: work(x) + y, X, X)
    compiled_like_eager(lambda x, y: (x.add_(1), work(y)), X, X)


def test_inputs_that_overlap() -> None:
    base = torch.randn(10, 33)

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return work(y) + x

    compiled = torch.compile(f, backend=Backend())
    ours, theirs = base.clone(), base.clone()
    same(compiled(ours[:6], ours[4:]), f(theirs[:6], theirs[4:]))
    same(ours, theirs)


def test_views_are_returned() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = work(x)
        return y, y.t(), y[1:, ::2], x.view(-1), x[0], x

    compiled = torch.compile(f, backend=Backend())
    x = X.clone()
    got = compiled(x)
    same(got, f(x))
    assert got[5] is x
    assert got[3].data_ptr() == x.data_ptr()
    assert got[1].data_ptr() == got[0].data_ptr()
    got[0][0, 0] = 7.0
    assert got[1][0, 0] == got[2].new_tensor(7.0)


def test_one_result_twice() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = work(x)
        return y, y, y.detach()

    compiled_like_eager(f, X)


def test_results_are_not_reused_memory() -> None:
    compiled = torch.compile(work, backend=Backend())
    first = compiled(X)
    kept = first.clone()
    compiled(X + 1)
    same(first, kept)


def test_no_tensor_comes_back_and_none_goes_in() -> None:
    compiled_like_eager(lambda x: (x.shape[0], None, "text"), X, kernels=False)
    compiled_like_eager(lambda: torch.arange(6.0).sin() + 1, kernels=True)
    compiled_like_eager(lambda n: torch.ones(3) * n, 4, kernels=True)


def test_nested_arguments() -> None:
    def f(named: dict[str, torch.Tensor], more: list[torch.Tensor], *, scale: float = 1.0) -> dict[str, Any]:
        return {"out": work(named["x"]) * scale, "more": [m + 1 for m in more]}

    compiled = torch.compile(f, backend=Backend())
    got, expected = (g({"x": X}, [X, X + 1], scale=0.5) for g in (compiled, f))
    same(got["out"], expected["out"])
    same(got["more"], expected["more"])


# Tensors


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_dtypes_without_kernels(dtype: torch.dtype) -> None:
    x = torch.randn(5, 33, dtype=dtype)
    compiled_like_eager(lambda x: x * 0.5 + x.exp(), x, kernels=False)
    compiled_like_eager(lambda x, y: (x * 2, work(y)), x, X)


INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool, torch.uint16, torch.uint32])
def test_integers_wrap_and_divide_as_in_eager(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 2, 3, 100, 127], [0, 1, 1, 7, 120, 126]]).to(dtype)

    def arithmetic(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + x, x * 3, x / 2, x == 1, x > 2, x.float().sin()

    if dtype in (torch.uint16, torch.uint32):

        def arithmetic(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.float() + 1, x.view(-1), x.float().sin()

    backend = Backend()
    compiled = torch.compile(arithmetic, backend=backend)
    same(compiled(x), arithmetic(x))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_reductions_and_indices(dtype: torch.dtype) -> None:
    table = torch.randn(9, 4)

    def f(i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return i.sum(), i.sum(-1), i.amax(-1), i.float().mean(-1), i.clamp(1, 4), table[i.long()] + 1

    x = torch.randint(0, 9, (3, 7)).to(dtype)
    same(torch.compile(f, backend=Backend())(x), f(x))


def test_an_index_out_of_range_is_an_error_as_in_eager() -> None:
    table = torch.randn(9, 4)
    compiled = torch.compile(lambda i: F.embedding(i, table) + 1, backend=Backend())
    compiled(torch.tensor([0, 8]))
    with pytest.raises(IndexError):
        compiled(torch.tensor([0, 9]))


def test_sparse_tensors() -> None:
    sparse = torch.eye(33).to_sparse()
    compiled_like_eager(lambda s, x: torch.sparse.mm(s, x.t()).t() + work(x), sparse, X)


def test_quantised_tensors() -> None:
    quantised = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)
    compiled_like_eager(lambda q, x: q.dequantize() + work(x), quantised, X)


class Named(torch.Tensor):
    """A subclass that changes nothing but its own type."""


class Doubling(torch.Tensor):
    """A subclass that acts on every function: additions are done twice."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return (
            super().__torch_function__(func, types, (result, *args[1:]), kwargs or {})
            if (func is torch.Tensor.add)
            else result
        )


@pytest.mark.parametrize("kind", [Named, Doubling])
def test_tensor_subclasses(kind: type[torch.Tensor]) -> None:
    compiled = torch.compile(lambda x, y: work(x).add(y) + y, backend=Backend())
    x = X.as_subclass(kind)
    got, expected = compiled(x, X + 1), work(x).add(X + 1) + (X + 1)
    assert type(got) is type(expected)
    same(got.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))


def test_subclasses_that_wrap_others() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    compiled = torch.compile(work, backend=Backend())
    pair = TwoTensor(X, X + 1)
    got, expected = compiled(pair), work(pair)
    same(got.a, expected.a)
    same(got.b, expected.b)


def test_nested_tensors() -> None:
    nested = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], layout=torch.jagged)
    compiled = torch.compile(lambda n: F.gelu(n) + 1, backend=Backend())
    for got, expected in zip(compiled(nested).unbind(), (F.gelu(nested) + 1).unbind(), strict=True):
        same(got, expected)


def test_meta_tensors() -> None:
    got = torch.compile(work, backend=Backend())(torch.randn(5, 33, device="meta"))
    assert got.device.type == "meta"
    assert got.shape == X.shape


def test_conjugate_and_negative_views() -> None:
    x = torch.randn(5, 33, dtype=torch.complex64)
    compiled_like_eager(lambda x: x.conj().imag + 1, x)


def test_channels_last() -> None:
    image = torch.randn(2, 8, 5, 7).to(memory_format=torch.channels_last)
    compiled_like_eager(lambda x: F.relu(x) + 1, image)


# Processes and threads


def test_two_threads_compile_and_run() -> None:
    layers = [torch.nn.LayerNorm(33) for _ in range(4)]
    compiled = [torch.compile(lambda x, layer=layer: layer(work(x)), backend=Backend()) for layer in layers]
    failures: list[BaseException] = []

    def run(i: int) -> None:
        try:
            with torch.no_grad():
                for rows in (3, 4, 5):
                    x = torch.randn(rows, 33)
                    same(compiled[i](x), layers[i](work(x)))
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_one_compiled_function_in_two_threads() -> None:
    compiled = torch.compile(work, backend=Backend())
    inputs = [torch.randn(50, 33) for _ in range(8)]
    compiled(inputs[0])
    results: list[Any] = [None] * 8

    def run(i: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                results[i] = compiled(inputs[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(results, [work(x) for x in inputs])


def _in_child(queue: Any) -> None:
    torch.set_num_threads(1)  # as in every worker of a DataLoader: OpenMP's threads do not survive a fork
    with torch.no_grad():
        x = torch.randn(5, 33)
        compiled = torch.compile(lambda x: F.silu(x) * 2, backend=onepass)
        queue.put((compiled(x) - F.silu(x) * 2).abs().max().item())


@pytest.mark.parametrize("before", ["import", "compile"])
def test_fork(before: str) -> None:
    if before == "compile":
        torch.compile(work, backend=onepass)(X)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a process that has threads
        child = context.Process(target=_in_child, args=(queue,))
        child.start()
    difference = queue.get(timeout=120)
    child.join()
    assert difference < 1e-6


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("ONEPASS_STRICT", "0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.warns(LeftToPyTorch, match="no C\\+\\+ compiler found; looked for") as warned:
        compiled_like_eager(lambda x: F.silu(x) * 0.123 + x, X, kernels=False)
    assert "apt-get install g++" in str(warned[0].message)
    assert "fault of onepass" not in str(warned[0].message)


def test_a_failure_of_ours_asks_for_a_report() -> None:
    assert "please report" in str(LeftToPyTorch.after("a graph", ValueError("no such node")))


@pytest.mark.parametrize("gradients", [True, False])
def test_tangents_of_forward_mode_pass_through(gradients: bool) -> None:
    compiled = torch.compile(lambda x: torch.nn.functional.gelu(x) * 2, backend=Backend())
    x = torch.randn(5, 8)
    compiled(x)  # built before any level began
    with forward_ad.dual_level(), torch.set_grad_enabled(gradients):
        dual = forward_ad.make_dual(x, torch.randn(5, 8))
        found, exact = (
            forward_ad.unpack_dual(f(dual)).tangent
            for f in (compiled, lambda x: torch.nn.functional.gelu(x) * 2)
        )
        torch.testing.assert_close(found, exact)
