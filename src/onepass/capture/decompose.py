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


PARTS: dict[Any, Callable[[GraphModule, Node], None]] = {
    aten.nll_loss_forward.default: _likelihood,
    aten.nll_loss2d_forward.default: _likelihood,
}
