"""What a function becomes on a device that is not here: captured where its inputs are, planned for the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule

from onepass import settings
from onepass.build import Built, Plan, build, fit
from onepass.capture.attention import set_aside
from onepass.capture.backend import boxed, hints, to_aten
from onepass.capture.normalize import Captured, normalize
from onepass.device import find, of
from onepass.errors import NoRoof
from onepass.ir.cluster import Cluster, Item


@dataclass
class Graph:
    """One graph of a function, planned. ``calls`` are the arguments of each run, in the order of its placeholders."""

    plan: Plan
    captured: Captured
    calls: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Generated:
    """A function planned for a device; called, it runs as PyTorch and notes what each graph was given."""

    graphs: list[Graph]
    function: Callable[..., Any]

    @property
    def plans(self) -> list[Plan]:
        return [g.plan for g in self.graphs]

    @property
    def kernels(self) -> list[Built]:
        return [k for plan in self.plans for k in plan.kernels]


def generate(
    device: str, function: Callable[..., Any], inputs: Sequence[Any], *, compiled: bool = True
) -> Generated:
    """Plans each graph of a function for an architecture, ``sm_XX``, or a GPU by its full name in the table.

    It is called once, as PyTorch, where its inputs are. What ``torch._dynamo.maybe_mark_dynamic`` was told of the inputs
    holds; all other sizes are constants. Without ``compiled`` no machine code is made.

    Raises: NoSuchArchitecture, UnknownGpu, NoRoof where the table has no bandwidth, NoNvrtc, CompileError; what the
    function raises.
    """
    if of(device).kind != "cuda":
        device = find(device).name
        if of(device).kind != "cuda":
            raise NoRoof(device)
    graphs: list[Graph] = []

    def ours(graph: GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        planned = generate_graph(device, graph, compiled=compiled)
        graphs.append(planned)

        def run(*arguments: Any) -> Any:
            planned.calls.append(list(arguments))
            return graph.forward(*arguments)

        return boxed(run)

    def backend(graph: GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        set_aside(graph)
        return to_aten(graph, given, ours)

    torch._dynamo.reset()
    noting = torch.compile(function, backend=backend, dynamic=False)
    with torch.no_grad():
        noting(*inputs)
    return Generated(graphs, noting)


def generate_graph(device: str, graph: GraphModule, *, compiled: bool = True) -> Graph:
    """The same of one graph of ATen ops."""

    def placed(item: Item) -> Item:
        # An addend is handed over on the CPU only.
        return replace(item, device=device) if isinstance(item, Cluster) else replace(item, addend=None)

    captured = normalize(
        graph, lambda cluster: fit(replace(cluster, device=device)), strict=settings.STRICT.read()
    )
    program = replace(captured.program, items=tuple(map(placed, captured.program.items)))
    return Graph(build(program, hints(graph), run=compiled), captured)
