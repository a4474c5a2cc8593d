"""What a function would run as on a GPU that is not here: planned, neither compiled nor run there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx import GraphModule

from onepass.build import Plan, build, fit
from onepass.capture.attention import set_aside
from onepass.capture.backend import boxed, hints
from onepass.capture.normalize import normalize
from onepass.ir.cluster import Cluster, Item


def plans_for(device: str, function: Callable[..., Any], inputs: Sequence[Any]) -> list[Plan]:
    """The plan of each graph of a function for a GPU by its full name in the table.

    The function is called once, as PyTorch, where its inputs are. Raises: what the function raises.
    """
    plans: list[Plan] = []

    def planned(graph: GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        captured = normalize(graph, lambda cluster: fit(replace(cluster, device=device)))
        program = replace(captured.program, items=tuple(_placed(i, device) for i in captured.program.items))
        plans.append(build(program, hints(graph), run=False))
        return boxed(graph.forward)

    def backend(graph: GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        set_aside(graph)
        compiler: Any = planned
        run: Callable[..., Any] = aot_module_simplified(
            graph,
            given,
            fw_compiler=compiler,
            inference_compiler=compiler,
            keep_inference_input_mutations=True,
        )
        return run

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend)(*inputs)
    return plans


def _placed(item: Item, device: str) -> Item:
    # An addend is handed over on the CPU only.
    return replace(item, device=device) if isinstance(item, Cluster) else replace(item, addend=None)
