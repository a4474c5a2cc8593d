"""The public face: `explain` and `fuse`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar
from uuid import uuid4

import torch

from onepass.analysis.flow import Cut, Flow, flow
from onepass.analysis.occupancy import occupancy
from onepass.analysis.report import STAYS, DecisionRow, KernelRow, LeftRow, Report, Totals
from onepass.analysis.roofline import Roof, bound
from onepass.analysis.traffic import eager_bytes, memory_bound, number, ops_inside, values
from onepass.build import Built, Plan
from onepass.capture.backend import Backend
from onepass.capture.measure import kernel_times
from onepass.capture.whole import user_line
from onepass.errors import CannotFuse, OnepassError
from onepass.plan.choose import kernel_name
from onepass.plan.decision import REASONS
from onepass.runtime.calibration import cpu_name, model_roof, roofs_of
from onepass.runtime.disassemble import machine_code

P = ParamSpec("P")
R = TypeVar("R")

# Combinations of floats that a fused function stays compiled for; the oldest goes first, so that a float which never
# comes again does not fill memory.
MOST_FLOATS = 64


def explain(f: Callable[..., Any], *inputs: Any, run: bool = False) -> Report:
    """What a function or module runs as under ``torch.compile(f, backend="onepass")`` with these inputs.

    It is compiled and called once, without gradients; where they would be needed as things are, a note says so. With
    ``run`` each kernel is timed too.

    Example:
        >>> import torch, onepass
        >>> report = onepass.explain(lambda x: torch.relu(x) + 1, torch.randn(8, 32))
        >>> report.totals.eager_bytes, report.totals.fused_bytes
        (4096, 2048)
    """
    backend = Backend(repeatable=run)
    compiled = torch.compile(f, backend=backend)
    measured: list[list[float]] = []
    # Dynamo counts every back end that it met a function with, and stops asking one after a few.
    unlimited = torch._dynamo.config.patch(
        recompile_limit=sys.maxsize, accumulated_recompile_limit=sys.maxsize
    )
    with torch.no_grad(), unlimited:
        compiled(*inputs)
        if run:
            measured = kernel_times(backend.compiled, lambda: compiled(*inputs))
    plans = [program.plan for program in backend.compiled]
    measured = measured or [[] for _ in plans]
    notes = [f"{STAYS}{reason}" for reason in backend.left]
    if torch.is_grad_enabled() and _requires_grad(f, inputs):
        notes.append(
            "explained without gradients: called as here, outside torch.no_grad() or torch.inference_mode(), this "
            "needs gradients and all of it runs in PyTorch"
        )
    notes += [_attention_note(found) for found in backend.attention]
    return report(plans, measured, notes)


def report(plans: Sequence[Plan], measured_us: Sequence[list[float]], notes: Sequence[str]) -> Report:
    """The report of planned graphs. ``measured_us`` has a list for each plan, empty where nothing was timed."""
    kernels: list[KernelRow] = []
    flows: list[Flow] = []
    for plan, times in zip(plans, measured_us, strict=True):
        rows = kernel_rows(plan, times)
        flows.append(plan_flow(plan, rows, len(kernels)))
        kernels += rows
    return Report(
        device=_device(plans),
        kernels=tuple(kernels),
        decisions=tuple(DecisionRow(**d.__dict__) for plan in plans for d in plan.decisions),
        left=tuple(row for plan in plans for row in left_rows(plan)),
        totals=_sum([totals(plan) for plan in plans]),
        notes=tuple(notes),
        reasons=REASONS,
        flows=tuple(flows),
        roofs=roofs(plans),
    )


def plan_flow(plan: Plan, rows: Sequence[KernelRow], first_kernel: int = 0) -> Flow:
    """The data flow of a plan; ``first_kernel`` is how many kernels the report has before this plan's ``rows``."""
    cuts: dict[tuple[str, str], Cut] = {}
    for d in plan.decisions:
        if d.verdict == "kept":  # two items with several tensors between them have a decision for each
            first = cuts.get(d.between, Cut(d.reason, d.detail, 0, 0.0))
            cuts[d.between] = replace(
                first, bytes_saved=first.bytes_saved + d.bytes_saved, us_saved=first.us_saved + d.us_saved
            )
    items = [item.cluster if isinstance(item, Built) else item for item in plan.items]
    return flow(plan.program, items, [row.name for row in rows], cuts, plan.hints, first_kernel)


def roofs(plans: Sequence[Plan]) -> tuple[Roof, ...]:
    """What is known of the device of the first kernel, and what the time model takes it to reach."""
    device = next((k.device for plan in plans for k in plan.kernels), None)
    if device is None:
        return ()
    known = roofs_of(cpu_name() if device.kind == "cpu" else device.name)
    return (*known, model_roof(device))


def _requires_grad(f: Callable[..., Any], inputs: tuple[Any, ...]) -> bool:
    module = getattr(f, "__self__", f)
    own = list(module.parameters()) if isinstance(module, torch.nn.Module) else []
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in (*inputs, *own))


def _attention_note(found: Any) -> str:
    where = "set aside" if found.set_aside else "left as it is"
    return f"attention {where}, mask {found.mask}: {found.reason}"


def _device(plans: Sequence[Plan]) -> str:
    names = dict.fromkeys(k.device.name for plan in plans for k in plan.kernels)
    return ", ".join(names) or "cpu"


def kernel_rows(plan: Plan, measured_us: list[float]) -> list[KernelRow]:
    """The kernels of a plan. An op computed in several kernels counts in eager's bytes of the first."""
    eager = {op.name: eager_bytes(op, plan.hints) for op in memory_bound(plan.program.eager)}
    rows = []
    for i, built in enumerate(plan.kernels):
        moved = sum(eager.pop(name, 0) for name in ops_inside(built.cluster))
        rows.append(_kernel_row(built, plan.hints, moved, measured_us[i] if measured_us else None))
    return rows


def _kernel_row(built: Built, hints: Mapping[str, int], moved: int, measured_us: float | None) -> KernelRow:
    cluster, kernel = built.cluster, built.kernel
    cols = max(number(kernel.cols, hints), 1)
    rows = values(cluster, "row", hints) if cluster.reduces else built.elements // cols
    registers, spilled, occupied = _resources(built)
    return KernelRow(
        name=kernel_name(built.schedule, cluster),
        ops=cluster.origins,
        rows=rows,
        cols=cols,
        dtypes=tuple(dict.fromkeys(t.dtype.short for t in cluster.tensors.values())),
        schedule=built.schedule.family,
        launch=built.schedule.explain(),
        bytes_read=built.traffic.read_bytes,
        bytes_written=built.traffic.written_bytes,
        eager_bytes=moved,
        flops=built.traffic.flops,
        registers=registers,
        spill_bytes=spilled,
        occupancy=occupied,
        predicted_us=built.predicted_us,
        measured_us=measured_us,
        bound=bound(built.traffic, built.device),
        source=built.source.text,
        read_code=None
        if built.device.kind == "cpu"
        else partial(machine_code, built.source, built.device.arch),
    )


def _resources(built: Built) -> tuple[int, int, float] | tuple[None, None, None]:
    """Registers a thread, spilled bytes and occupancy; nothing on the CPU."""
    found, threads = built.resources, getattr(built.schedule, "threads", None)
    if found is None or threads is None:
        return None, None, None
    occupied = occupancy(found.registers, threads, found.shared_bytes, built.device)
    return found.registers, found.spill_bytes, occupied


def left_rows(plan: Plan) -> list[LeftRow]:
    """Calls that stay with PyTorch and move or compute something."""
    eager = {op.name: eager_bytes(op, plan.hints) for op in plan.program.eager}
    return [
        LeftRow(call.target, call.bound, call.reason, eager.get(call.name, 0))
        for call in plan.calls
        if call.bound in ("compute", "memory")
    ]


def totals(plan: Plan) -> Totals:
    """A plan before and after."""
    eager, left = memory_bound(plan.program.eager), left_rows(plan)
    remaining = sum(row.nbytes for row in left if row.bound == "memory")
    return Totals(
        eager_bytes=sum(eager_bytes(op, plan.hints) for op in eager),
        fused_bytes=sum(built.traffic.bytes for built in plan.kernels) + remaining,
        eager_kernels=len(eager),
        fused_kernels=len(plan.kernels),
        aten_calls=len(left),
        aten_memory_bound_bytes=remaining,
    )


def _sum(parts: list[Totals]) -> Totals:
    return Totals(**{name: sum(getattr(p, name) for p in parts) for name in Totals.__dataclass_fields__})


def fuse(f: Callable[P, R]) -> Callable[P, R]:
    """A function that runs as onepass kernels entirely, or raises.

    A Python float is a constant of the kernels: each new value compiles them anew. What changes from call to call is
    better given as a tensor. Inside a compiled function ``f`` is a part of that.

    Raises: CannotFuse, naming the user's line, where something inside can't become part of a kernel.

    Example:
        >>> import torch, onepass
        >>> @onepass.fuse
        ... def scaled(x, w):
        ...     return torch.nn.functional.silu(x) * w
        >>> scaled(torch.ones(2, 3), torch.zeros(3)).sum().item()
        0.0
    """
    name = getattr(f, "__qualname__", type(f).__name__)
    backend = Backend(whole=name, keep=False)
    by_floats: dict[tuple[str, ...], Callable[P, R]] = {}

    def fused(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return f(*args, **kwargs)
        floats = tuple(repr(v) if type(v) is float else "" for v in (*args, *kwargs.values()))
        known = by_floats.get(floats)
        if known is not None:
            try:
                return _whole(name, known, *args, **kwargs)
            except (CannotFuse, torch._dynamo.exc.FailOnRecompileLimitHit):
                pass  # maybe for what Dynamo remembers of other calls: it makes a float that changed a tensor of float64
        fresh = _compiled_alone(f, backend)
        result = _whole(name, fresh, *args, **kwargs)
        if len(by_floats) >= MOST_FLOATS:
            by_floats.pop(next(iter(by_floats)), None)
        by_floats[floats] = fresh
        return result

    return fused if isinstance(f, torch.nn.Module) else wraps(f)(fused)


def _compiled_alone(f: Callable[P, R], backend: Backend) -> Callable[P, R]:
    """A compiled function of which Dynamo remembers nothing: it keeps what it saw by a function's file, line and name."""

    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        return f(*args, **kwargs)

    alone.__code__ = alone.__code__.replace(co_name=f"alone_{uuid4().hex}")
    return torch.compile(alone, backend=backend, fullgraph=True)


def _whole(name: str, compiled: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls a compiled function; what Dynamo says of it is told as what can't be fused."""
    try:
        return compiled(*args, **kwargs)
    except torch._dynamo.exc.Unsupported as error:
        raise _unsupported(name, error) from error
    except torch._dynamo.exc.BackendCompilerFailed as error:
        if isinstance(error.inner_exception, OnepassError):
            raise error.inner_exception from None
        raise


def _unsupported(name: str, error: torch._dynamo.exc.Unsupported) -> CannotFuse:
    """Dynamo could not follow the function: its own words, and the user's line."""
    text = str(error)
    where = user_line("".join(error.real_stack.format()) if error.real_stack else "")
    explanation = re.search(r"Explanation: (.+)", text)
    reason = " ".join(
        [text.strip().splitlines()[0].rstrip("."), *([f"({explanation[1]})"] if explanation else [])]
    )
    return CannotFuse(name, where or name, "", (), reason)


__all__ = ["Report", "explain", "fuse"]
