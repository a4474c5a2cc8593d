"""Attention set aside: the opaque operator, the rewriting of graphs, and real models, against eager.

Sizes are small and odd, two of each, so that a layout that fits one by chance fails the other. A graph whose
attention runs the same kernel on the same operands must agree bitwise; where another kernel or another order
is used, the bound is 64 fp32 roundings of values of order one: sums of at most 64 products, each rounded.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.models import MODELS, first, randomised, tokens
from onepass.capture.attention import SetAside, set_aside
from onepass.capture.attention_op import attention_op

ROUNDING = 64 * torch.finfo(torch.float32).eps


@dataclass
class Captured:
    """A function compiled with attention set aside, and what was seen on the way."""

    run: Callable[..., Any]
    outcomes: list[list[SetAside]] = field(default_factory=list)
    graphs: list[torch.fx.Graph] = field(default_factory=list)

    @property
    def masks(self) -> list[str]:
        return [outcome.mask for outcome in self.outcomes[-1]]

    @property
    def calls(self) -> Counter[str]:
        return Counter(str(node.target) for node in self.graphs[-1].nodes if node.op == "call_function")


def captured(function: Callable[..., Any], *, dynamic: bool | None = None, opaque: bool = True) -> Captured:
    from functorch.compile import make_boxed_func
    from torch._functorch.aot_autograd import aot_module_simplified

    def compiler(gm: torch.fx.GraphModule, _: Any) -> Any:
        result.graphs.append(gm.graph)
        return make_boxed_func(gm.forward)

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        result.outcomes.append(set_aside(gm, opaque=opaque))
        return aot_module_simplified(gm, inputs, fw_compiler=compiler, inference_compiler=compiler)

    torch._dynamo.reset()
    result = Captured(torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True))
    return result


def heads(batch: int, count: int, length: int, dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A random (batch, count, length, dim) as models make it: (batch, length, count, dim) transposed."""
    return torch.randn(batch, length, count, dim, dtype=dtype).transpose(1, 2)


def same(actual: Tensor, expected: Tensor, tolerance: float = 0.0) -> bool:
    """Equal in dtype, shape and NaN pattern, elsewhere within a tolerance relative to the largest value."""
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return False
    if not torch.equal(actual.isnan(), expected.isnan()):
        return False
    finite = expected.nan_to_num(0.0).double()
    scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    return bool(((actual.nan_to_num(0.0).double() - finite).abs() <= tolerance * scale).all())


@pytest.fixture(autouse=True)
def _inference() -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch._dynamo.reset()


SHAPES = [(2, 4, 7, 16), (1, 1, 1, 8), (3, 2, 1, 16), (0, 2, 5, 8), (2, 1, 5, 24)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("heads_inner", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operator_has_the_strides_it_is_traced_with(
    shape: tuple[int, ...], heads_inner: bool, dtype: torch.dtype
) -> None:
    query, key, value = (heads(*shape, dtype=dtype) for _ in range(3))
    arguments = (None, True, None, False, heads_inner)
    real = attention_op()(query, key, value, *arguments)
    fake = attention_op()(*(tensor.to("meta") for tensor in (query, key, value)), *arguments)
    assert real.stride() == fake.stride()
    assert real.shape == fake.shape
    assert same(real, F.scaled_dot_product_attention(query, key, value, is_causal=True))


@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (2, 2, 3, 5, 8)])
def test_operator_of_other_ranks(shape: tuple[int, ...]) -> None:
    query, key, value = (torch.randn(shape) for _ in range(3))
    arguments = (None, False, 0.3, False, False)
    real = attention_op()(query, key, value, *arguments)
    fake = attention_op()(*(tensor.to("meta") for tensor in (query, key, value)), *arguments)
    assert real.stride() == fake.stride()
    assert same(real, F.scaled_dot_product_attention(query, key, value, scale=0.3), ROUNDING)


def test_operator_passes_the_checks_of_pytorch() -> None:
    query, key, value = (heads(2, 2, 5, 8).requires_grad_() for _ in range(3))
    mask = torch.randn(2, 1, 5, 5).requires_grad_()
    for arguments in [(None, True, None, False, True), (mask, False, 0.5, False, False)]:
        torch.library.opcheck(attention_op(), (query, key, value, *arguments))


@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_equal_those_of_pytorch(groups: int) -> None:
    tensors = [
        heads(2, 4, 5, 8),
        heads(2, 4 // groups, 5, 8),
        heads(2, 4 // groups, 5, 8),
        torch.randn(2, 1, 5, 5),
    ]
    weight = torch.randn(2, 4, 5, 8)
    found = []
    with torch.enable_grad():
        for attend in (
            lambda q, k, v, m: attention_op()(q, k, v, m, False, None, groups > 1, True),
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=groups > 1),
        ):
            leaves = [tensor.clone().requires_grad_() for tensor in tensors]
            found.append(torch.autograd.grad((attend(*leaves) * weight).sum(), leaves))
    for mine, theirs in zip(*found, strict=True):
        assert same(mine, theirs, ROUNDING)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_acts_as_on_pytorchs_attention(dtype: torch.dtype) -> None:
    query, key, value = heads(2, 2, 5, 8), heads(2, 2, 5, 8, dtype), heads(2, 2, 5, 8, dtype)

    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return F.scaled_dot_product_attention(query, key, value)

    got = captured(function)
    assert same(got.run(query, key, value), function(query, key, value))
    assert got.calls["onepass.attention.default"] == 1


def test_grouped_heads_that_only_the_math_fallback_takes_are_repeated() -> None:
    # On the CPU a value as wide as no fused kernel takes forces the fallback.
    query, key, value = heads(2, 4, 5, 8), heads(2, 2, 5, 8), heads(2, 2, 5, 24)
    real = attention_op()(query, key, value, None, True, None, True, True)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    assert real.shape == (2, 4, 5, 24)
    assert same(real, expected, ROUNDING)


def test_every_way_to_write_the_arguments() -> None:
    ways: list[Callable[..., Tensor]] = [
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v),
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, None, 0.0, True),
        lambda q, k, v, m: F.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=m, scale=0.7),
        lambda q, k, v, m: torch._C._nn.scaled_dot_product_attention(
            q, k, value=v, is_causal=True, dropout_p=0.0
        ),
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
    ]
    for way in ways:
        got = captured(way)
        operands = [heads(2, 4, 6, 8) for _ in range(3)] + [torch.rand(2, 1, 6, 6) > 0.3]
        result = got.run(*operands)
        assert same(result, way(*operands))
        assert result.stride() == way(*operands).stride()
        assert got.outcomes[-1][0].set_aside
        assert not any("softmax" in call for call in got.calls)


def test_what_is_left_alone_says_why() -> None:
    query, key, value = (heads(2, 2, 5, 8) for _ in range(3))
    got = captured(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5))
    got.run(query, key, value)
    assert not got.outcomes[-1][0].set_aside
    assert "dropout" in got.outcomes[-1][0].reason

    got = captured(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), opaque=False)
    got.run(query, key, value)
    assert not got.outcomes[-1][0].set_aside
    assert "onepass.attention.default" not in got.calls


def test_gradients_flow_through_attention_left_to_pytorch() -> None:
    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        index = torch.arange(query.shape[2])
        mask = (index[:, None] >= 0).expand(query.shape[0], 1, query.shape[2], key.shape[2])
        return F.scaled_dot_product_attention(query, key, value, mask)

    tensors = [heads(2, 2, 5, 8) for _ in range(3)]
    with torch.enable_grad():
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        expected = torch.autograd.grad(function(*leaves).square().sum(), leaves)
        got = captured(function, opaque=False)
        found = torch.autograd.grad(got.run(*leaves).square().sum(), leaves)
    assert got.masks == ["proven all true"]
    assert all(same(mine, theirs, ROUNDING) for mine, theirs in zip(found, expected, strict=True))


def test_a_reader_of_the_layout_keeps_the_traced_one() -> None:
    # Unequal head sizes go to the math fallback, whose result is dense with the heads outside; .view relies
    # on that.
    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(query, key, value)
        return mixed.view(-1, mixed.shape[-1]) * 2

    operands = heads(2, 4, 6, 8), heads(2, 4, 6, 8), heads(2, 4, 6, 24)
    assert same(captured(function).run(*operands), function(*operands), ROUNDING)


def test_operands_are_not_copied_only_to_be_dense() -> None:
    def function(packed: Tensor, then: Callable[[Tensor], Tensor]) -> Tensor:
        query, key, value = (
            part.transpose(1, 2).contiguous() for part in packed.unflatten(-1, (3, 4, 8)).unbind(2)
        )
        return then(F.scaled_dot_product_attention(query, key, value))

    packed, weight = torch.randn(2, 7, 96), torch.randn(5, 32)

    def project(mixed: Tensor) -> Tensor:
        return F.linear(mixed.transpose(1, 2).reshape(2, 7, 32), weight)

    def read_densely(mixed: Tensor) -> Tensor:
        return mixed.view(2, -1) * 2

    for then, copies in ((project, 0), (read_densely, 3)):
        got = captured(function)
        assert same(got.run(packed, then), function(packed, then), ROUNDING)
        assert got.calls["aten.clone.default"] == copies


def expanded(tensor: Tensor) -> Tensor:
    batch, count, length, dim = tensor.shape
    return tensor[:, :, None].expand(batch, count, 3, length, dim).reshape(batch, count * 3, length, dim)


def interleaved(tensor: Tensor) -> Tensor:
    return tensor.repeat_interleave(3, dim=1)


@pytest.mark.parametrize("repeat", [expanded, interleaved])
def test_repeated_heads_become_groups_when_no_mask_stays(repeat: Callable[[Tensor], Tensor]) -> None:
    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        index = torch.arange(query.shape[2])
        mask = (index[None, :] <= index[:, None])[None, None]
        return F.scaled_dot_product_attention(query, repeat(key), repeat(value), mask)

    def other(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key = key.repeat(1, 3, 1, 1)  # another order of heads: not grouped attention
        return F.scaled_dot_product_attention(query, key, repeat(value), is_causal=True)

    operands = heads(2, 6, 5, 8), heads(2, 2, 5, 8), heads(2, 2, 5, 8)
    got = captured(function)
    assert same(got.run(*operands), function(*operands), ROUNDING)
    assert not {"aten.expand.default", "aten.clone.default", "aten.index_select.default"} & set(got.calls)
    assert same(captured(other).run(*operands), other(*operands), ROUNDING)


def test_padding_is_read_without_being_spread_over_the_queries() -> None:
    def function(query: Tensor, key: Tensor, value: Tensor, padding: Tensor) -> Tensor:
        batch, _, length, _ = query.shape
        rows, columns = torch.arange(batch), torch.arange(length)
        kept = padding.to(torch.bool)[rows[:, None, None, None], columns[None, None, None, :]]
        mask = (columns[None, None, :, None] >= 0) & kept
        return F.scaled_dot_product_attention(query, key, value, mask.expand(batch, -1, length, length))

    got = captured(function, dynamic=True)
    for batch, length in ((3, 6), (5, 11)):
        operands = *(heads(batch, 2, length, 8) for _ in range(3)), torch.randint(0, 2, (batch, length))
        assert same(got.run(*operands), function(*operands))
    assert got.masks == ["lightened"]
    assert len(got.graphs) == 1
    assert not {
        "aten.arange.start_step",
        "aten.arange.default",
        "aten.index.Tensor",
        "aten.bitwise_and.Tensor",
    } & set(got.calls)


def spread(condition: Tensor, query: Tensor) -> Tensor:
    """A condition of queries x keys, repeated for each sample of the batch."""
    return condition[None, None].expand(query.shape[0], -1, -1, -1)


def lower(query: Tensor) -> Tensor:
    index = torch.arange(query.shape[-2])
    return index[:, None] >= index[None, :]


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_is_not_spread_over_the_batch_by_its_mask(copied: bool, opaque: bool, causal: bool) -> None:
    def function(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        kept = lower(query) if causal else torch.arange(query.shape[2])[:, None] >= 0 * lower(query)
        bias = bias.permute(2, 0, 1)[None]  # as positions are looked up: heads are innermost in memory
        mask = torch.where(spread(kept, query), bias, -1e30)
        return F.scaled_dot_product_attention(query, key, value, mask.contiguous() if copied else mask)

    got = captured(function, dynamic=True, opaque=opaque)
    for batch, length in ((3, 6), (5, 11)):
        operands = *(heads(batch, 2, length, 8) for _ in range(3)), torch.randn(length, length, 2)
        assert same(got.run(*operands), function(*operands), ROUNDING)
    assert len(got.graphs) == 1
    mask = attended(got)
    assert (mask.shape[0], mask.stride(-1)) == (1, 1)


def attended(got: Captured) -> Tensor:
    """The mask that the graph's only attention reads, set aside or opened by AOT."""
    (call,) = (n for n in got.graphs[-1].nodes if n.op == "call_function" and "attention" in str(n.target))
    node: Any = call.kwargs["attn_mask"] if "attn_mask" in call.kwargs else call.args[3]
    mask: Tensor = node.meta["val"]
    return mask


Masked = Callable[[Tensor, Tensor], Tensor]  # of a query and a bias of heads x queries x keys


def written_afterwards(query: Tensor, bias: Tensor) -> Tensor:
    bias = bias.clone()
    mask = torch.where(spread(lower(query), query), bias, -1e30)
    bias.mul_(0)
    return mask


def its_copy_written_afterwards(query: Tensor, bias: Tensor) -> Tensor:
    bias = bias.clone()
    mask = torch.where(spread(lower(query), query), bias, -1e30).contiguous()
    bias.mul_(0)
    return mask


def what_is_shut_out_written_afterwards(query: Tensor, bias: Tensor) -> Tensor:
    shut_out = torch.full((), -1e30)
    mask = torch.where(spread(lower(query), query), bias, shut_out)
    shut_out.fill_(1.0)
    return mask


def a_choice_by_the_method(query: Tensor, bias: Tensor) -> Tensor:
    return spread(lower(query), query).where(bias > 0.3, bias < 0.1)


def all_true_where_causal(query: Tensor, bias: Tensor) -> Tensor:
    index = torch.arange(query.shape[-2])
    return (index[:, None] >= 0 * index).where(lower(query), index[:, None] + 2 >= index)


def inverted(query: Tensor, bias: Tensor) -> Tensor:
    return torch.where(spread(~lower(query), query), -1e30, bias)


def of_three_dimensions(query: Tensor, bias: Tensor) -> Tensor:
    return bias.expand(query.shape[0], -1, -1, -1)


def nan_where_nothing_is_taken(query: Tensor, bias: Tensor) -> Tensor:
    return torch.where(spread(lower(query), query), bias, -1e30).where(lower(query), float("-inf"))


def everywhere(query: Tensor) -> Tensor:
    index = torch.arange(query.shape[-2])
    return index[:, None] >= 0 * index[None, :]


def written_in_a_list(query: Tensor, bias: Tensor) -> Tensor:
    bias = bias.clone()
    mask = torch.where(everywhere(query), bias[None], 0.0)
    torch._foreach_zero_([bias])
    return mask


def written_past_its_counter(query: Tensor, bias: Tensor) -> Tensor:
    bias = bias.clone()
    mask = torch.where(everywhere(query), bias[None], 0.0)
    bias.data.zero_()
    return mask


def filled_in_a_list(query: Tensor, bias: Tensor) -> Tensor:
    outside = torch.zeros(())
    torch._foreach_add_([outside], 5.0)
    return torch.where(lower(query), outside, 0.0)


def written_into_a_buffer(query: Tensor, bias: Tensor) -> Tensor:
    buffer = torch.empty(query.shape[0], 2, query.shape[2], query.shape[2])
    chosen = torch.where(spread(lower(query), query), bias, torch.ones(()), out=buffer)
    return torch.where(everywhere(query), bias[None], chosen) + buffer


@torch.library.custom_op("onepass_tests::where", mutates_args=())
def where(condition: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    return torch.where(condition, other, 3 * chosen)


@where.register_fake
def _(condition: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    return torch.empty_like(chosen)


def a_choice_of_another_kind(query: Tensor, bias: Tensor) -> Tensor:
    chosen: Tensor = torch.ops.onepass_tests.where(everywhere(query), bias[None], -bias[None])
    return chosen


MASKS: tuple[Masked, ...] = (
    written_in_a_list,
    written_past_its_counter,
    filled_in_a_list,
    written_into_a_buffer,
    a_choice_of_another_kind,
    written_afterwards,
    its_copy_written_afterwards,
    what_is_shut_out_written_afterwards,
    a_choice_by_the_method,
    all_true_where_causal,
    inverted,
    of_three_dimensions,
    nan_where_nothing_is_taken,
)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.__name__)
def test_a_mended_mask_is_the_mask(mask: Masked, dynamic: bool) -> None:
    def function(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, mask(query, bias))

    got = captured(function, dynamic=dynamic)
    operands = *(heads(3, 2, 6, 8) for _ in range(3)), torch.randn(2, 6, 6)
    assert same(got.run(*operands), function(*operands), ROUNDING)


def test_inputs_on_the_same_storage_are_written_through_each_other() -> None:
    def function(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, alias: Tensor) -> Tensor:
        mask = torch.where(everywhere(query), bias[None], 0.0)
        alias.zero_()
        return F.scaled_dot_product_attention(query, key, value, mask)

    tensors, results = [heads(3, 2, 6, 8) for _ in range(3)], []
    start = torch.randn(2, 6, 6)
    for run in (function, captured(function).run):
        bias = start.clone()
        alias = torch.empty(0).set_(bias.untyped_storage(), 0, bias.shape)
        results.append(run(*tensors, bias, alias))
    assert same(results[1], results[0], ROUNDING)


def test_a_dense_copy_is_not_shared_with_attention_after_a_write() -> None:
    def function(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        bias = bias.clone()
        mask = bias.mT[None]
        first = F.scaled_dot_product_attention(query, key, value, mask)
        torch._foreach_mul_([bias], 0.0)
        return F.scaled_dot_product_attention(first, key, value, mask)

    operands = *(heads(3, 2, 6, 8) for _ in range(3)), torch.randn(2, 6, 6)
    assert same(captured(function).run(*operands), function(*operands), ROUNDING)


def test_a_mask_keeps_the_dimensions_that_fused_attention_takes() -> None:
    def function(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, of_three_dimensions(query, bias))

    got = captured(function)
    got.run(*(heads(3, 2, 6, 8) for _ in range(3)), torch.randn(2, 6, 6))
    assert attended(got).dim() == 4


def test_a_gather_that_permutes_is_no_view() -> None:
    def function(query: Tensor, key: Tensor, value: Tensor, padding: Tensor) -> Tensor:
        rows, columns = torch.arange(query.shape[0]), torch.arange(query.shape[2])
        kept = padding[rows[:, None, None, None], (4 - columns)[None, None, None, :]]
        return F.scaled_dot_product_attention(query, key, value, kept)

    operands = *(heads(2, 2, 5, 8) for _ in range(3)), torch.tensor([[True, False, True, True, False]] * 2)
    assert same(captured(function).run(*operands), function(*operands))


def test_a_mask_written_to_is_read_when_attention_reads_it() -> None:
    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = torch.ones(5, 5, dtype=torch.bool)
        first = F.scaled_dot_product_attention(query, key, value, mask)
        mask.view(-1)[7:] = False
        mask[:, 0] = True
        return first + F.scaled_dot_product_attention(query, key, value, mask)

    operands = [heads(2, 2, 5, 8) for _ in range(3)]
    got = captured(function)
    assert same(got.run(*operands), function(*operands), ROUNDING)
    assert got.masks == ["kept", "kept"]


def test_a_mask_of_stride_zero_is_written_out_once_and_no_further_than_needed() -> None:
    def function(query: Tensor, key: Tensor, value: Tensor, rows: Tensor) -> Tensor:
        batch, _, length, _ = query.shape
        mask = rows[None, None, :, None].expand(batch, 1, length, length)
        first = F.scaled_dot_product_attention(query, key, value, mask)
        return F.scaled_dot_product_attention(first, key, value, mask)

    got = captured(function, dynamic=True)
    for batch, length in ((3, 6), (5, 11)):
        rows = torch.randint(0, 2, (length,)).bool()
        operands = *(heads(batch, 2, length, 8) for _ in range(3)), rows
        assert same(got.run(*operands), function(*operands), ROUNDING)
    assert got.masks == ["made dense", "made dense"]
    copies = [node for node in got.graphs[-1].nodes if "clone" in str(node.target)]
    assert len(copies) == 1
    assert copies[0].meta["val"].shape[0] == 1
    mask = next(node for node in got.graphs[-1].nodes if "onepass" in str(node.target)).args[3]
    assert mask.meta["val"].stride(-1) == 1


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("masked", ["no", "positions", "keys", "both", "no key left"])
def test_encoder_layer_is_opened(norm_first: bool, activation: str, masked: str) -> None:
    layer = nn.TransformerEncoderLayer(
        32, 4, 64, batch_first=True, norm_first=norm_first, activation=activation
    ).eval()
    for parameter in layer.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.3)
    positions = torch.rand(7, 7) > 0.7
    positions.fill_diagonal_(False)
    keys = torch.rand(3, 7) > 0.7
    keys[:, 0] = False
    if masked == "no key left":
        keys[1] = True
    masks = {
        "src_mask": positions if masked in ("positions", "both") else None,
        "src_key_padding_mask": keys if masked in ("keys", "both", "no key left") else None,
    }
    source = torch.randn(3, 7, 32)
    expected = layer(source, **masks)
    if masked == "both":
        assert expected.isnan().any() == expected.isnan().all(-1).any()
    got = captured(layer)
    assert same(got.run(source, **masks), expected, ROUNDING)
    assert got.calls["onepass.attention.default"] == 1
    assert got.calls["aten._transformer_encoder_layer_fwd.default"] == 0
    assert expected.isnan().any() == (masked == "no key left") or masked == "both"


def test_encoder_takes_other_sizes_without_another_graph() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    got = captured(encoder)
    source = torch.randn(3, 7, 32)
    torch._dynamo.mark_dynamic(source, 0)
    torch._dynamo.mark_dynamic(source, 1)
    assert same(got.run(source), encoder(source), ROUNDING)
    source = torch.randn(5, 12, 32)
    assert same(got.run(source), encoder(source), ROUNDING)
    assert len(got.graphs) == 1
    assert got.calls["onepass.attention.default"] == 2


def test_a_causal_mask_given_to_an_encoder_layer_is_proven() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()

    def function(source: Tensor) -> Tensor:
        length = source.shape[1]
        mask = torch.triu(torch.full((length, length), float("-inf")), diagonal=1)
        return layer(source, src_mask=mask)

    got = captured(function, dynamic=True)
    for batch, length in ((3, 7), (2, 10)):
        source = torch.randn(batch, length, 32)
        assert same(got.run(source), function(source), ROUNDING)
    assert got.masks == ["proven causal"]
    assert len(got.graphs) == 1


@pytest.mark.parametrize("weights", [False, True])
def test_multi_head_attention_is_opened_unless_its_weights_are_asked_for(weights: bool) -> None:
    module = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    query, memory = torch.randn(3, 5, 32), torch.randn(3, 9, 32)
    keys = torch.zeros(3, 9, dtype=torch.bool)
    keys[1, 4:] = True
    got = captured(lambda q, m, p: module(q, m, m, key_padding_mask=p, need_weights=weights))
    result, asked = got.run(query, memory, keys)
    expected, expected_weights = module(query, memory, memory, key_padding_mask=keys, need_weights=weights)
    assert same(result, expected, ROUNDING)
    assert got.outcomes[-1][0].set_aside is not weights
    if weights:
        assert same(asked, expected_weights, ROUNDING)

    got = captured(lambda q, m: module(q, m, m)[0])  # asked for and thrown away
    assert same(got.run(query, memory), module(query, memory, memory)[0], ROUNDING)
    assert got.calls["onepass.attention.default"] == 1


def test_decoder_layer() -> None:
    layer = nn.TransformerDecoderLayer(32, 4, 64, batch_first=True).eval()
    target, memory = torch.randn(3, 5, 32), torch.randn(3, 9, 32)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    got = captured(lambda t, m: layer(t, m, tgt_mask=mask, tgt_is_causal=True))
    assert same(got.run(target, memory), layer(target, memory, tgt_mask=mask, tgt_is_causal=True), ROUNDING)
    assert got.calls["onepass.attention.default"] == 2
    assert not any("softmax" in call for call in got.calls)


@pytest.fixture
def masks_always_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers as it traces under torch before 2.13: no mask is left out while compiling."""
    masking = importlib.import_module("transformers.masking_utils")
    monkeypatch.setattr(masking, "is_torchdynamo_exporting", lambda: True)


PROVEN = {
    "bert": ["proven all true"] * 2,
    "bert padded": ["lightened"] * 2,
    "gpt2": ["proven causal"] * 2,
    "llama": ["proven causal"] * 2,
    "modernbert": ["proven all true", "lightened", "lightened"],
    "t5": ["lightened"] * 2 + ["lightened", "proven all true"] * 2,
}


@pytest.mark.usefixtures("masks_always_built")
@pytest.mark.parametrize("name", list(PROVEN))
def test_models_keep_attention_whole_and_their_results(name: str) -> None:
    model = MODELS[name]
    module = randomised(model.build)
    got = captured(module)
    for batch, length in ((3, 10), (5, 14)):
        inputs = model.inputs(batch, length)
        for tensor in inputs.values():
            for dim in model.dynamic:
                torch._dynamo.mark_dynamic(tensor, dim)
        assert same(first(got.run(**inputs)), first(module(**inputs)), ROUNDING)
    assert got.masks == PROVEN[name]
    assert len(got.graphs) == 1
    assert got.calls["onepass.attention.default"] == len(got.masks)
    assert not any("softmax" in call or "bmm" in call for call in got.calls)
    assert not any("repeat" in call for call in got.calls)


@pytest.mark.usefixtures("masks_always_built")
def test_the_mask_of_bert_leaves_no_arithmetic_behind() -> None:
    got = captured(randomised(MODELS["bert"].build))
    got.run(**tokens(3, 10))
    assert not any("arange" in call or "iota" in call or "ge.Scalar" in call for call in got.calls)
