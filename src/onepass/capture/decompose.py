"""ATen ops that no single kernel is, as the ops that they are made of."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from onepass.capture.account import eager_op

aten = torch.ops.aten
NONE, MEAN = 0, 1  # PyTorch's reductions of a loss
# In a node's meta: what eager would do in its place, where the node stands for a part of an op.
EAGER = "onepass_eager"


def decompose(graph: GraphModule) -> None:
    """Replaces, in place, ops that `PARTS` has an entry for."""
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target in PARTS:
            PARTS[node.target](graph, node)


class _Adds:
    """Adds nodes before one, each with the value that PyTorch says it has."""

    def __init__(self, graph: GraphModule, before: Node) -> None:
        self.graph, self.before = graph, before
        self.given = next(n.meta["val"] for n in before.all_input_nodes if "val" in n.meta)

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        with self.graph.graph.inserting_before(self.before):
            node = self.graph.graph.call_function(target, args, kwargs)
        with self.given.fake_mode:
            node.meta["val"] = target(*torch.fx.node.map_arg(args, lambda n: n.meta["val"]), **kwargs)
        node.meta[EAGER] = None
        for key in ("stack_trace", "nn_module_stack"):
            if key in self.before.meta:
                node.meta[key] = self.before.meta[key]
        return node


def _likelihood(graph: GraphModule, node: Node) -> None:
    """The mean or sum of one value a row, and how many rows count."""
    x, target, weight, reduction, ignored = node.args
    if weight is not None or reduction == NONE or x.meta["val"].dim() == 1:  # type: ignore[union-attr]
        return
    add = _Adds(graph, node)
    dtype = x.meta["val"].dtype  # type: ignore[union-attr]
    wide = torch.promote_types(dtype, torch.float32)
    each = add(operator.getitem, add(node.target, x, target, None, NONE, ignored), 0)
    total = add(aten.sum.default, each, dtype=wide)
    counted = add(aten.sum.default, add(aten.ne.Scalar, target, ignored))
    count = add(aten._to_copy.default, counted, dtype=dtype)
    value = add(aten.div.Tensor, total, counted) if reduction == MEAN else total
    value = value if wide == dtype else add(aten._to_copy.default, value, dtype=dtype)
    value.meta[EAGER] = eager_op(node, str(node.target).removeprefix("aten."))
    for user in list(node.users):
        user.replace_all_uses_with((value, count)[user.args[1]])  # type: ignore[index]
        graph.graph.erase_node(user)
    graph.graph.erase_node(node)


def _roll(graph: GraphModule, node: Node) -> None:
    """The two ends of each dimension, the last one first; without a dimension, of all elements as they lie."""
    x, shifts, dims = node.args[0], node.args[1], node.args[2] if len(node.args) > 2 else []
    given = x.meta["val"]  # type: ignore[union-attr]
    if not all(isinstance(n, int) for n in (*shifts, *given.shape)):  # type: ignore[misc]
        return
    if 0 in given.shape or not (dims or given.is_contiguous()):
        return
    add = _Adds(graph, node)
    value: Any = x if dims else add(aten.view.default, x, [given.numel()])
    unmoved = value
    for shift, dim in zip(shifts, dims or [0], strict=True):  # type: ignore[arg-type]
        size = value.meta["val"].shape[dim]
        if first := -shift % size:
            ends = [add(aten.slice.Tensor, value, dim, *span) for span in ((first, size), (0, first))]
            value = add(aten.cat.default, ends, dim)
    if value is unmoved or not value.meta["val"].is_contiguous():  # what PyTorch makes is
        value = add(aten.clone.default, value, memory_format=torch.contiguous_format)
    value.meta[EAGER] = eager_op(node, "roll.default")
    value = value if dims else add(aten.view.default, value, list(given.shape))
    node.replace_all_uses_with(value)
    graph.graph.erase_node(node)


def _reserve(graph: GraphModule, node: Node) -> None:
    """The memory that cuDNN wants back in backward, where it has no elements: a tensor of none."""
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == 3 and 0 in user.meta["val"].shape:
            made = user.meta["val"]
            nothing = _Adds(graph, node)(
                aten.full.default, list(made.shape), 0, dtype=made.dtype, device=made.device
            )
            user.replace_all_uses_with(nothing)
            graph.graph.erase_node(user)


PARTS: dict[Any, Callable[[GraphModule, Node], None]] = {
    aten.nll_loss_forward.default: _likelihood,
    aten.nll_loss2d_forward.default: _likelihood,
    aten.roll.default: _roll,
    aten._batch_norm_with_update_functional.default: _reserve,
}
