"""Eager's account: what each op of a captured graph would move if PyTorch ran it alone."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from onepass.capture.sizes import size
from onepass.ir.cluster import EagerOp
from onepass.ir.symbol import Size, product
from onepass.ops.table import COMPUTE_BOUND, GATHERS, VIEWS, WRITES_BACK

Bound = Literal["compute", "memory", "view", "none"]


def eager_op(node: Node, name: str) -> EagerOp | None:
    """What one op reads and writes, each tensor once; None for what eager does not run as an op of its own."""
    if _is_epilogue(node, name):
        return None
    inputs = [_traffic(t) for t in tensors([n.meta.get("val") for n in node.all_input_nodes])]
    results = [_traffic(t) for t in tensors(node.meta.get("val"))]
    if name in GATHERS and inputs and results:
        inputs[0] = (results[0][0], inputs[0][1])  # of the table only the rows that are asked for
    return EagerOp(node.name, name, bound_of(node, name), tuple(inputs), tuple(results))


def bound_of(node: Node, name: str) -> Bound:
    """What limits an op when PyTorch runs it."""
    if name in VIEWS:
        return "view"
    if name in COMPUTE_BOUND or name.removeprefix("onepass.") in COMPUTE_BOUND:
        return "compute"
    return "memory" if tensors(node.meta.get("val")) else "none"


def _is_epilogue(node: Node, name: str) -> bool:
    """A copy into an input at the end of a graph stands for in-place ops, whose writes are counted as theirs."""
    target = node.args[0] if node.args else None
    return name in WRITES_BACK and isinstance(target, Node) and target.op == "placeholder"


def _traffic(fake: torch.Tensor) -> tuple[Size, int]:
    """Distinct elements of a tensor (expanded dimensions count once) and bytes an element."""
    if fake.layout is not torch.strided:
        return product(map(size, fake.shape)), fake.element_size()
    kept = [n for n, stride in zip(fake.shape, fake.stride(), strict=True) if not _is_zero(stride)]
    return product(map(size, kept)), fake.element_size()


def _is_zero(stride: Any) -> bool:
    return statically_known_true(stride == 0)


def tensors(*values: Any) -> list[torch.Tensor]:
    """The tensors in nested lists and tuples, in order."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(tensors(*value))
    return found
