"""Mark the tensors of a Dynamo graph whose memory something in it writes to: they can't be read at another time."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node

_MARK = "onepass_written"


def mark_written(graph: Graph) -> None:
    """Mark all tensors on storage that is written to, and inputs that may share it with an input that is."""
    tensors = {node: value for node in graph.nodes if _has_storage(value := node.meta.get("example_value"))}
    inputs = {_storage(value) for node, value in tensors.items() if node.op == "placeholder"}
    written, dtypes = set(), set()
    for node, value in tensors.items():
        # The counter counts every write to the traced tensor or a view of it, in the whole graph.
        if value.is_inference() or value._version or any(_may_write(user) for user in node.users):
            written.add(_storage(value))
            if _storage(value) in inputs:
                dtypes.add(value.dtype)
    for node, value in tensors.items():
        if _storage(value) in written or (_storage(value) in inputs and value.dtype in dtypes):
            node.meta[_MARK] = True


def is_untouched(node: Node) -> bool:
    """Whether the node is a plain tensor that nothing in the graph writes to, so that it may be read at any time."""
    return _has_storage(node.meta.get("example_value")) and _MARK not in node.meta


def _has_storage(value: Any) -> bool:
    return type(value) is FakeTensor and value.layout is torch.strided


def _storage(value: FakeTensor) -> int:
    storage: int = value.untyped_storage()._cdata
    return storage


def _may_write(node: Node) -> bool:
    """Whether the call may write without a trace in version counters: higher-order operators, ``_foreach_mul_``."""
    if isinstance(node.target, HigherOrderOperator):
        return True
    name = getattr(node.target, "__name__", "")
    return (
        node.op == "call_function" and name.endswith("_") and getattr(operator, name, None) is not node.target
    )
