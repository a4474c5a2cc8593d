"""What a captured graph should give: its clusters and calls in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from functorch.compile import aot_function, make_boxed_func
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from onepass.capture.normalize import Captured, describe, normalize
from onepass.capture.runner import overload
from onepass.ir.cluster import Call, Cluster, Program
from onepass.ir.interpret import Memory, Watch, number, place, run_program


def trace(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> GraphModule:
    """The graph of ATen ops that the back end is given. AOTAutograd takes four times as long as `make_fx`, and differs for
    what `function` says here only where PyTorch itself works in place inside an op."""
    with torch.no_grad():
        graph = make_fx(function, tracing_mode="fake")(*inputs)
        if not any(
            getattr(n.target, "_schema", None) and n.target._schema.is_mutable for n in graph.graph.nodes
        ):
            return graph
        found: list[GraphModule] = []

        def keep(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            found.append(graph)
            return make_boxed_func(graph.forward)  # type: ignore[no-any-return]

        aot_function(function, fw_compiler=keep, inference_compiler=keep)(*inputs)
    return found[0]


def capture(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], fit: Callable[[Cluster], str]
) -> Captured:
    return normalize(trace(function, inputs), fit)


def double(x: Any) -> Any:
    """The same in float64: tensors, numbers and dtypes, in lists too."""
    if isinstance(x, torch.Tensor):
        return x.double() if x.is_floating_point() else x
    if isinstance(x, torch.dtype):
        return torch.float64 if x.is_floating_point else x
    if isinstance(x, (list, tuple)):
        return type(x)(double(i) for i in x)
    return x


@dataclass
class Oracle:
    """Interprets a program; ATen is asked only for what stays with it and for views of what leaves the graph."""

    captured: Captured
    inputs: Sequence[torch.Tensor]

    def outputs(self, program: Program | None = None, watch: Watch | None = None) -> list[torch.Tensor]:
        """The graph's outputs in float64 (int64, bool). ``program`` is one made from the captured one."""
        self.program = program or self.captured.program
        self.nodes = {n.name: n for n in self.captured.graph.graph.nodes}
        self.made: dict[str, Any] = {}
        held: dict[str, torch.Tensor] = {}
        given = [n for n in self.nodes.values() if n.op == "placeholder"]
        constants = [n for n in self.nodes.values() if n.op == "get_attr"]
        values = [attrgetter(str(n.target))(self.captured.graph) for n in constants]
        for node, x in zip((*given, *constants), (*self.inputs, *values), strict=True):
            self.made[node.name] = x.to(x.dtype) if not x.is_floating_point() else x.double()
            if node.name in self.program.tensors:
                held[node.name] = number(self.program.tensors[node.name], x, {})
        self.memory = run_program(self.program, held, self.call, watch=watch)
        results = self.captured.graph.graph.output_node().args[0]
        return [
            self.value(n, self.memory) for n in (results if isinstance(results, (list, tuple)) else [results])
        ]

    def call(self, call: Call, memory: Memory) -> Mapping[str, torch.Tensor]:
        node = self.nodes[call.name]
        if call.bare:
            result = overload(call.target)(*(self.value(x, memory) for x in node.args[1:]))
        else:
            result = self.evaluate(node, memory)
        self.made[node.name] = result
        parts = (
            {f"{node.name}.{i}": r for i, r in enumerate(result)}
            if isinstance(result, (list, tuple))
            else {node.name: result}
        )
        return {
            name: number(self.program.tensors[name], self.strided(name, r), {})
            for name, r in parts.items()
            if name in call.writes
        }

    def strided(self, name: str, x: torch.Tensor) -> torch.Tensor:
        fake = self.fake(name)
        return torch.empty_strided(fake.shape, fake.stride(), dtype=x.dtype).copy_(x)

    def evaluate(self, node: torch.fx.Node, memory: Memory) -> Any:
        arguments = torch.fx.map_arg((node.args, node.kwargs), lambda n: self.value(n, memory))
        args, kwargs = double(tuple(arguments[0])), {k: double(v) for k, v in arguments[1].items()}
        return node.target(*args, **kwargs)

    def value(self, node: torch.fx.Node, memory: Memory) -> Any:
        """A node's value as PyTorch holds it: out of memory where a cluster wrote it."""
        node = self.nodes[self.captured.alias.get(node.name, node.name)]
        if node.name in memory.values and node.name not in self.made:
            tensor, fake = describe(node.name, node.meta["val"]).tensor, node.meta["val"]
            if not bool(memory.known[node.name].all()):
                raise AssertionError(f"{node.name} leaves the graph with elements that nothing wrote")
            self.made[node.name] = place(tensor, memory.values[node.name], fake.shape, fake.stride(), {})
        elif node.name not in self.made:
            if node.op == "call_function" and node.target.__name__ == "getitem":
                source, index = node.args
                part = f"{source.name}.{index}"
                if part in memory.values:
                    fake = self.fake(part)
                    flat = memory.values[part]
                    self.made[node.name] = place(
                        self.program.tensors[part], flat, fake.shape, fake.stride(), {}
                    )
                    return self.made[node.name]
            self.made[node.name] = self.evaluate(node, memory)
        return self.made[node.name]

    def fake(self, name: str) -> torch.Tensor:
        if name in self.nodes:
            return self.nodes[name].meta["val"]
        base, _, part = name.rpartition(".")
        return self.nodes[base].meta["val"][int(part)]
