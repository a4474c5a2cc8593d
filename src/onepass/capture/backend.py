"""The ``torch.compile`` back end."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch._dynamo.exc import RestartAnalysis
from torch._functorch.aot_autograd import aot_module_simplified
from torch.autograd import forward_ad
from torch.fx import GraphModule

from onepass import settings
from onepass.build import build, fit
from onepass.capture.attention import SetAside, set_aside
from onepass.capture.in_place import in_place
from onepass.capture.normalize import normalize
from onepass.capture.options import Options
from onepass.capture.runner import Compiled, compile_runner
from onepass.capture.whole import require_whole
from onepass.errors import BadOption, BadSetting, CannotFuse, LeftToPyTorch

Run = Callable[..., Any]

# What the user must hear of, whatever the policy on failures: it is about what they wrote.
_THE_USERS = (BadOption, BadSetting, CannotFuse)

GRADIENTS = "gradients: a graph that needs gradients runs in PyTorch"


@dataclass
class Backend:
    """A back end that keeps what it built. `onepass` below makes a new one for each graph.

    With ``whole``, the name of a function, everything in a graph must become kernels. With ``repeatable`` a kernel may be
    launched again and again on the same memory: no result lies over what its kernel reads.
    """

    whole: str = ""
    keep: bool = True
    repeatable: bool = False
    compiled: list[Compiled] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # why whole graphs were left to PyTorch
    attention: list[SetAside] = field(default_factory=list)

    def __call__(self, graph: GraphModule, inputs: Sequence[Any], **given: Any) -> Run:
        """Compiles one graph of Dynamo. A failure of ours leaves the graph to PyTorch, with a warning.

        Raises: BadOption, BadSetting; with ``whole`` CannotFuse; anything, with the setting ONEPASS_STRICT.
        """
        options = Options.read(**given)
        if settings.DISABLE.read():
            self.left.append("ONEPASS_DISABLE is set")
            return graph.forward
        if needs_gradients(graph):
            return self.leave(graph, GRADIENTS)
        untouched = _copy(graph)
        try:
            return self.compile(graph, inputs, options)
        except Exception as error:  # noqa: BLE001 - the user's program must run whatever is wrong with ours
            return self.give_up(untouched, error, options)

    def compile(self, graph: GraphModule, inputs: Sequence[Any], options: Options) -> Run:
        """Changes the graph. Raises: whatever goes wrong before the graph is one of ATen ops."""
        outcomes = set_aside(graph)
        made: list[Compiled] = []
        run = to_aten(graph, inputs, partial(self.inference, options=options, made=made))
        if self.keep:
            self.attention += outcomes
            self.compiled += made
        return run

    def inference(
        self, graph: GraphModule, inputs: Sequence[Any], options: Options, made: list[Compiled]
    ) -> Run:
        """Compiles one graph of ATen ops, or runs it as it is."""
        try:
            compiled = compile_graph(graph, options, self.repeatable)
            if self.whole:
                require_whole(compiled.plan, graph, self.whole)
        except Exception as error:  # noqa: BLE001 - as above
            return boxed(self.give_up(graph, error, options))
        made.append(compiled)
        return compiled.run

    def give_up(self, graph: GraphModule, error: Exception, options: Options) -> Run:
        """Leaves a graph to PyTorch after a failure, unless the failure is the user's to see."""
        if isinstance(error, RestartAnalysis):  # no failure: Dynamo captures once more, knowing more
            raise error
        if isinstance(error, _THE_USERS) or options.strict or self.whole:
            raise error
        warnings.warn(LeftToPyTorch.after("a graph", error), stacklevel=2)
        return self.leave(graph, f"failure: {type(error).__name__}: {error}".splitlines()[0])

    def leave(self, graph: GraphModule, reason: str) -> Run:
        """Runs a graph as PyTorch would.

        Raises: CannotFuse where the graph had to become kernels.
        """
        if self.whole:
            raise CannotFuse(self.whole, self.whole, "", (), reason)
        self.left.append(reason)
        return graph.forward


def onepass(graph: GraphModule, inputs: Sequence[Any], **given: Any) -> Run:
    """``torch.compile(model, backend="onepass")``."""
    return Backend(keep=False)(graph, inputs, **given)


def to_aten(graph: GraphModule, inputs: Sequence[Any], compiler: Any) -> Run:
    """A graph of Dynamo as a callable; ``compiler`` gets each graph of ATen ops in it, with its inputs."""
    run: Run = aot_module_simplified(
        graph,
        inputs,
        fw_compiler=compiler,
        inference_compiler=compiler,
        keep_inference_input_mutations=True,
    )
    return run


def compile_graph(graph: GraphModule, options: Options, repeatable: bool = False) -> Compiled:
    """A graph of ATen ops, planned, compiled and ready to run.

    Raises: whatever goes wrong.
    """
    captured = normalize(graph, fit, options.deny, options.strict)
    plan = build(captured.program, hints(graph), fuel=options.fuel)
    return compile_runner(plan, captured, {} if repeatable else in_place(plan))


def needs_gradients(graph: GraphModule) -> bool:
    """Whether anything in a graph of Dynamo is to be differentiated: parameters alone are not, only what uses them.

    Inside a level of forward-mode differentiation everything may be; Dynamo compiles anew where the level changes.
    """
    return forward_ad._current_level >= 0 or any(
        node.target == "requires_grad_" or _has_history(node.meta.get("example_value"))
        for node in graph.graph.nodes
        if node.op not in ("placeholder", "get_attr")
    )


def _has_history(value: Any) -> bool:
    """Whether autograd recorded how a value came about: a view made without gradients only says that it needs one."""
    if isinstance(value, (tuple, list)):
        return any(map(_has_history, value))
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def hints(graph: GraphModule) -> dict[str, int]:
    """Typical values of symbolic sizes: those of the first call."""
    found: dict[str, int] = {}
    for node in graph.graph.nodes:
        for s in _sizes(node.meta.get("val")) if node.op == "placeholder" else ():
            if isinstance(s, torch.SymInt) and not s.node.is_nested_int() and _is_hinted(s):
                found[str(s.node.expr)] = int(s.node.hint)
    return found


def _is_hinted(s: torch.SymInt) -> bool:
    return s.node.expr.is_Symbol and s.node.hint is not None


def _sizes(fake: Any) -> Sequence[Any]:
    if isinstance(fake, torch.Tensor):
        return (*fake.shape, *fake.stride()) if fake.layout is torch.strided else fake.shape
    return (fake,) if isinstance(fake, torch.SymInt) else ()


def _copy(graph: GraphModule) -> GraphModule:
    """The same modules and tensors under a graph of its own."""
    return GraphModule(graph, copy.deepcopy(graph.graph))


def boxed(run: Run) -> Run:
    """A callable that takes its arguments in a list and empties it, as AOTAutograd wants it."""

    def take(arguments: list[Any]) -> Any:
        taken = list(arguments)
        arguments.clear()
        return run(*taken)

    take._boxed_call = True  # type: ignore[attr-defined]
    return take
