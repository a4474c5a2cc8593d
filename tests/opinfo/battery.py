"""Samples through the back end, many at once: captured, planned, compiled together, run, judged."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from functorch.compile import aot_function, make_boxed_func
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from harness.together import Planned, compiled_for_cpu, compiled_for_cuda, planned, poisoned
from onepass.errors import CompileError
from onepass.ops.table import WRITES_BACK
from opinfo.entries import Sample, copied
from opinfo.judge import DECOMPOSITIONS, Called, called, judge, leaves

# What may become of a sample. `kernels`: all that memory bounds ran in generated kernels. `nothing`: views, and results
# without elements. `raises`: eager and the back end both refuse it.
STATES = ("kernels", "left", "nothing", "raises", "wrong")
SHOWN = 3  # failures that a line of a log quotes


@dataclass(frozen=True)
class Outcome:
    """What became of a sample: one of STATES, why, and the worst error in units of what was allowed."""

    sample: Sample
    state: str
    reason: str = ""
    share: float = 0.0


@dataclass(frozen=True)
class Pending:
    """A sample whose graph is planned, and what eager gives for it."""

    sample: Sample
    case: Planned
    eager: Called | Exception


def outcomes(batch: Iterable[Sample], threads: int = 2, device: str = "cpu") -> list[Outcome]:
    """One for each sample, in order. ``threads`` compile for the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated calls among the samples
        met = [plan(sample, device) for sample in batch]
        cases = [m.case for m in met if isinstance(m, Pending)]
        with compiled_for_cpu(cases, threads, "-O0") if device == "cpu" else compiled_for_cuda(cases):
            return [m if isinstance(m, Outcome) else finish(m) for m in met]


def plan(sample: Sample, device: str = "cpu") -> Pending | Outcome:
    """A sample up to its kernels, or what became of it before."""
    moved = sample.on(device)
    eager = eagerly(moved)
    inputs = [copied(t) for t in moved.tensors]
    try:
        case = planned(capture(moved), inputs)
    except Exception as error:  # noqa: BLE001 - what can't be captured is reported, whatever it is
        if isinstance(eager, Exception):
            return Outcome(sample, "raises")
        return Outcome(sample, "left", f"capture: {_first_line(error)}")
    return Pending(sample, case, eager)


def capture(sample: Sample) -> GraphModule:
    """The graph that the back end is given for a sample, without Dynamo before it.

    AOTAutograd takes twice as long as `make_fx`, and the graph differs only where ops write to something: those it makes
    functional.
    """

    def flat(*tensors: torch.Tensor) -> list[Any]:
        return leaves(sample.function()(*tensors))

    with torch.no_grad():
        graph = make_fx(flat, tracing_mode="fake")(*sample.tensors)
    return functional(flat, sample) if any(map(_writes, graph.graph.nodes)) else graph


def functional(function: Callable[..., Any], sample: Sample) -> GraphModule:
    """The graph that AOTAutograd makes."""
    graphs: list[GraphModule] = []

    def stop(*arguments: Any) -> Any:
        raise _Captured

    def keep(graph: GraphModule, inputs: Sequence[Any]) -> Any:
        graphs.append(graph)
        return make_boxed_func(stop)

    run = aot_function(
        function, fw_compiler=keep, inference_compiler=keep, keep_inference_input_mutations=True
    )
    with torch.no_grad(), suppress(_Captured):
        run(*map(copied, sample.tensors))
    return graphs[0]


def _writes(node: Node) -> bool:
    """Whether a node writes to an operand; batch norm's schema does not say so."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema and schema.is_mutable) or "batch_norm" in str(node.target)


class _Captured(Exception):
    """The graph is there; it need not run."""


def eagerly(sample: Sample) -> Called | Exception:
    """PyTorch's own results, or what it raises."""
    try:
        return called(sample.function(), sample.tensors).on_host()
    except Exception as error:  # noqa: BLE001 - whatever it is, the back end must refuse too
        return error


def finish(pending: Pending) -> Outcome:
    """A planned sample run and judged."""
    sample, case, eager = pending.sample, pending.case, pending.eager
    try:
        found = Called(leaves(poisoned(case)), case.inputs).on_host()
    except Exception as error:  # noqa: BLE001 - a failure of the run is an outcome
        return Outcome(sample, "raises" if isinstance(eager, Exception) else "wrong", _first_line(error))
    if isinstance(eager, Exception):
        return Outcome(sample, "wrong", f"no error, eager: {_first_line(eager)}")
    verdict = judge(sample, lambda: on_host(sample, case), found, eager)
    if verdict.trouble:
        return Outcome(sample, "wrong", verdict.trouble)
    if left := _left(case):
        return Outcome(sample, "left", "; ".join(left), verdict.share)
    return Outcome(sample, "kernels" if case.plan.kernels else "nothing", "", verdict.share)


def on_host(sample: Sample, case: Planned) -> Planned:
    """A plan for the host's tensors, with the kernels of a CUDA device where that is what ran."""
    if not any(t.is_cuda for t in case.inputs):
        return case
    return planned(capture(sample), sample.tensors, cuda=True)


def _left(case: Planned) -> tuple[str, ...]:
    """The memory-bound work that stayed with ATen, with reasons.

    The copy of a kernel's result into the input that an op writes to is no op of the sample: it computes nothing.
    """
    made = {t for k in case.plan.kernels for t in k.cluster.writes}
    calls = [
        c
        for c in case.plan.calls
        if c.bound == "memory"
        and not c.target.startswith(DECOMPOSITIONS)
        and not (c.target in WRITES_BACK and made & set(c.reads))
    ]
    return tuple(dict.fromkeys(f"{c.target}: {c.reason}" for c in calls if "no elements" not in c.reason))


def _first_line(error: BaseException) -> str:
    if isinstance(error, CompileError):
        lines = [line for line in error.message.splitlines() if "error:" in line]
        return f"CompileError: {lines[0].partition('error: ')[2] if lines else error.message}"
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def summary(found: Sequence[Outcome]) -> dict[str, int]:
    return {state: sum(o.state == state for o in found) for state in STATES}


def line(entry: str, dtype: str, found: Sequence[Outcome]) -> dict[str, Any]:
    """What a log says of an entry's samples of one dtype."""
    left = Counter(o.reason for o in found if o.state == "left")
    wrong = [f"{o.sample.index}: {o.sample.text()}: {o.reason}" for o in found if o.state == "wrong"]
    return {
        "entry": entry,
        "dtype": dtype,
        "samples": len(found),
        **summary(found),
        "worst": float(f"{max((o.share for o in found), default=0.0):.3g}"),
        "reasons": dict(left.most_common()),
        "failures": wrong[:SHOWN],
    }
