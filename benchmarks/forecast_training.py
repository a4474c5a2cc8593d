"""What fusing can win of a training step: python3 benchmarks/forecast_training.py. No GPU.

The joint graphs of the models of `models.py`, traced without data: each ATen op's bytes, those that remain where all
memory-bound work between two matmuls is one kernel, and the time these take by the committed rates. Matmuls and attention
take what they take in eager; eager's and Inductor's steps are the reference's. The step is a bound from below: with what is
saved for backward chosen so, no plan moves fewer bytes, and a real one needs more kernels.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from functorch.compile import default_partition, make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node

from models import MODELS
from onepass.runtime.calibration import Calibration

RATES = Path(__file__).parent / "results" / "nvidia-h200" / "calibration.json"
# Of eager's training step on an H200, bf16: ms, Inductor's ms, and the share of neither matmul nor attention.
REFERENCE: Mapping[str, tuple[float, float, float]] = {
    "bert_base": (31.8, 53.8, 0.38),
    "gpt2": (48.6, 38.4, 0.42),
    "llama_8x2048": (68.9, 59.9, 0.40),
}
VIEWS = {
    *(
        "view",
        "_unsafe_view",
        "permute",
        "transpose",
        "t",
        "expand",
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
    ),
    *("alias", "detach", "split", "split_with_sizes", "as_strided", "unbind", "reshape", "getitem"),
}
MATMULS = {"mm", "addmm", "bmm", "baddbmm"}


@dataclass
class Graph:
    """One graph's memory-bound work. ``groups``: kernels that remain where all between two matmuls is one."""

    ops: int = 0
    eager_bytes: int = 0
    groups: int = 0
    fused_bytes: int = 0
    saved_bytes: int = 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="the models at a size for a CPU")
    options = parser.parse_args(arguments)
    rates = Calibration.from_dict(json.loads(RATES.read_text()))
    for name in REFERENCE:
        for partition in (default_partition, min_cut_rematerialization_partition):
            forward, backward = traced(name, options.small, partition)
            print(_line(name, partition.__name__, forward, backward, rates), flush=True)
    return 0


def _line(name: str, chosen: str, forward: Graph, backward: Graph, rates: Calibration) -> str:
    eager_ms, inductor_ms, share = REFERENCE[name]
    both = (forward, backward)
    eager_mib, fused_mib = (sum(getattr(g, k) for g in both) / 2**20 for k in ("eager_bytes", "fused_bytes"))
    fused_ms = fused_mib * 2**20 / rates.best_gbps / 1e6 + sum(g.groups for g in both) * rates.start_us / 1e3
    step_ms = eager_ms * (1 - share) + fused_ms
    return (
        f"{name:14} {chosen:36} ops {forward.ops}+{backward.ops} → {forward.groups}+{backward.groups} kernels, "
        f"{eager_mib:7.0f} → {fused_mib:7.0f} MiB, saved {forward.saved_bytes / 2**20:6.0f} MiB; memory-bound "
        f"{eager_ms * share:5.1f} → {fused_ms:5.1f} ms; step {step_ms:5.1f} ms: {eager_ms / step_ms:.2f} × eager, "
        f"{inductor_ms / step_ms:.2f} × Inductor"
    )


def traced(name: str, small: bool, partition: Any) -> tuple[Graph, Graph]:
    """Forward and backward of a training step, without data."""
    found: list[Graph] = []

    def keep(graph: GraphModule, inputs: Sequence[Any]) -> Any:
        found.append(_count(graph))
        return make_boxed_func(graph)

    model = MODELS[name]
    batch, length = model.size(small)
    torch._dynamo.reset()
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.set_default_dtype(torch.bfloat16)  # a module of tensors without data can't be converted
        try:
            module = model.build(small).train()
        finally:
            torch.set_default_dtype(torch.float32)
        compiled = torch.compile(
            module, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep, partition_fn=partition)
        )
        _without_attention_dropout(module)
        ids = torch.zeros(batch, length, dtype=torch.int64)
        out = compiled(ids)[0]
        out.backward(torch.ones_like(out) * 1e-3)
    forward, backward = found[:2]
    return forward, backward


def _without_attention_dropout(module: torch.nn.Module) -> None:
    """As in the reference: dropout everywhere but on attention's scores, where its kernel would do it."""
    for part in module.modules():
        for name in ("attn_dropout", "dropout"):
            if "Attention" in type(part).__name__ and isinstance(getattr(part, name, None), torch.nn.Dropout):
                setattr(part, name, torch.nn.Dropout(0.0))
        if isinstance(getattr(part, "attention_dropout", None), float):
            part.attention_dropout = 0.0


def _count(graph: GraphModule) -> Graph:
    result = Graph()
    depth: dict[Node, int] = defaultdict(int)
    group: dict[Node, Node] = {}
    bound = [n for n in graph.graph.nodes if n.op == "call_function"]
    for node in bound:
        before = max((depth[i] for i in node.all_input_nodes), default=0)
        heavy = _name(node) in MATMULS or "attention" in _name(node)
        depth[node] = before + heavy
        if heavy or _name(node) in VIEWS:
            continue
        result.ops += 1
        result.eager_bytes += _bytes([node, *map(_source, node.all_input_nodes)])
        group[node] = node
        for other in map(_source, node.all_input_nodes):
            if other in group and depth[other] == depth[node]:
                _join(group, node, other)
    _fused(graph, group, result)
    outputs = next(n for n in graph.graph.nodes if n.op == "output")
    result.saved_bytes = _bytes(list(outputs.all_input_nodes))
    return result


def _fused(graph: GraphModule, group: dict[Node, Node], result: Graph) -> None:
    """Bytes of groups: what they read from outside and what is read outside of them."""
    read: dict[Node, set[Node]] = defaultdict(set)
    written: dict[Node, set[Node]] = defaultdict(set)
    for node in group:
        own = _root(group, node)
        read[own] |= {
            i for i in map(_source, node.all_input_nodes) if i not in group or _root(group, i) != own
        }
        if any(u not in group or _root(group, u) != own for u in _users(node)):
            written[own].add(node)
    roots = {_root(group, n) for n in group}
    result.groups = len(roots)
    result.fused_bytes = sum(_bytes(list(read[r])) + _bytes(list(written[r])) for r in roots)


def _users(node: Node) -> list[Node]:
    """Who reads a value, through views."""
    found: list[Node] = []
    for user in node.users:
        found += _users(user) if _name(user) in VIEWS else [user]
    return found


def _source(node: Node) -> Node:
    """The tensor in memory under a chain of views."""
    while node.op == "call_function" and _name(node) in VIEWS:
        node = node.all_input_nodes[0]
    return node


def _root(group: dict[Node, Node], node: Node) -> Node:
    while group[node] is not node:
        node = group[node]
    return node


def _join(group: dict[Node, Node], a: Node, b: Node) -> None:
    group[_root(group, a)] = _root(group, b)


def _bytes(nodes: Sequence[Node]) -> int:
    return sum(
        t.numel() * t.element_size() for n in dict.fromkeys(nodes) for t in _tensors(n.meta.get("val"))
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (tuple, list)) else []


def _name(node: Node) -> str:
    name = getattr(node.target, "__name__", str(node.target))
    return name.split(".")[0]


if __name__ == "__main__":
    raise SystemExit(main())
