"""Rungs timed on the present GPU, cold and interleaved, beside the roof of the same mix of reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from onepass.analysis.roofline import MOST_OF_ROOF
from onepass.insight import roof
from onepass.ladder.compiled import Compiled
from onepass.ladder.emulated import inputs_of, judge
from onepass.ladder.launch import load
from onepass.ladder.machine import Machine
from onepass.ladder.rungs import FLOAT_BYTES, Ladder, Operator, Rung
from onepass.ladder.steps import Steps
from onepass.runtime.timer import Call, Spread, cold, sets_needed

ROUNDS = 25


@dataclass(frozen=True)
class Measured:
    """A rung's time at one shape. Units: µs, GB/s of the operator's ideal bytes; ``error`` as in `Finding`."""

    us: Spread
    gbps: float
    of_datasheet: float
    of_roof: float
    roof_gbps: float
    error: float
    right_after: bool  # the result checked again once timing was over
    samples_us: tuple[float, ...] = ()

    @property
    def void(self) -> str:
        """Empty, or why the row does not count."""
        if not self.error <= 1 or not self.right_after:
            return "the result is wrong"
        return "above the measured roof" if self.of_roof > MOST_OF_ROOF else ""


def measure(
    ladder: Ladder,
    rungs: Mapping[str, tuple[Rung, Steps, Sequence[Compiled]]],
    machine: Machine,
    rows: int,
    cols: int,
    rounds: int = ROUNDS,
    place: Place | None = None,
) -> dict[str, Measured]:
    """Time rungs of one shape in one run: one group an operator, since a group shares its inputs and its roof.

    `place` is the present GPU unless a test puts something else there.

    Raises: DriverError, HostTooSlow.
    """
    place = place or Place(torch.device("cuda", torch.cuda.current_device()), load, roofs)
    found: dict[str, Measured] = {}
    for name in dict.fromkeys(rung.operator for rung, _, _ in rungs.values()):
        group = {n: r for n, r in rungs.items() if r[0].operator == name}
        found |= _group(ladder, ladder.operators[name], group, machine, rows, cols, rounds, place)
        if place.device.type == "cuda":
            torch.cuda.empty_cache()
    return found


def _group(
    ladder: Ladder,
    operator: Operator,
    rungs: Mapping[str, tuple[Rung, Steps, Sequence[Compiled]]],
    machine: Machine,
    rows: int,
    cols: int,
    rounds: int,
    place: Place,
) -> dict[str, Measured]:
    sets = sets_needed(operator.reads * rows * cols * FLOAT_BYTES, place.device)
    bench = Bench(ladder, operator, rows, cols, sets, place.device)
    calls = {name: bench.call(steps, place.load(compiled)) for name, (_, steps, compiled) in rungs.items()}
    errors = {name: bench.error(calls[name], steps.chain) for name, (_, steps, _) in rungs.items()}
    streams = place.roofs(bench)
    samples = cold({**calls, **streams}, sets, rounds, place.device)
    roof_us = min(Spread.of(samples[name]).median for name in streams)
    roof_gbps = bench.roof_bytes / roof_us / 1e3
    found = {}
    for name, (_, steps, _) in rungs.items():
        us = Spread.of(samples[name])
        gbps = operator.ideal_bytes(rows, cols) / us.median / 1e3
        again = bench.error(calls[name], steps.chain) <= 1
        found[name] = Measured(
            us,
            gbps,
            gbps / machine.datasheet_gbps,
            gbps / roof_gbps,
            roof_gbps,
            errors[name],
            again,
            tuple(samples[name]),
        )
    return found


class Bench:
    """Inputs and outputs of one operator at one shape: several sets, so that none is in the cache when it is read."""

    def __init__(
        self, ladder: Ladder, operator: Operator, rows: int, cols: int, sets: int, device: torch.device
    ) -> None:
        self.ladder, self.operator, self.rows, self.cols = ladder, operator, rows, cols
        self.device = device
        data = ladder.data[0]
        self.inputs = [inputs_of(operator, data, rows, cols, i, str(device)) for i in range(sets)]
        self.outputs = [torch.empty(rows, cols, device=device) for _ in range(sets)]
        self.name = next(iter(operator.outputs))

    def call(self, steps: Steps, kernels: Sequence[Kernel]) -> Call:
        """The rung on one of the sets. Tensors between its kernels are the same for all: they go out and come back."""
        scratch = {n: torch.empty(size, device=self.device) for n, size in steps.scratch.items()}
        prepared = [
            [k.prepared({**x, self.name: y, **scratch}) for k in kernels]
            for x, y in zip(self.inputs, self.outputs, strict=True)
        ]

        def call(index: int) -> Tensor:
            for kernel in prepared[index]:
                kernel()
            return self.outputs[index]

        return call

    def error(self, call: Call, chain: float) -> float:
        """The largest error on set 0 over what is allowed, of an output that held NaN; infinite if an input changed."""
        self.outputs[0].fill_(float("nan"))
        before = {n: x.clone() for n, x in self.inputs[0].items()}
        result = call(0)
        if any(not torch.equal(x, before[n]) for n, x in self.inputs[0].items()):
            return float("inf")
        return judge(self.ladder, self.operator, chain, self.inputs[0], result)

    @property
    def roof_bytes(self) -> int:
        return (self.operator.reads + self.operator.writes) * self.rows * self.cols // 4 * 4 * FLOAT_BYTES


def roofs(bench: Bench) -> dict[str, Call]:
    """The stream kernels of an operator's mix, each stream as large as its tensors."""
    mix = bench.operator.reads, bench.operator.writes
    found = roof.roofs(*mix, bench.rows * bench.cols * FLOAT_BYTES, bench.device, len(bench.inputs))
    return {f"roof {r.name}": r.call for r in found}


@dataclass(frozen=True)
class Place:
    """Where rungs run: the device, how kernels get there, and the stream kernels of an operator's mix."""

    device: torch.device
    load: Callable[[Sequence[Compiled]], Sequence[Kernel]]
    roofs: Callable[[Bench], dict[str, Call]]


class Kernel(Protocol):
    """A kernel that can be given tensors by name, and then be called again and again."""

    def prepared(self, tensors: Mapping[str, Tensor]) -> Callable[[], None]: ...


def ready(machine: Machine) -> bool:
    """Whether the present GPU is the device that was named."""
    return torch.cuda.is_available() and torch.cuda.get_device_name() == machine.name
