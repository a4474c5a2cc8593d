"""The pipeline: a program of ATen ops becomes fused kernels and calls. Each stage's output stays on the result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from onepass.analysis.resources import Resources
from onepass.codegen.emit import Source, emit
from onepass.device import Device, of
from onepass.ir.cluster import Call, Cluster, Program
from onepass.ir.kernel import Kernel
from onepass.plan.bias import hand_over
from onepass.plan.choose import Candidate, Schedule, candidates, kernel_name
from onepass.plan.cost import Hints, Traffic, number, traffic
from onepass.plan.decision import Decision
from onepass.plan.merge import merge
from onepass.plan.predict import Rates, predicted_us
from onepass.plan.schedules.row_stream import StreamSchedule
from onepass.plan.spaces import lay_out
from onepass.runtime.calibration import rates_of
from onepass.runtime.load import at_once, binary, cpu_kernel


@dataclass(frozen=True)
class Built:
    """One kernel of a built program.

    ``source`` is what the compiler gets, ``traffic`` the bytes and operations at typical sizes, ``predicted_us`` what
    the time model makes of them, by this device's measured rates where `onepass calibrate` ran.
    """

    cluster: Cluster
    kernel: Kernel
    schedule: Schedule
    source: Source
    device: Device
    traffic: Traffic
    elements: int  # of the cluster's space, at typical sizes
    predicted_us: float
    resources: Resources | None = None  # of CUDA kernels once compiled

    @property
    def spill_bytes(self) -> int:
        """What ptxas moved to local memory; 0 where nothing was compiled."""
        return self.resources.spill_bytes if self.resources else 0


@dataclass(frozen=True)
class Plan:
    """A whole graph, planned: items in execution order, each cluster with its kernel."""

    program: Program
    items: tuple[Built | Call, ...]
    decisions: tuple[Decision, ...]
    hints: Hints
    stage_us: dict[str, float] = field(default_factory=dict)

    @property
    def kernels(self) -> tuple[Built, ...]:
        return tuple(i for i in self.items if isinstance(i, Built))

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(i for i in self.items if isinstance(i, Call))


class NotLowered(Exception):
    """A cluster that passed the planner's tests and still has no kernel: a fault of the planner."""


def build(program: Program, hints: Hints, *, fuel: int | None = None, run: bool = True) -> Plan:
    """Plans a program and, with ``run``, compiles and loads its kernels.

    Raises: NoCompiler, CompileError from the compilers; NotLowered is a fault of onepass.
    """
    times: dict[str, float] = {}
    with _timed(times, "merge"):
        merged = merge(program, hints, fit, fuel)
    with _timed(times, "bias"):
        planned = hand_over(merged, program, fit, fuel)
    with _timed(times, "compile"):
        clusters = [item for item in planned.items if isinstance(item, Cluster)]
        rates = {name: rates_of(of(name)) for name in {cluster.device for cluster in clusters}}
        made = at_once([partial(one, cluster, hints, rates[cluster.device], run) for cluster in clusters])
        kernels = iter(made)
        items = [next(kernels) if isinstance(item, Cluster) else item for item in planned.items]
    return Plan(program, tuple(items), planned.decisions, hints, times)


def fit(cluster: Cluster) -> str:
    """Empty when a schedule takes the cluster, else why none does."""
    found = candidates_of(cluster)
    return found if isinstance(found, str) else ""


def candidates_of(cluster: Cluster) -> list[Candidate] | str:
    layout = lay_out(cluster)
    return layout if isinstance(layout, str) else candidates(cluster, layout, of(cluster.device))


def walked(built: Built) -> tuple[Kernel, Schedule]:
    """A kernel of the same cluster whose blocks wait for none, for one that `row_grid` has: its rows are read again."""
    found = candidates_of(built.cluster)
    assert not isinstance(found, str)
    return next((k, s) for k, s in found if isinstance(s, StreamSchedule))


def one(cluster: Cluster, hints: Hints, rates: Rates, compiled: bool) -> Built:
    """One cluster with its first schedule or, compiled for a GPU, with its first that spills least."""
    found = candidates_of(cluster)
    if isinstance(found, str):
        raise NotLowered(f"{cluster.origins}: {found}")
    device = of(cluster.device)
    work = traffic(cluster, hints)
    tried: list[Built] = []
    for kernel, schedule in found:
        source = emit(kernel, schedule, kernel_name(schedule, cluster))
        resources = binary(source, device.arch).resources if compiled and device.kind == "cuda" else None
        elements = number(cluster.space.numel, hints)
        predicted = predicted_us(kernel, schedule, work, device, rates, hints, resources)
        tried.append(Built(cluster, kernel, schedule, source, device, work, elements, predicted, resources))
        if tried[-1].spill_bytes == 0:
            break
    best = min(tried, key=lambda b: b.spill_bytes)
    if compiled and device.kind == "cpu":
        cpu_kernel(best.source)
    return best


@contextmanager
def _timed(times: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    times[stage] = (time.perf_counter() - start) * 1e6
