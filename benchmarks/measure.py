"""One point measured: every contender checked, timed in turn with the stream kernels, and checked again."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from baselines import Absent, call_of
from cases import Case, Inputs, Point
from check import Check
from onepass.insight.roof import Roof
from onepass.runtime import timer
from onepass.runtime.timer import Call, Spread
from roof import roofs

Make = Callable[[str, Case, Inputs], Call]
ROOF = "roof"


@dataclass(frozen=True)
class Measured:
    """Samples in µs by contender, those of the best stream kernel as ``roof``, and what went wrong with others."""

    point: Point
    protocol: str
    sets: int
    us: Mapping[str, list[float]]
    roof_bytes: int
    roof_kernel: str
    absent: Mapping[str, str]  # contender → why it has no figure: not here, not for this case
    faults: Mapping[str, str]  # contender → what is wrong with what it computes or does

    def spread(self, contender: str) -> Spread:
        return Spread.of(self.us[contender])

    def bytes_of(self, contender: str) -> int:
        """The ideal bytes; the roof's own are those it moves, without row vectors."""
        return self.roof_bytes if contender == ROOF else self.point.ideal_bytes

    def gbps(self, contender: str) -> float:
        return self.bytes_of(contender) / self.spread(contender).median / 1e3

    @property
    def roof_gbps(self) -> float:
        return self.gbps(ROOF)

    def ratio(self, contender: str, other: str) -> float:
        """How many times faster than another: the median over the pairs of each round."""
        pairs = zip(self.us[other], self.us[contender], strict=True)
        return Spread.of([theirs / own for theirs, own in pairs]).median

    def without(self, contenders: Collection[str]) -> Measured:
        """Leave out some contenders' figures."""
        return replace(self, us={name: us for name, us in self.us.items() if name not in contenders})

    @property
    def others(self) -> list[str]:
        return [name for name in self.us if name not in (ROOF, "onepass")]


def measure(
    point: Point,
    protocol: str,
    rounds: int,
    contenders: Sequence[str],
    device: torch.device,
    make: Make = call_of,
) -> Measured:
    """Measure a point. ``make`` builds a contender's call; a test puts cheats there."""
    run = _Run(point, protocol, device, _sets(point, protocol, device))
    with torch.no_grad():
        run.enter(contenders, make)
        run.time(rounds)
        run.check_again()
    return run.done()


def warm(point: Point, contenders: Sequence[str], device: torch.device) -> None:
    """Run every contender once, so that the compilers' caches hold the point's kernels."""
    inputs = Inputs(point, device, 1)
    for name in contenders:
        try:
            with torch.no_grad():
                call_of(name, point.case, inputs)(0)
        except Exception as e:  # noqa: BLE001  (whatever fails here fails again when measured, and is reported then)
            print(f"{point}: {name}: {type(e).__name__}", flush=True)
    forget()


def forget() -> None:
    """Drop what was compiled and freed memory: points are independent."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _sets(point: Point, protocol: str, device: torch.device) -> int:
    sets = timer.sets_needed(point.case.reads * point.tensor_bytes, device)
    return min(sets, timer.MOST_IN_GRAPH) if protocol == "graph" else sets


class _Run:
    def __init__(self, point: Point, protocol: str, device: torch.device, sets: int) -> None:
        self.point, self.device, self.sets = point, device, sets
        self.graph = protocol == "graph"
        needed = timer.sets_needed(point.case.reads * point.tensor_bytes, device)
        self.protocol = ("graph-cold" if sets >= needed else "graph-warm") if self.graph else protocol
        self.inputs = Inputs(point, device, sets)
        self.check = Check(point, self.inputs)
        self.roofs: dict[str, Roof] = {}
        self.calls: dict[str, Call] = {}
        self.us: dict[str, list[float]] = {}
        self.absent: dict[str, str] = {}
        self.faults: dict[str, str] = {}

    def enter(self, contenders: Sequence[str], make: Make) -> None:
        """Build each contender and see that it computes the case."""
        for name in contenders:
            try:
                call = make(name, self.point.case, self.inputs)
                wrong = self.check.call(call)
            except Absent as e:
                self.absent[name] = str(e)
                continue
            except Exception as e:  # noqa: BLE001  (one contender's failure must not lose the others' figures)
                wrong = _first_line(e)
            if wrong:
                self.faults[name] = wrong
            else:
                self.calls[name] = call
        for roof in roofs(self.point, self.device, self.sets):
            wrong = roof.check()
            if wrong:
                raise RuntimeError(wrong)
            self.roofs[roof.name] = roof

    def time(self, rounds: int) -> None:
        calls = {**{name: r.call for name, r in self.roofs.items()}, **self.calls}
        if self.graph:
            self.time_graphs(calls, rounds)
        else:
            self.check.poison()
            self.us = timer.cold(calls, self.sets, rounds, self.device, self.inspect)

    def time_graphs(self, calls: Mapping[str, Call], rounds: int) -> None:
        graphs: dict[str, timer.Graph] = {}
        for name, call in calls.items():
            try:
                graphs[name] = timer.captured(call, self.sets)
            except Exception as e:  # noqa: BLE001  (as above)
                self.faults[name] = f"not captured in a CUDA graph: {_first_line(e)}"
        self.us = timer.in_graphs(graphs, rounds, self.device)
        for name, graph in graphs.items():
            self.inspect(name, 0, graph.results[0])

    def inspect(self, name: str, index: int, result: object) -> None:
        if name in self.calls and name not in self.faults:
            wrong = self.check.result(result)
            if wrong:
                self.faults[name] = f"when timed: {wrong}"

    def check_again(self) -> None:
        """With new values in the same memory, so that a result kept from before is found out."""
        self.check.renew()
        for name, call in self.calls.items():
            if name not in self.faults:
                wrong = self.check.call(call)
                if wrong:
                    self.faults[name] = f"on new values: {wrong}"

    def done(self) -> Measured:
        best = min(self.roofs, key=lambda name: Spread.of(self.us[name]).median)
        good = {name: self.us[name] for name in self.calls if name not in self.faults and name in self.us}
        return Measured(
            self.point,
            self.protocol,
            self.sets,
            {ROOF: self.us[best], **good},
            self.roofs[best].bytes,
            best,
            self.absent,
            self.faults,
        )


def _first_line(e: BaseException) -> str:
    text = str(e).strip().splitlines()
    return f"{type(e).__name__}: {text[0]}" if text else type(e).__name__
