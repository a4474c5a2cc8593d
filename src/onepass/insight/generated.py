"""The kernels that a function becomes on an architecture of which no card is present."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx import GraphModule

from onepass.build import Built, Plan, build, fit
from onepass.capture.attention import set_aside
from onepass.capture.backend import boxed, hints
from onepass.capture.normalize import Captured, normalize
from onepass.ir.cluster import Cluster, Item


@dataclass
class Graph:
    """One graph of a function, planned. ``calls`` are the arguments of each run, in the order of its placeholders."""

    plan: Plan
    captured: Captured
    calls: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Generated:
    """A function compiled for an architecture; called, it runs as PyTorch and notes what each graph was given."""

    graphs: list[Graph]
    function: Callable[..., Any]

    @property
    def kernels(self) -> list[Built]:
        return [k for g in self.graphs for k in g.plan.kernels]


def generate(arch: str, function: Callable[..., Any], inputs: Sequence[Any]) -> Generated:
    """Plans and compiles each graph of a function for ``sm_XX``. What ``torch._dynamo.maybe_mark_dynamic`` was told of the
    inputs holds; all other sizes are constants.

    Raises: NoSuchArchitecture, NoNvrtc, CompileError; what the function raises.
    """
    graphs: list[Graph] = []

    def ours(graph: GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        captured = normalize(graph, lambda cluster: fit(replace(cluster, device=arch)), strict=True)
        program = replace(captured.program, items=tuple(_placed(i, arch) for i in captured.program.items))
        graphs.append(Graph(build(program, hints(graph)), captured))
        calls = graphs[-1].calls

        def run(*arguments: Any) -> Any:
            calls.append(list(arguments))
            return graph.forward(*arguments)

        return boxed(run)

    def backend(graph: GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        set_aside(graph)
        compiler: Any = ours
        run: Callable[..., Any] = aot_module_simplified(
            graph,
            given,
            fw_compiler=compiler,
            inference_compiler=compiler,
            keep_inference_input_mutations=True,
        )
        return run

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, dynamic=False)
    with torch.no_grad():
        compiled(*inputs)
    return Generated(graphs, compiled)


def _placed(item: Item, arch: str) -> Item:
    # An addend is handed over on the CPU only.
    return replace(item, device=arch) if isinstance(item, Cluster) else replace(item, addend=None)
