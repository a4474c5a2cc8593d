"""The kernels that a function becomes on an architecture of which no card is present."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx import GraphModule

from onepass.build import Built, Plan, build, fit
from onepass.capture.attention import set_aside
from onepass.capture.backend import boxed, hints
from onepass.capture.normalize import Captured, normalize
from onepass.ir.cluster import Cluster, Item


def plans_for(arch: str, function: Callable[..., Any], inputs: Sequence[Any]) -> list[tuple[Plan, Captured]]:
    """Plans and compiles each graph of a function for ``sm_XX``; what runs here meanwhile is PyTorch.

    Raises: NoSuchArchitecture, NoNvrtc, CompileError; what the function raises.
    """
    found: list[tuple[Plan, Captured]] = []

    def ours(graph: GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        captured = normalize(graph, lambda cluster: fit(_on(cluster, arch)), strict=True)
        program = replace(captured.program, items=tuple(_placed(i, arch) for i in captured.program.items))
        found.append((build(program, hints(graph)), captured))
        return boxed(graph.forward)

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

    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=1 << 30):
        torch.compile(function, backend=backend, dynamic=False)(*inputs)
    torch._dynamo.reset()
    return found


def kernels_for(arch: str, function: Callable[..., Any], inputs: Sequence[Any]) -> list[Built]:
    """Every kernel of those plans. Raises: as `plans_for`."""
    return [k for plan, _ in plans_for(arch, function, inputs) for k in plan.kernels]


def _on(cluster: Cluster, arch: str) -> Cluster:
    return replace(cluster, device=arch)


def _placed(item: Item, arch: str) -> Item:
    # An addend is handed over on the CPU only.
    return _on(item, arch) if isinstance(item, Cluster) else replace(item, addend=None)
