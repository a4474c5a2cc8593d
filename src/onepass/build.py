"""The pipeline: a program of ATen ops becomes fused kernels and calls. Each stage's output stays on the result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from onepass.codegen.emit import Source, emit
from onepass.device import Device, of
from onepass.ir.cluster import Call, Cluster, Program
from onepass.ir.kernel import Kernel
from onepass.plan.choose import Schedule, choose, kernel_name
from onepass.plan.cost import Hints, Traffic, number, time_us, traffic
from onepass.plan.decision import Decision
from onepass.plan.lower import lower
from onepass.plan.merge import merge
from onepass.plan.spaces import lay_out
from onepass.runtime.load import at_once, cpu_kernel


@dataclass(frozen=True)
class Built:
    """One kernel of a built program.

    ``source`` is what the compiler gets, ``traffic`` the bytes and operations at typical sizes, ``predicted_us`` what
    the time model makes of them.
    """

    cluster: Cluster
    kernel: Kernel
    schedule: Schedule
    source: Source
    device: Device
    traffic: Traffic
    elements: int  # of the cluster's space, at typical sizes
    predicted_us: float


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
    with _timed(times, "lower"):
        items = [one(item, hints) if isinstance(item, Cluster) else item for item in merged.items]
    if run:
        with _timed(times, "compile"):
            sources = {i.source.text: i.source for i in items if isinstance(i, Built)}
            at_once([partial(cpu_kernel, source) for source in sources.values()])
    return Plan(program, tuple(items), merged.decisions, hints, times)


def fit(cluster: Cluster) -> str:
    """Empty when a schedule takes the cluster, else why none does."""
    made = one_kernel(cluster)
    if isinstance(made, str):
        return made
    chosen = choose(made, cluster, of(cluster.device))
    return chosen if isinstance(chosen, str) else ""


def one_kernel(cluster: Cluster) -> Kernel | str:
    layout = lay_out(cluster)
    return layout if isinstance(layout, str) else lower(cluster, layout)


def one(cluster: Cluster, hints: Hints) -> Built:
    """One cluster through lowering, choosing and printing."""
    device = of(cluster.device)
    kernel = one_kernel(cluster)
    if isinstance(kernel, str):
        raise NotLowered(f"{cluster.origins}: {kernel}")
    schedule = choose(kernel, cluster, device)
    if isinstance(schedule, str):
        raise NotLowered(f"{cluster.origins}: {schedule}")
    source = emit(kernel, schedule, kernel_name(schedule, cluster))
    work = traffic(cluster, hints)
    return Built(cluster, kernel, schedule, source, device, work, number(cluster.space.numel, hints),
                 time_us(work, device))


@contextmanager
def _timed(times: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    times[stage] = (time.perf_counter() - start) * 1e6


