"""Where a model's time goes, what fusing its memory-bound ops should save, and what it then saves."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch._C._autograd import DeviceType
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._python_dispatch import TorchDispatchMode

from onepass.analysis.report import STAYS, Report
from onepass.analysis.traffic import eager_bytes, memory_bound, ops_inside
from onepass.api import kernel_rows, report
from onepass.capture.backend import Backend, Run
from onepass.capture.options import Options
from onepass.capture.runner import Compiled
from onepass.runtime.counters import COUNTERS
from onepass.runtime.timer import Spread, interleaved, timed

Kind = Literal["matmul", "attention", "memory-bound", "other"]

# Passes over a graph op by op: a median of five is steady to some per cent.
PASSES = 5
# The widest a forecast may be: its larger end twice the smaller.
WIDEST = 2.0
# How far from a kernel's time its forecast is expected to be: what is asked of the time model for nine kernels in ten
# (benchmarks/cases.toml), on a CPU, whose kernels it knows less well, twice. Faster still it is where the kernel before
# left its result in the last cache: that cache's bandwidth is about half as much again as memory's.
SLOWER: Mapping[str, float] = {"cuda": 1.25, "cpu": 2.0}
FASTER = 1.5
# Two measurements of one small kernel differ by as much, on a GPU. Units: µs.
RESOLUTION_US = 2.0
# Quartiles of a step further apart than this are of a machine that had other work.
STEADY = 1.5
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

    def held(self, blur_us: float = 0.0) -> bool:
        """Whether the forecast holds what was saved, give or take so much a launch."""
        least, most = self.saving_us
        blurred = blur_us * self.count
        return self.saved_us is not None and least - blurred <= self.saved_us <= most + blurred

    @property
    def verdict(self) -> str:
        """Measured beside forecast, and why where they differ."""
        if self.saved_us is None or self.measured_us is None:
            return "not measured"
        if self.held():
            return "as forecast"
        most = self.saving_us[1]
        if self.held(RESOLUTION_US):
            return f"as forecast, within {RESOLUTION_US:g} µs a launch: smaller than can be measured"
        if self.saved_us > most:
            return "more: the kernel is faster than a stream of as many bytes: they stay in a cache"
        slowest = self.eager_us - self.saving_us[0]
        rate, forecast = (self.fused_bytes / us / 1e3 for us in (self.measured_us, slowest))
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
            "held": self.held(),
            "held_within_resolution": self.held(RESOLUTION_US),
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
    """A model on the present device.

    ``busy_us`` is what a step of eager's spends on each kind of op, ``ops`` the ops of the captured graphs, which are not
    always eager's: a mask that eager never makes may be among them. Without ``contenders`` it is a forecast.
    """

    device: str
    busy_us: Mapping[Kind, float]
    step_us: float  # of eager's
    ops: tuple[OpTime, ...]
    groups: tuple[Group, ...]
    contenders: tuple[Contender, ...]
    left: tuple[str, ...]  # why graphs stay with PyTorch
    subject: str = ""  # what was profiled, with the shapes of its inputs
    id: str = field(default="")
    report: Report | None = field(default=None, repr=False)  # the plan, its kernels with what they took

    def __post_init__(self) -> None:
        forecast = [[g.kernel, g.count, g.eager_bytes, g.fused_bytes, *g.saving_us] for g in self.groups]
        digest = hashlib.sha256(json.dumps([self.subject, self.device, forecast]).encode()).hexdigest()
        object.__setattr__(self, "id", self.id or digest[:12])

    def contender(self, name: str) -> Contender:
        """Raises: StopIteration where there is none of the name."""
        return next(c for c in self.contenders if c.name == name)

    @property
    def shares(self) -> dict[str, float]:
        """Parts of a step of eager's: by kind of op, and what is left, the host's time between them; they add up to 1."""
        busy = sum(self.busy_us.values())
        whole = max(self.step_us, busy)
        return {kind: us / whole for kind, us in self.busy_us.items()} | {"gaps": 1 - busy / whole}

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
        """How many groups the forecast held for within the resolution, and of how many that were measured."""
        measured = [g for g in self.groups if g.saved_us is not None]
        return sum(g.held(RESOLUTION_US) for g in measured), len(measured)

    @property
    def ratio(self) -> float:
        """How many times as fast as eager's a step of onepass's was; 1 where none was measured."""
        return self.step_us / self.contender("onepass").step_us.median if self.contenders else 1.0

    @property
    def disturbed(self) -> bool:
        """Whether other work on the machine shows: steps far apart, or a forecast above a whole step."""
        apart = any(c.step_us.high > STEADY * c.step_us.low for c in self.contenders)
        return apart or self.saving_us[1] > self.step_us

    @property
    def worth_it(self) -> bool:
        """Whether a step gets noticeably faster: as measured or, before that, by the forecast."""
        return self.ratio >= 1 + WORTH if self.contenders else self.saving_us[1] >= WORTH * self.step_us

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form, schema onepass.profile/1."""
        return {
            "schema": "onepass.profile/1",
            "id": self.id,
            "device": self.device,
            "step_us": self.step_us,
            "busy_us": dict(self.busy_us),
            "shares": self.shares,
            "captured_memory_bound_us": sum(op.us for op in self.ops if op.kind == "memory-bound"),
            "forecast_saving_us": list(self.saving_us),
            "saved_us": self.saved_us,
            "resolution_us": RESOLUTION_US,
            "worth_it": self.worth_it,
            "disturbed": self.disturbed,
            "groups": [g.to_dict() for g in self.groups],
            "contenders": [c.to_dict() for c in self.contenders],
            "left": list(self.left),
        }


# -------------------------------------------------------------------------------


@dataclass
class Recorded:
    """A graph of ATen ops that was compiled, what it was first called with, and how often a step calls it."""

    graph: GraphModule
    compiled: Compiled
    arguments: list[Any] = field(default_factory=list)
    calls: int = 0


@dataclass
class Recording(Backend):
    """A back end that keeps each graph of ATen ops it compiled."""

    repeatable: bool = True  # a kernel is timed where it stands
    recorded: list[Recorded] = field(default_factory=list)

    def inference(
        self, graph: GraphModule, inputs: Sequence[Any], options: Options, made: list[Compiled]
    ) -> Run:
        before = len(made)
        kept = GraphModule(graph, copy.deepcopy(graph.graph))
        run = super().inference(graph, inputs, options, made)
        if len(made) == before:
            return run
        record = Recorded(kept, made[-1])
        self.recorded.append(record)

        def take(arguments: list[Any]) -> Any:
            record.calls += 1
            if not record.arguments:
                record.arguments = list(arguments)
            return run(arguments)

        take._boxed_call = True  # type: ignore[attr-defined]
        return take

    def of_a_step(self, step: Callable[[], Any]) -> tuple[Recorded, ...]:
        """Runs a step, and gives the graphs that run in it."""
        for record in self.recorded:
            record.calls = 0
        step()
        return tuple(replace(record) for record in self.recorded if record.calls)


def profile(
    model: Callable[..., Any],
    inputs: Sequence[Any],
    others: Sequence[str] = (),
    rounds: int = 9,
    told: Callable[[str], None] = lambda what: None,
    made: Callable[[Profile], Any] = lambda forecast: None,
) -> Profile:
    """Runs a model in eager, op by op, and with onepass; ``others`` are back ends of ``torch.compile`` to time beside.

    Without gradients. ``told`` hears what is being done, ``made`` gets the forecast before any kernel is timed.
    """
    device = _device(inputs, model)
    buffers = list(model.buffers()) if isinstance(model, torch.nn.Module) else []
    before = [b.clone() for b in buffers]  # a model in training counts its steps
    with torch.no_grad():
        try:
            return _profile(model, inputs, device, others, rounds, told, made)
        finally:
            for buffer, was in zip(buffers, before, strict=True):
                buffer.copy_(was)


def _profile(
    model: Callable[..., Any],
    inputs: Sequence[Any],
    device: torch.device,
    others: Sequence[str],
    rounds: int,
    told: Callable[[str], None],
    made: Callable[[Profile], Any],
) -> Profile:
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
    graphs = backend.of_a_step(run["onepass"])
    foreseen = replace(
        _forecast(graphs, run["eager"], device, rounds), subject=_subject(model, inputs), id=""
    )
    foreseen = replace(foreseen, left=tuple(backend.left))
    made(foreseen)
    told("kernels where they stand")
    measured = measure(foreseen.groups, graphs, run["onepass"], device)
    if foreseen.groups and all(g.measured_us is None for g in measured):
        foreseen = replace(foreseen, left=(*foreseen.left, NOT_RUN))
    told("whole steps in turn")
    steps = interleaved(run, rounds, device)
    contenders = tuple(
        Contender(name, Spread.of([s * 1e6 for s in steps[name]]), first[name], _peak(run[name], device))
        for name in run
    )
    step_us = contenders[0].step_us.median
    told_of = _report(graphs, foreseen.left, measured)
    return replace(foreseen, groups=measured, contenders=contenders, step_us=step_us, report=told_of)


# Why nothing was measured: Dynamo compiles a function a few times and then leaves it to eager.
NOT_RUN = (
    "a later step launched none of the kernels: the model is compiled anew at each step, until Dynamo stops"
)


def _subject(model: Callable[..., Any], inputs: Sequence[Any]) -> str:
    name = getattr(model, "__qualname__", type(model).__qualname__)
    return f"{name}({', '.join(str(tuple(x.shape)) for x in inputs if isinstance(x, torch.Tensor))})"


def _report(graphs: Sequence[Recorded], left: Sequence[str], groups: Sequence[Group]) -> Report:
    """The plans as `explain` has them, each kernel with what a launch of its group took."""
    plans = [graph.compiled.plan for graph in graphs]
    found = report(plans, [[] for _ in plans], [f"{STAYS}{why}" for why in left])
    keys = [(k.name, k.rows, k.cols, k.dtypes, k.bytes_read + k.bytes_written) for k in found.kernels]
    group = dict(zip(dict.fromkeys(keys), groups, strict=True))
    took = [None if g.measured_us is None else g.measured_us / g.count for g in (group[key] for key in keys)]
    return replace(
        found,
        kernels=tuple(replace(k, measured_us=us) for k, us in zip(found.kernels, took, strict=True)),
    )


def _forecast(
    graphs: Sequence[Recorded], eager: Callable[[], Any], device: torch.device, rounds: int
) -> Profile:
    ops = [
        {name: replace(op, us=op.us * g.calls) for name, op in op_times(g.graph, g.arguments, device).items()}
        for g in graphs
    ]
    groups = tuple(forecasts(graphs, ops, device))
    step_us = 1e6 * statistics.median(timed(eager, device)[1] for _ in range(rounds))
    flat = tuple(op for graph in ops for op in graph.values())
    return Profile(_name(graphs, device), busy_us(eager, device), step_us, flat, groups, (), ())


def _device(inputs: Sequence[Any], model: Any) -> torch.device:
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    tensors += list(model.parameters())[:1] if isinstance(model, torch.nn.Module) else []
    return tensors[0].device if tensors else torch.device("cpu")


def _name(graphs: Sequence[Recorded], device: torch.device) -> str:
    names = dict.fromkeys(k.device.name for graph in graphs for k in graph.compiled.plan.kernels)
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
    arguments = _unshared(graph, arguments)
    if device.type == "cpu":
        clocked = _Clocked(graph)
        clocked.run(*arguments)
        return clocked.us
    return _cuda_pass(graph, arguments)


def _unshared(graph: GraphModule, arguments: Sequence[Any]) -> list[Any]:
    """The arguments with copies of those that the graph writes to: they are the user's."""
    written = {
        n.args[0]
        for n in graph.graph.nodes
        if isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable and n.args
    }
    places = [n for n in graph.graph.nodes if n.op == "placeholder"]
    return [
        x.clone() if n in written and isinstance(x, torch.Tensor) else x
        for n, x in zip(places, arguments, strict=True)
    ]


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
    recorded = _recorded(lambda: _Marked(graph).run(*arguments))
    # The profiler gives a mark twice: on the host with its kernels' time, and on the device from the first to the last.
    marked = [e for e in recorded if e.name.startswith(_MARK) and e.device_type == DeviceType.CPU]
    return {e.name.removeprefix(_MARK): float(e.device_time_total) for e in marked}


def _recorded(call: Callable[[], Any]) -> Sequence[Any]:
    """The profiler's events of a call, on the host and the GPU."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as recorded:
        call()
        torch.cuda.synchronize()
    return recorded.events() or ()


def busy_us(step: Callable[[], Any], device: torch.device) -> dict[Kind, float]:
    """What a step spends on each kind of ATen op: its kernels' time on a GPU, its own time on a CPU; a median of passes."""
    busy = _busy_cpu if device.type == "cpu" else _busy_cuda
    passes = [busy(step) for _ in range(PASSES + 1)][1:]
    return {kind: statistics.median(p[kind] for p in passes) for kind in get_args(Kind)}


def _busy_cuda(step: Callable[[], Any]) -> dict[Kind, float]:
    found: dict[Kind, float] = dict.fromkeys(get_args(Kind), 0.0)
    for e in _recorded(step):
        if e.device_type == DeviceType.CPU and e.name.startswith("aten::"):
            found[kind_of_name(e.name)] += float(sum(k.duration for k in e.kernels))
    return found


def _busy_cpu(step: Callable[[], Any]) -> dict[Kind, float]:
    clock = _Clock()
    with clock:
        step()
    return clock.us


class _Clock(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Times each ATen op that is more than a view, by its kind."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.us: dict[Kind, float] = dict.fromkeys(get_args(Kind), 0.0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.us[kind_of_name(func.name())] += (time.perf_counter() - start) * 1e6
        return result


_COMPUTE = re.compile(
    r"(?:^|_)(?:b?addb?mm|b?mm|addmv|mv|dot|linear|matmul|einsum)(?:_|$)|conv(?:olution)?(?:[123]d|_|$)"
)


# Neither arithmetic that is one matmul nor memory alone: whole layers as one op, recurrences, transforms, solvers, sorting.
_OTHER = re.compile(
    r"_fwd$|rnn|lstm|(?:^|_)gru|fft|linalg_(?!vector_norm)|eig|svd|cholesky|solve|sort|topk|unique|cdist|bilinear"
)


def kind_of_name(name: str) -> Kind:
    """What an ATen op spends its time on, by its name: ``aten::addmm``, with or without an overload."""
    name = name.removeprefix("aten::").partition(".")[0]
    if "attention" in name:
        return "attention"
    if _OTHER.search(name):
        return "other"
    return "matmul" if _COMPUTE.search(name) else "memory-bound"


def kind_of(node: Node) -> Kind | None:
    """What an op of the graph spends its time on; None for what makes no tensor."""
    if node.op != "call_function" or not isinstance(node.meta.get("val"), (torch.Tensor, tuple, list)):
        return None
    return kind_of_name(_target(node).removeprefix("onepass."))


def _target(node: Node) -> str:
    return str(node.target).removeprefix("aten.")


# Forecast and measurement


def forecasts(
    graphs: Sequence[Recorded], ops: Sequence[dict[str, OpTime]], device: torch.device
) -> Iterator[Group]:
    """What fusing should save, before any kernel has been timed; equal kernels of all layers together.

    A kernel takes about what the time model says (`plan/predict.py`), and at most its bytes at the rate at which eager's
    ops move theirs. ``ops`` are those of a step.
    """
    groups: dict[Any, Group] = {}
    gap = 0.0 if device.type == "cpu" else gap_us(device)
    for graph, times in zip(graphs, ops, strict=True):
        plan, count = graph.compiled.plan, graph.calls
        eager = {op.name: eager_bytes(op, plan.hints) for op in memory_bound(plan.program.eager)}
        # An op that several kernels compute again counts for the first, as its bytes do.
        unspent = dict(times)
        for built, row in zip(plan.kernels, kernel_rows(plan, []), strict=True):
            inside = [n for n in ops_inside(built.cluster) if n in eager]
            spent = sum(unspent.pop(n).us for n in inside if n in unspent)
            moved = row.bytes_read + row.bytes_written
            about = built.predicted_us - gap
            as_eager = moved * spent / row.eager_bytes / count if row.eager_bytes else 0.0
            fused = count * about / FASTER, count * max(about * SLOWER[device.type], as_eager)
            sizes = count * row.eager_bytes, count * moved
            group = Group(row.name, row.ops, count, *sizes, spent, fused)
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


def gap_us(device: torch.device) -> float:
    """What the time model counts of a small kernel that the profiler does not: the gap to the one before. Units: µs."""
    backend = Recording()
    small = torch.ones(64, 1024, device=device)
    step = partial(torch.compile(torch.relu, backend=backend), small)
    step()
    passes = [_kernel_pass(backend.compiled, step, device) for _ in range(PASSES + 1)][1:]
    (built,) = (k for program in backend.compiled for k in program.plan.kernels)
    return max(0.0, built.predicted_us - statistics.median(sum(times.values()) for times in passes))


def measure(
    forecast: Sequence[Group], graphs: Sequence[Recorded], step: Callable[[], Any], device: torch.device
) -> tuple[Group, ...]:
    """The groups with what their kernels took in a step, measured as the ops were: the median of `PASSES` passes."""
    programs = [graph.compiled for graph in graphs]
    passes = [_kernel_pass(programs, step, device) for _ in range(PASSES + 1)][1:]
    took: dict[Any, float | None] = {}
    for at, program in enumerate(programs):
        for name, row in zip(program.launchers, kernel_rows(program.plan, []), strict=True):
            key = (row.name, row.rows, row.cols, row.dtypes, row.bytes_read + row.bytes_written)
            samples = [times.get((at, name), math.inf) for times in passes]
            known = took.get(key, 0.0)
            lost = known is None or math.inf in samples
            took[key] = None if lost else (known or 0.0) + statistics.median(samples)
    return tuple(replace(g, measured_us=us) for g, us in zip(forecast, took.values(), strict=True))


# A kernel in a program: the program's number, and the launcher's name in its scope.
Launch = tuple[int, str]


def _kernel_pass(
    programs: Sequence[Compiled], step: Callable[[], Any], device: torch.device
) -> dict[Launch, float]:
    """The time of each kernel in a step, all of its launches together; infinite where the profiler lost one. Units: µs."""
    launches: list[tuple[Launch, str, float]] = []  # in their order: the kernel, its name, the host's µs
    with ExitStack() as stack:
        for at, program in enumerate(programs):
            stack.callback(program.scope.update, {name: program.scope[name] for name in program.launchers})
            for name, built in zip(program.launchers, program.plan.kernels, strict=True):
                launch = program.scope[name]
                program.scope[name] = partial(_noted, launch, launches, (at, name), built.source.name)
        events = () if device.type == "cpu" else _recorded(step)
        if device.type == "cpu":
            step()
    found: dict[Launch, float] = {}
    if device.type == "cpu":
        for key, _, us in launches:
            found[key] = found.get(key, 0.0) + us
        return found
    ran: dict[str, list[float]] = {}
    for e in sorted(events, key=lambda e: e.time_range.start):
        if e.device_type == DeviceType.CUDA:
            ran.setdefault(e.name, []).append(float(e.time_range.elapsed_us()))
    asked: dict[str, list[Launch]] = {}
    for key, kernel, _ in launches:
        asked.setdefault(kernel, []).append(key)
    for kernel, keys in asked.items():
        times = ran.get(kernel, [])
        for i, key in enumerate(keys):
            found[key] = found.get(key, 0.0) + (times[i] if len(times) == len(keys) else math.inf)
    return found


def _noted(
    launch: Callable[..., None],
    launches: list[tuple[Launch, str, float]],
    key: Launch,
    name: str,
    *values: int,
) -> None:
    before, start = COUNTERS.launched, time.perf_counter()
    launch(*values)
    if COUNTERS.launched > before:
        launches.append((key, name, (time.perf_counter() - start) * 1e6))
