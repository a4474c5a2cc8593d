"""A bias that a matmul would copy into its result first is added by the kernel that reads the result, and only by one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import onepass
from harness.like_eager import compiled_like_eager
from harness.oracle import Oracle, capture, trace
from harness.together import planned
from onepass import build as pipeline
from onepass.build import Plan, fit
from onepass.ir.cluster import Call
from onepass.plan.bias import hand_over
from onepass.plan.merge import merge

pytestmark = pytest.mark.usefixtures("fresh")


class FeedForward(nn.Module):
    """Both readers of transformers: GELU, and an add with LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(20, 33), nn.Linear(33, 20), nn.LayerNorm(20)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(F.gelu(self.up(x))))


def matmuls(plan: Plan) -> list[str]:
    return [call.target for call in plan.calls if call.bound == "compute"]


def only_plan(f: Callable[..., Any], *inputs: Tensor, **options: Any) -> Plan:
    (compiled,) = compiled_like_eager(f, *inputs, **options).compiled
    return compiled.plan


def without_handing_over() -> Any:
    return mock.patch.object(pipeline, "hand_over", lambda merged, *_: merged)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_reader_adds_the_bias(dynamic: bool) -> None:
    plan = only_plan(FeedForward(), torch.randn(3, 5, 20), dynamic=dynamic)
    assert matmuls(plan) == ["mm.default", "mm.default"]
    assert [k.cluster.origins for k in plan.kernels] == [
        ("bias", "gelu.default"),
        ("bias", "add.Tensor", "native_layer_norm.default"),
    ]


def test_as_exact_as_eager() -> None:
    """In the mean over many values: the largest of them is luck."""
    model, x = FeedForward(), torch.randn(500, 20)
    want = copy.deepcopy(model).double()(x.double())
    found = torch.compile(model, backend="onepass")(x), model(x)
    mine, eagers = ((y.double() - want).square().mean().sqrt() for y in found)
    assert mine <= 1.2 * eagers


def test_eagers_account_is_as_it_was_and_the_kernels_read_the_bias() -> None:
    model, x = FeedForward(), torch.randn(3, 5, 20)
    after = onepass.explain(model, x)
    with without_handing_over():
        before = onepass.explain(model, x)
    biases = 4 * (33 + 20)
    assert after.totals.__dict__ == {
        **before.totals.__dict__,
        "fused_bytes": before.totals.fused_bytes + biases,
    }
    assert [k.eager_bytes for k in after.kernels] == [k.eager_bytes for k in before.kernels]
    assert {row.op for row in before.left} == {"addmm.default"}


def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(b, x, w)


def twice_read(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = linear(x, w, b)
    return F.gelu(y), y @ w


def returned(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = linear(x, w, b)
    return F.gelu(y), y.view(-1)


def attended(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    q = linear(x, w, b).view(1, 1, 6, 6)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True) * 2


def gathered(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The rows that are read are known only at run time."""
    return F.embedding(torch.tensor([1, 0, 1]), linear(x, w, b)) + 1


def scaled(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(torch.addmm(b, x, w, beta=2))


def of_two_dimensions(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(torch.addmm(b.expand(6, 6) * x, x, w))


def one_number(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(torch.addmm(b[:1], x, w))


def overwritten(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = linear(x, w, b)
    b.add_(1)
    return F.gelu(y)


def half(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(linear(x.bfloat16(), w.bfloat16(), b.bfloat16()))


STAY = (twice_read, returned, attended, gathered, scaled, of_two_dimensions, one_number, overwritten, half)


@pytest.mark.parametrize("f", STAY, ids=lambda f: f.__name__)
def test_what_has_another_reader_or_another_form_stays(f: Callable[..., Any]) -> None:
    plan = only_plan(f, torch.randn(6, 6), torch.randn(6, 6), torch.randn(6))
    assert matmuls(plan)[0] == "addmm.default"


def sliced(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Part of the result is read, transposed, twice; the bias lies in every second place."""
    y = torch.addmm(b[::2], x, w[:, :3])
    return torch.softmax(y[1:, 1:].t(), -1) + y[0, 0]


def copied(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The kernel only moves what it reads."""
    return torch.addmm(b, x, w).t().contiguous()


def one_row(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(torch.addmm(b, x[:1], w))


def computed_bias(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(torch.addmm(b.exp(), x, w))


@pytest.mark.parametrize("f", [sliced, copied, one_row, computed_bias], ids=lambda f: f.__name__)
def test_the_bias_is_read_through_the_readers_address(f: Callable[..., Any]) -> None:
    inputs = [torch.randn(6, 6), torch.randn(6, 6), torch.randn(6)]
    assert matmuls(only_plan(f, *inputs)) == ["mm.default"]
    case = planned(trace(f, inputs), inputs)
    items = tuple(getattr(i, "cluster", i) for i in case.plan.items)
    (found,) = Oracle(case.captured, inputs).outputs(replace(case.captured.program, items=items))
    torch.testing.assert_close(found, f(*(x.double() for x in inputs)), rtol=1e-12, atol=1e-12)


def test_a_reader_that_cannot_take_it_leaves_the_call_as_it_was() -> None:
    inputs = [torch.randn(6, 6), torch.randn(6, 6), torch.randn(6)]
    captured = capture(computed_bias, inputs, fit)
    merged = merge(captured.program, {}, fit)
    refused = hand_over(merged, captured.program, lambda cluster: "too large")
    assert refused.items == merged.items
    assert [d.reason for d in refused.decisions[len(merged.decisions) :]] == ["too_large"]
    taken = hand_over(merged, captured.program, fit)
    (call,) = (i for i in taken.items if isinstance(i, Call) and i.bound == "compute")
    assert call.bare
    assert call.addend is not None
    assert call.addend.tensor not in call.reads
    assert [d.reason for d in taken.decisions[len(merged.decisions) :]] == ["bias"]


def test_fuel_counts_what_is_handed_over() -> None:
    targets = [matmuls(only_plan(FeedForward(), torch.randn(4, 20), options={"fuel": n})) for n in (0, 3)]
    assert targets[0] == ["addmm.default", "addmm.default"]
    assert targets[1].count("mm.default") >= 1


def test_two_matmuls_into_one_kernel() -> None:
    def f(x: Tensor, a: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w, a)) * F.linear(x, v, b)

    plan = only_plan(f, *(torch.randn(*s) for s in ((5, 20), (33,), (33, 20), (33,), (33, 20))))
    assert matmuls(plan) == ["mm.default", "mm.default"]
    assert len(plan.kernels) == 1


def test_a_denied_matmul_keeps_its_bias() -> None:
    plan = only_plan(FeedForward(), torch.randn(4, 20), options={"deny": ["addmm"]})
    assert matmuls(plan) == ["addmm.default", "addmm.default"]
