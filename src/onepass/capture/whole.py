"""Whether a plan holds all of a function, and the user's line where it does not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from onepass.build import Plan
from onepass.capture.account import tensors
from onepass.capture.sizes import hint
from onepass.errors import CannotFuse

# Frames of these are not the user's.
_NOT_THE_USERS = (Path(torch.__file__).parent, Path(__file__).parents[1])


def require_whole(plan: Plan, graph: GraphModule, function: str, line: str = "") -> None:
    """Checks that nothing of a plan that moves or computes something stays with PyTorch; ``line`` is the user's if known.

    Raises: CannotFuse for the first op that does.
    """
    nodes = {node.name: node for node in graph.graph.nodes}
    for call in plan.calls:
        node = nodes[call.name]
        if call.bound in ("compute", "memory") and not _is_empty(node):
            reason = call.reason or "compute-bound: matmul, attention and convolution stay with PyTorch"
            where = line or user_line(node.meta.get("stack_trace")) or function
            raise CannotFuse(function, where, call.target, operands(node), reason)


def _is_empty(node: Node) -> bool:
    """Whether there is nothing to compute: kernels are for sizes of one and more."""
    return all(any(isinstance(n, int) and n == 0 for n in t.shape) for t in tensors(node.meta.get("val")))


def user_line(stack_trace: str | None) -> str:
    """``file:line`` of the innermost frame of a trace that is neither PyTorch's nor ours; empty if none."""
    frames = re.findall(r'File "(.+?)", line (\d+)', stack_trace or "")
    own = [(file, line) for file, line in frames if not any(p in Path(file).parents for p in _NOT_THE_USERS)]
    return "{}:{}".format(*own[-1]) if own else ""


def operands(node: Node) -> tuple[str, ...]:
    """Each tensor operand as ``fp32[8, 128]``-like text, in PyTorch's words."""
    return tuple(_describe(n.meta["val"]) for n in node.all_input_nodes if "val" in n.meta)


def _describe(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(str(hint(n)) for n in value.shape)}]"
