"""Where a model's time goes, what fusing its memory-bound ops should save, and what it then saves."""

from __future__ import annotations

import copy
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch.fx import GraphModule, Interpreter, Node

from onepass.analysis.report import STAYS, Report
from onepass.analysis.roofline import limits_us
from onepass.analysis.traffic import eager_bytes, memory_bound, ops_inside
from onepass.api import kernel_rows, report
from onepass.build import Built
from onepass.capture.backend import Backend, Run
from onepass.capture.measure import kernel_times
from onepass.capture.options import Options
from onepass.capture.runner import Compiled
from onepass.ops.table import COMPUTE_BOUND
from onepass.runtime.timer import Spread, cold, interleaved, timed

Kind = Literal["matmul", "attention", "memory-bound"]

# Passes over a graph op by op: a median of five is steady to some per cent.
PASSES = 5
# The widest a forecast may be: its larger end twice the smaller.
WIDEST = 2.0
# Of a stream kernel's time with as many bytes a fused kernel takes this much: 0.81 where table rows repeat, 1.09 at most
# where rows are walked in order (22 groups of BERT, GPT-2 and a Llama-style model, one H200, 2026-11-30).
OF_STREAM = 0.8, 1.25
# What a launch adds that no stream of bytes has, and the clock's own step. Units: µs.
RESOLUTION_US = 2.0
# A model that fusing makes less than this much faster is not worth the compilation.
WORTH = 0.03


@dataclass(frozen=True)
class OpTime:
    """One op of eager's, run where it stands in the graph. Units: µs, the median of the passes."""

    name: str
    target: str
    kind: Kind
    us: float


@dataclass(frozen=True)
class Group:
    """Memory-bound ops that become one kernel; equal ones of all layers together.

    Units: µs and bytes of all ``count`` together. ``fused_us`` is the forecast of the kernels' time, soonest first, and
    ``measured_us`` what they took; None until they ran.
    """

    kernel: str
    ops: tuple[str, ...]
    count: int
    eager_bytes: int
    fused_bytes: int
    eager_us: float
    fused_us: tuple[float, float]
    measured_us: float | None = None

    @property
    def saving_us(self) -> tuple[float, float]:
        """The forecast: what fusing saves at least and at most, at most `WIDEST` apart."""
        most = self.eager_us - self.fused_us[0]
        least = self.eager_us - self.fused_us[1]
        return (max(least, most / WIDEST), most) if most > 0 else (least, most)

    @property
    def saved_us(self) -> float | None:
        """What fusing saved."""
        return None if self.measured_us is None else self.eager_us - self.measured_us

    @property
    def verdict(self) -> str:
        """Measured beside forecast, and why where they differ."""
        if self.saved_us is None or self.measured_us is None:
            return "not measured"
        least, most = self.saving_us
        blurred = RESOLUTION_US * self.count
        if least - blurred <= self.saved_us <= most + blurred:
            return "as forecast"
        if self.saved_us > most:
            return "more: the kernel is faster than a stream of as many bytes: they stay in a cache"
        rate, forecast = (self.fused_bytes / us / 1e3 for us in (self.measured_us, self.fused_us[1]))
        return f"less: the kernel moves {rate:.0f} GB/s, the forecast was {forecast:.0f} or more"

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form."""
        return {
            "kernel": self.kernel,
            "ops": list(self.ops),
            "count": self.count,
            "eager_bytes": self.eager_bytes,
            "fused_bytes": self.fused_bytes,
            "eager_us": self.eager_us,
            "forecast_saving_us": list(self.saving_us),
            "measured_us": self.measured_us,
            "saved_us": self.saved_us,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Contender:
    """One way to run a step. Units: µs; seconds to the first result; bytes, None where nothing counts them."""

    name: str
    step_us: Spread
    first_s: float
    peak_bytes: int | None

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form."""
        return {
            "name": self.name,
            "step_us": self.step_us.to_dict(),
            "first_s": self.first_s,
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True)
class Profile:
    """A model on the present device."""

    device: str
    ops: tuple[OpTime, ...]
    groups: tuple[Group, ...]
    contenders: tuple[Contender, ...]
    left: tuple[str, ...]  # why graphs stay with PyTorch
    id: str = field(default="")
    report: Report | None = field(default=None, repr=False)  # the plan, its kernels with what they took

    def __post_init__(self) -> None:
        forecast = [[g.kernel, g.count, g.eager_bytes, g.fused_bytes, *g.saving_us] for g in self.groups]
        digest = hashlib.sha256(json.dumps([self.device, forecast]).encode()).hexdigest()
        object.__setattr__(self, "id", self.id or digest[:12])

    def contender(self, name: str) -> Contender:
        """Raises: StopIteration where there is none of the name."""
        return next(c for c in self.contenders if c.name == name)

    @property
    def step_us(self) -> float:
        """A step of eager's."""
        return self.contender("eager").step_us.median

    @property
    def shares(self) -> dict[str, float]:
        """Parts of a step of eager's: by kind of op, and what is left, the host's time between them; they add up to 1."""
        busy = {kind: sum(op.us for op in self.ops if op.kind == kind) for kind in get_args(Kind)}
        whole = max(self.step_us, sum(busy.values()))
        return {kind: us / whole for kind, us in busy.items()} | {"gaps": 1 - sum(busy.values()) / whole}

    @property
    def saving_us(self) -> tuple[float, float]:
        """The forecast of all groups together."""
        return sum(g.saving_us[0] for g in self.groups), sum(g.saving_us[1] for g in self.groups)

    @property
    def saved_us(self) -> float | None:
        """What the groups saved together."""
        found = [g.saved_us for g in self.groups]
        return None if None in found else sum(s for s in found if s is not None)

    @property
    def held(self) -> tuple[int, int]:
        """How many groups the forecast held for, and of how many that were measured."""
        measured = [g for g in self.groups if g.saved_us is not None]
        return sum(g.verdict == "as forecast" for g in measured), len(measured)

    @property
    def worth_it(self) -> bool:
        return self.saving_us[1] >= WORTH * self.step_us

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form, schema onepass.profile/1."""
        return {
            "schema": "onepass.profile/1",
            "id": self.id,
            "device": self.device,
            "shares": self.shares,
            "forecast_saving_us": list(self.saving_us),
            "saved_us": self.saved_us,
            "groups": [g.to_dict() for g in self.groups],
            "contenders": [c.to_dict() for c in self.contenders],
            "left": list(self.left),
        }


# -------------------------------------------------------------------------------


@dataclass
class Recording(Backend):
    """A back end that keeps each graph of ATen ops it compiled, and what the graph was first called with."""

    repeatable: bool = True  # a kernel is timed where it stands
    graphs: list[GraphModule] = field(default_factory=list)
    arguments: list[list[Any]] = field(default_factory=list)

    def inference(
        self, graph: GraphModule, inputs: Sequence[Any], options: Options, made: list[Compiled]
    ) -> Run:
        before = len(made)
        kept = GraphModule(graph, copy.deepcopy(graph.graph))
        run = super().inference(graph, inputs, options, made)
        if len(made) == before:
            return run
        at = len(self.graphs)
        self.graphs.append(kept)
        self.arguments.append([])

        def take(arguments: list[Any]) -> Any:
            if not self.arguments[at]:
                self.arguments[at] = list(arguments)
            return run(arguments)

        take._boxed_call = True  # type: ignore[attr-defined]
        return take


def profile(
    model: Callable[..., Any],
    inputs: Sequence[Any],
    others: Sequence[str] = (),
    rounds: int = 9,
    told: Callable[[str], None] = lambda what: None,
) -> Profile:
    """Runs a model in eager, op by op, and with onepass; ``others`` are back ends of ``torch.compile`` to time beside.

    Without gradients. ``told`` hears what is being done.
    """
    device = _device(inputs, model)
    with torch.no_grad():
        told("onepass: compiling")
        backend = Recording()
        compiled = torch.compile(model, backend=backend)
        run = {"eager": partial(model, *inputs), "onepass": partial(compiled, *inputs)}
        first = {"eager": timed(run["eager"], device)[1], "onepass": timed(run["onepass"], device)[1]}
        for name in others:
            told(f"{name}: compiling")
            other = torch.compile(model, backend=name)
            run[name] = partial(other, *inputs)
            first[name] = timed(run[name], device)[1]
        told("eager, op by op")
        ops = [
            op_times(graph, given, device)
            for graph, given in zip(backend.graphs, backend.arguments, strict=True)
        ]
        forecast = tuple(forecasts(backend.compiled, ops, device))
        told("kernels where they stand")
        took = kernel_times(backend.compiled, run["onepass"])
        measured = measure(forecast, backend.compiled, took)
        told("whole steps in turn")
        steps = interleaved(run, rounds, device)
        contenders = tuple(
            Contender(name, Spread.of([s * 1e6 for s in steps[name]]), first[name], _peak(run[name], device))
            for name in run
        )
    return Profile(
        _name(backend, device),
        tuple(op for graph in ops for op in graph.values()),
        measured,
        contenders,
        tuple(backend.left),
        report=report(
            [program.plan for program in backend.compiled], took, [f"{STAYS}{why}" for why in backend.left]
        ),
    )


def _device(inputs: Sequence[Any], model: Any) -> torch.device:
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    tensors += list(model.parameters())[:1] if isinstance(model, torch.nn.Module) else []
    return tensors[0].device if tensors else torch.device("cpu")


def _name(backend: Recording, device: torch.device) -> str:
    names = dict.fromkeys(k.device.name for program in backend.compiled for k in program.plan.kernels)
    return ", ".join(names) or str(device)


def _peak(run: Callable[[], Any], device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    timed(run, device)
    return torch.cuda.max_memory_allocated(device)


# Eager, op by op


def op_times(graph: GraphModule, arguments: Sequence[Any], device: torch.device) -> dict[str, OpTime]:
    """Each op of a graph that is more than a view, by its node's name: the median of `PASSES` passes over the graph.

    On CUDA the kernels' own time, by the profiler; on the CPU the call's.
    """
    passes = [_pass(graph, arguments, device) for _ in range(PASSES + 1)][1:]
    found = {}
    for node in graph.graph.nodes:
        kind = kind_of(node)
        if kind is not None:
            us = statistics.median(times.get(node.name, 0.0) for times in passes)
            found[node.name] = OpTime(node.name, _target(node), kind, us)
    return found


def _pass(graph: GraphModule, arguments: Sequence[Any], device: torch.device) -> dict[str, float]:
    if device.type == "cpu":
        clocked = _Clocked(graph)
        clocked.run(*arguments)
        return clocked.us
    return _cuda_pass(graph, arguments)


class _Clocked(Interpreter):
    """Times each call."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.us: dict[str, float] = {}

    def run_node(self, n: Node) -> Any:
        start = time.perf_counter()
        result = super().run_node(n)
        self.us[n.name] = (time.perf_counter() - start) * 1e6
        return result


_MARK = "onepass op "


class _Marked(Interpreter):
    """Marks each call for the profiler."""

    def run_node(self, n: Node) -> Any:
        with torch.profiler.record_function(_MARK + n.name):
            return super().run_node(n)


def _cuda_pass(graph: GraphModule, arguments: Sequence[Any]) -> dict[str, float]:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as recorded:
        _Marked(graph).run(*arguments)
        torch.cuda.synchronize()
    marked = [e for e in recorded.events() or () if e.name.startswith(_MARK)]
    return {e.name.removeprefix(_MARK): float(e.device_time_total) for e in marked if e.device_time_total}


def kind_of(node: Node) -> Kind | None:
    """What an op of the graph spends its time on; None for what makes no tensor."""
    if node.op != "call_function" or not isinstance(node.meta.get("val"), (torch.Tensor, tuple, list)):
        return None
    name = _target(node)
    if "attention" in name:
        return "attention"
    return "matmul" if name.removeprefix("onepass.") in COMPUTE_BOUND else "memory-bound"


def _target(node: Node) -> str:
    return str(node.target).removeprefix("aten.")


# Forecast and measurement


def forecasts(
    programs: Sequence[Compiled], ops: Sequence[dict[str, OpTime]], device: torch.device
) -> Iterator[Group]:
    """What fusing should save, before any kernel has been timed; equal kernels of all layers together.

    A kernel takes about what a stream kernel with as many bytes takes here (`OF_STREAM`), and on a GPU at least its
    instructions; at most its bytes at the rate at which eager's ops move theirs.
    """
    groups: dict[Any, Group] = {}
    for program, times in zip(programs, ops, strict=True):
        plan = program.plan
        eager = {op.name: eager_bytes(op, plan.hints) for op in memory_bound(plan.program.eager)}
        for built, row in zip(plan.kernels, kernel_rows(plan, []), strict=True):
            inside = [n for n in ops_inside(built.cluster) if n in eager]
            spent = sum(times[n].us for n in inside if n in times)
            moved = row.bytes_read + row.bytes_written
            streamed = stream_us(moved, device)
            as_eager = moved * spent / row.eager_bytes if row.eager_bytes else 0.0
            computed = _computed_us(built, device)
            fused = max(OF_STREAM[0] * streamed, computed), max(OF_STREAM[1] * streamed, computed, as_eager)
            group = Group(row.name, row.ops, 1, row.eager_bytes, moved, spent, fused)
            key = (row.name, row.rows, row.cols, row.dtypes, moved)
            groups[key] = _together(groups[key], group) if key in groups else group
    yield from groups.values()


def _together(one: Group, other: Group) -> Group:
    return replace(
        one,
        count=one.count + other.count,
        eager_bytes=one.eager_bytes + other.eager_bytes,
        fused_bytes=one.fused_bytes + other.fused_bytes,
        eager_us=one.eager_us + other.eager_us,
        fused_us=(one.fused_us[0] + other.fused_us[0], one.fused_us[1] + other.fused_us[1]),
    )


def _computed_us(built: Built, device: torch.device) -> float:
    """What the instructions alone take on a GPU; how fast a CPU computes is not known well enough."""
    limits = limits_us(built.traffic, built.device)
    return 0.0 if device.type == "cpu" else max(limits["instructions"], limits["special functions"])


def stream_us(nbytes: int, device: torch.device) -> float:
    """What a copy or an addition that moves so many bytes takes, the quicker, as warm as one leaves them for the next."""
    halves = [torch.ones(max(1, nbytes // 8), device=device) for _ in range(2)]
    thirds = [torch.ones(max(1, nbytes // 12), device=device) for _ in range(3)]
    calls = {
        "copy": lambda _: halves[1].copy_(halves[0]),
        "add": lambda _: torch.add(thirds[0], thirds[1], out=thirds[2]),
    }
    return min(statistics.median(samples) for samples in cold(calls, 1, PASSES, device).values())


def measure(
    forecast: Sequence[Group], programs: Sequence[Compiled], times: Sequence[list[float]]
) -> tuple[Group, ...]:
    """The groups with what their kernels took, in the programs."""
    took: dict[Any, float] = {}
    order = []
    for program, measured in zip(programs, times, strict=True):
        for row in kernel_rows(program.plan, measured):
            key = (row.name, row.rows, row.cols, row.dtypes, row.bytes_read + row.bytes_written)
            if key not in took:
                order.append(key)
            took[key] = took.get(key, 0.0) + (row.measured_us or 0.0)
    return tuple(replace(g, measured_us=took[key]) for g, key in zip(forecast, order, strict=True))
