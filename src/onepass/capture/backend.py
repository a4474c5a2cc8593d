"""The ``torch.compile`` back end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule

from onepass import settings
from onepass.build import build, fit
from onepass.capture.attention import SetAside, set_aside
from onepass.capture.normalize import normalize
from onepass.capture.runner import Compiled, compile_runner
from onepass.capture.whole import require_whole

log = logging.getLogger("onepass")


@dataclass
class Backend:
    """A back end that keeps what it built. ``onepass`` below is one shared instance's call."""

    compiled: list[Compiled] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # why whole graphs were left to PyTorch
    attention: list[SetAside] = field(default_factory=list)
    keep: bool = True
    whole: str = ""  # the function that must become kernels entirely, by name

    def __call__(self, graph: GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        reason = _untouched(graph, inputs)
        if reason:
            self.left.append(reason)
            return graph.forward
        from torch._functorch.aot_autograd import aot_module_simplified

        self.attention.extend(set_aside(graph))

        return aot_module_simplified(  # type: ignore[no-any-return]
            graph, inputs, fw_compiler=self.inference, inference_compiler=self.inference,
            keep_inference_input_mutations=True,
        )

    def inference(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        captured = normalize(graph, fit, frozenset(settings.DENY.read()))
        plan = build(captured.program, hints(graph), fuel=settings.FUEL.read())
        if self.whole:
            require_whole(plan, graph, self.whole)
        compiled = compile_runner(plan, captured)
        if self.keep:
            self.compiled.append(compiled)
        return compiled.run


def onepass(graph: GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """``torch.compile(model, backend="onepass")``."""
    return Backend(keep=False)(graph, inputs, **options)


def _untouched(graph: GraphModule, inputs: Sequence[Any]) -> str:
    """Why a graph runs as PyTorch would run it, untouched; empty when it is compiled."""
    if settings.DISABLE.read():
        return "ONEPASS_DISABLE is set"
    tensors = [t for t in (*inputs, *graph.parameters(), *graph.buffers()) if isinstance(t, torch.Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return "gradients: a graph that needs gradients runs in PyTorch"
    return ""


def hints(graph: GraphModule) -> dict[str, int]:
    """Typical values of symbolic sizes: those of the first call."""
    found: dict[str, int] = {}
    for node in graph.graph.nodes:
        if node.op != "placeholder":
            continue
        fake = node.meta.get("val")
        sizes = [fake] if isinstance(fake, torch.SymInt) else fake.shape if isinstance(fake, torch.Tensor) else []
        for s in sizes:
            if isinstance(s, torch.SymInt) and s.node.hint is not None and s.node.expr.is_Symbol:
                found[str(s.node.expr)] = int(s.node.hint)
    return found


