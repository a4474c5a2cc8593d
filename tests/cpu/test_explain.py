"""The report: bytes counted by hand and by watching eager, the schema, and what a reader sees."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import onepass
from onepass.analysis.report import WIDTH, Report
from onepass.capture.backend import Backend
from onepass.capture.measure import kernel_times
from onepass.capture.options import Options
from onepass.cli.target import load
from onepass.plan.decision import REASONS
from onepass.runtime.counters import COUNTERS

ROOT = Path(__file__).parents[2]
KERNEL_KEYS = {
    "name": str,
    "ops": list,
    "rows": int,
    "cols": int,
    "dtypes": list,
    "schedule": str,
    "bytes_read": int,
    "bytes_written": int,
    "eager_bytes": int,
    "flops": int,
    "arithmetic_intensity": float,
    "registers": type(None),
    "spill_bytes": type(None),
    "occupancy": type(None),
    "predicted_us": float,
    "measured_us": type(None),
}
DECISION_KEYS = {"from": str, "to": str, "verdict": str, "reason": str, "bytes_saved": int, "us_saved": float}
TOTALS = [
    "eager_bytes",
    "fused_bytes",
    "eager_kernels",
    "fused_kernels",
    "aten_calls",
    "aten_memory_bound_bytes",
]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def block(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x, approximate="tanh") + residual, x.shape[-1:], weight, bias)


# Bytes


def test_the_example_to_the_byte() -> None:
    target = load(str(ROOT / "examples" / "gelu_add_layer_norm.py") + ":block")
    document = onepass.explain(target.function, *target.inputs).to_dict()
    rows, cols = 8192, 4096
    assert len(document["kernels"]) == 1
    assert document["totals"] == {
        "eager_bytes": 4 * (7 * rows * cols + 2 * cols) + 2 * 4 * rows,
        "fused_bytes": 4 * (3 * rows * cols + 2 * cols),
        "eager_kernels": 3,
        "fused_kernels": 1,
        "aten_calls": 0,
        "aten_memory_bound_bytes": 0,
    }
    (kernel,) = document["kernels"]
    assert (kernel["rows"], kernel["cols"], kernel["dtypes"]) == (rows, cols, ["fp32"])
    assert kernel["eager_bytes"] == document["totals"]["eager_bytes"]
    assert kernel["bytes_read"] == 4 * (2 * rows * cols + 2 * cols)
    assert kernel["bytes_written"] == 4 * rows * cols


@pytest.mark.parametrize("seed", range(20))
def test_random_shapes_and_dtypes_to_the_byte(seed: int) -> None:
    choose = random.Random(seed)
    rows, cols = choose.randint(1, 300), choose.randint(2, 700)
    dtype = choose.choice((torch.float32, torch.bfloat16, torch.float16))
    nbytes = dtype.itemsize
    outer = choose.choice(((rows,), (1, rows), (rows, 3)))
    rows = math.prod(outer)
    inputs = [torch.randn(*outer, cols).to(dtype) for _ in range(2)] + [
        torch.randn(cols).to(dtype) for _ in range(2)
    ]
    document = onepass.explain(block, *inputs).to_dict()
    # PyTorch keeps the statistics of 16-bit rows in fp32 on CUDA and in the input's dtype on the CPU.
    statistics = torch.native_layer_norm(*inputs[:1], (cols,), *inputs[2:], 1e-5)[1].dtype.itemsize
    assert document["totals"]["eager_bytes"] == nbytes * (7 * rows * cols + 2 * cols) + 2 * statistics * rows
    assert document["totals"]["fused_bytes"] == nbytes * (3 * rows * cols + 2 * cols)
    assert len(document["kernels"]) == 1


class Watching(TorchDispatchMode):
    """Counts what each op that eager runs reads and writes, without any of the project's code."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[tuple[str, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        results = [t for t in flatten(result) if t is not None]
        is_view = func.is_view or name in ("_unsafe_view", "detach", "_reshape_alias", "lift_fresh")
        if not is_view and name not in ("addmm", "mm", "bmm") and "scaled_dot_product" not in name:
            inputs = list({id(t): t for t in flatten([*args, *(kwargs or {}).values()])}.values())
            read = [self.nbytes(t) for t in inputs]
            if name in ("embedding", "index_select", "gather"):
                read[0] = self.nbytes(results[0])
            self.moved.append((name, sum(read) + sum(map(self.nbytes, results))))
        return result

    @staticmethod
    def nbytes(tensor: Tensor) -> int:
        """Distinct bytes: expanded dimensions repeat what is there already."""
        sizes = [n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0]
        return math.prod(sizes) * tensor.element_size()


def flatten(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value for t in flatten(v)] if isinstance(value, (list, tuple)) else []


TABLE = torch.randn(50, 24)

FUNCTIONS: dict[str, tuple[Callable[..., Any], Sequence[Tensor]]] = {
    "chain": (lambda x: F.silu(x) * 2 + x, [torch.randn(7, 33)]),
    "expanded": (lambda x, y: x.expand(9, 7, 5) * y, [torch.randn(7, 5), torch.randn(9, 7, 5)]),
    "row vector": (lambda x, w: (x * w).sum(-1), [torch.randn(9, 24), torch.randn(24)]),
    "strided": (lambda x: x.t()[::2].relu() + 1, [torch.randn(8, 12)]),
    "slices": (lambda x: F.silu(x[..., :12]) * x[..., 12:], [torch.randn(6, 24)]),
    "views": (lambda x: (x.view(4, 6, 2).transpose(0, 1), x.exp()), [torch.randn(4, 12)]),
    "embedding": (lambda i: F.embedding(i, TABLE) + 1, [torch.randint(50, (3, 5))]),
    "cast": (lambda x: F.softmax(x.float(), -1).to(x.dtype), [torch.randn(5, 40).bfloat16()]),
    "cat": (lambda x, y: torch.cat((x, y), -1).tanh(), [torch.randn(5, 8), torch.randn(5, 3)]),
    "statistics": (lambda x: F.layer_norm(x, (16,)), [torch.randn(4, 16)]),
    "reshape that copies": (lambda x: x.transpose(0, 1).reshape(-1) * 3, [torch.randn(5, 9)]),
    "same tensor twice": (lambda x: x * x + x, [torch.randn(33)]),
    "matmul": (lambda x: F.gelu(x @ x.t()) + 1, [torch.randn(12, 12)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_eager_bytes_are_what_eager_moves(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    with torch.no_grad(), Watching() as watching:
        function(*inputs)
    totals = onepass.explain(function, *inputs).totals
    assert totals.eager_bytes == sum(nbytes for _, nbytes in watching.moved), watching.moved
    assert totals.eager_kernels == len(watching.moved)


def test_writes_in_place_count_once() -> None:
    def function(x: Tensor) -> Tensor:
        return x.mul_(2)

    assert onepass.explain(function, torch.randn(6, 10)).totals.eager_bytes == 2 * 4 * 60


def test_what_is_left_to_pytorch_counts_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor) -> Tensor:
        return F.gelu(x).logcumsumexp(-1) + 1

    report = onepass.explain(function, torch.randn(10, 20))
    totals, tensor = report.totals, 4 * 200
    assert totals.eager_bytes == 6 * tensor
    assert totals.fused_bytes == 6 * tensor
    assert (totals.aten_calls, totals.aten_memory_bound_bytes) == (1, 2 * tensor)
    assert "logcumsumexp" in report.text
    assert "1 call left to PyTorch" in report.verdict


def test_bytes_of_kernels_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op computed again inside several kernels is counted once on eager's side."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        scale = w.cos() + 1
        return (x * scale) @ x.t(), F.layer_norm(x, (24,)) * scale, x.t() @ (x * scale.sin())

    report = onepass.explain(function, torch.randn(8, 24), torch.randn(24))
    assert sum(kernel.eager_bytes for kernel in report.kernels) <= report.totals.eager_bytes
    assert report.totals.fused_bytes == sum(k.bytes_read + k.bytes_written for k in report.kernels)


def test_symbolic_sizes_count_at_their_values() -> None:
    x = torch.randn(6, 10)
    torch._dynamo.mark_dynamic(x, 0)
    assert onepass.explain(lambda x: x.exp() + 1, x).totals.eager_bytes == 4 * 4 * 60


def test_fuel_changes_the_plan_and_not_eagers_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [torch.randn(64, 96), torch.randn(64, 96), torch.randn(96), torch.randn(96)]
    fused = onepass.explain(block, *inputs).totals
    monkeypatch.setenv("ONEPASS_FUEL", "0")
    assert Options().fuel == 0
    torch._dynamo.reset()
    apart = onepass.explain(block, *inputs).totals
    assert (apart.fused_kernels, fused.fused_kernels) == (3, 1)
    assert apart.eager_bytes == fused.eager_bytes
    assert apart.fused_bytes > fused.fused_bytes


# The document


@pytest.fixture(scope="module")
def report() -> Report:
    torch._dynamo.reset()
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    return onepass.explain(
        torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), torch.randn(2, 9, 32)
    )


def test_schema(report: Report) -> None:
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert set(document) == {"schema", "device", "kernels", "decisions", "totals"}
    assert document["schema"] == "onepass.explain/1"
    assert document["device"] == "cpu"
    for kernel in document["kernels"]:
        assert {key: type(value) for key, value in kernel.items()} == KERNEL_KEYS
        assert kernel["bytes_written"] > 0
        assert kernel["predicted_us"] > 0
    for decision in document["decisions"]:
        assert {key: type(value) for key, value in decision.items()} == DECISION_KEYS
        assert decision["verdict"] in ("fused", "kept")
        assert decision["reason"] in REASONS
    assert list(document["totals"]) == TOTALS
    assert all(type(value) is int for value in document["totals"].values())


def test_each_kernel_has_its_source(report: Report) -> None:
    for kernel in report.kernels:
        assert 'extern "C"' in kernel.source


def test_text_is_for_people(report: Report) -> None:
    lines = report.text.splitlines()
    assert "memory-bound ops" in lines[0]
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) < 60
    headings = [line for line in lines if line and not line.startswith(" ")][2:]
    assert [h.split(" (")[0] for h in headings] == ["Fused", "Not fused", "Left to PyTorch", "Notes"]
    assert "attention" in report.text
    assert "bound by arithmetic" in report.text


def test_equal_layers_are_one_line(report: Report) -> None:
    assert sum("layer_norm" in line for line in report.text.split("Fused")[0].splitlines()) <= 3
    assert "× 3" in report.text


def test_run_measures_each_kernel() -> None:
    inputs = [torch.randn(64, 96), torch.randn(64, 96), torch.randn(96), torch.randn(96)]
    before = COUNTERS.launched
    report = onepass.explain(block, *inputs)
    assert COUNTERS.launched - before == 1
    assert report.kernels[0].measured_us is None
    measured = onepass.explain(block, *inputs, run=True)
    assert measured.kernels[0].measured_us is not None
    assert measured.kernels[0].measured_us > 0
    assert "measured" in measured.text
    assert "measured" not in report.text


def test_several_graphs_are_one_report() -> None:
    def function(x: Tensor) -> Tensor:
        y = F.gelu(x) + 1
        torch._dynamo.graph_break()
        return y * 2 + x

    report = onepass.explain(function, torch.randn(5, 9))
    assert (report.totals.eager_kernels, report.totals.fused_kernels) == (4, 2)


def test_parameters_do_not_stop_it() -> None:
    assert onepass.explain(torch.nn.LayerNorm(16), torch.randn(4, 16)).totals.fused_kernels == 1


def test_nothing_to_fuse() -> None:
    report = onepass.explain(lambda x: x @ x, torch.randn(8, 8))
    assert report.totals.eager_bytes == 0
    assert report.verdict.startswith("Nothing memory-bound")
    json.dumps(report.to_dict(), allow_nan=False)


def test_a_function_that_fails_says_so_itself() -> None:
    with pytest.raises(RuntimeError, match="size"):
        onepass.explain(lambda x: x.view(7), torch.randn(8))


def test_timing_leaves_the_program_as_it_was() -> None:
    backend = Backend()
    compiled, x = torch.compile(F.gelu, backend=backend), torch.randn(4, 9)
    with torch.no_grad():
        compiled(x)
        (program,) = backend.compiled
        before = dict(program.scope)

        def fails() -> None:
            assert program.scope[program.launchers[0]] is not before[program.launchers[0]]
            compiled(x)
            raise KeyError("stopped")

        with pytest.raises(KeyError, match="stopped"):
            kernel_times([program], fails)
    assert program.scope == before


def test_the_same_function_can_be_explained_any_number_of_times() -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), torch.randn(4, 8)
    found = {onepass.explain(model, x).totals.fused_kernels for _ in range(11)}
    assert found == {1}


def test_forgotten_no_grad_is_said() -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), torch.randn(4, 8)
    assert "needs gradients" in onepass.explain(model, x).text
    assert "needs gradients" in onepass.explain(model.forward, x).text
    assert "needs gradients" in onepass.explain(torch.sin, x.requires_grad_()).text
    with torch.no_grad():
        assert "needs gradients" not in onepass.explain(model, x).text


def test_an_op_of_complex_numbers_is_left_and_said() -> None:
    x = torch.randn(4, 16).cfloat()
    report = onepass.explain(lambda x: x.exp(), x)
    assert [row.op for row in report.left] == ["exp.default"]
    assert report.totals.aten_calls == 1 and report.totals.fused_kernels == 0
    with torch.no_grad(), pytest.raises(onepass.errors.CannotFuse, match="complex64"):
        onepass.fuse(lambda x: x.exp())(x)


def test_a_graph_that_stays_is_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_DISABLE", "1")
    report = onepass.explain(torch.sin, torch.randn(4))
    assert report.verdict.startswith("All of it runs in PyTorch: ONEPASS_DISABLE is set")


# The page


def test_a_run_is_kept_as_a_page_with_predicted_beside_measured(tmp_path: Path) -> None:
    inputs = (torch.randn(64, 257), torch.randn(64, 257), torch.ones(257), torch.zeros(257))
    report = onepass.explain(block, *inputs, run=True)
    report.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    (kernel,) = report.kernels
    assert kernel.measured_us is not None
    assert f"{kernel.measured_us:,.1f} µs" in page and f"{kernel.predicted_us:,.1f} µs" in page
    assert kernel.name in page and "report.html" not in page
