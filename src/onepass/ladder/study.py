"""A ladder studied on a device: compiled, run on the CPU, predicted, and measured where the device is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from onepass.analysis.roofline import intensity
from onepass.errors import NotAtThisShape
from onepass.ladder.compiled import Compiled, compile_step
from onepass.ladder.emulated import Counts, Finding, run
from onepass.ladder.expression import evaluate
from onepass.ladder.machine import Machine
from onepass.ladder.measure import Measured, measure
from onepass.ladder.predict import Prediction, accesses_a_thread, predict, step_bytes
from onepass.ladder.rungs import Ladder, Operator, Rung
from onepass.ladder.steps import Steps, steps_of
from onepass.runtime.load import at_once

# Rows that the emulator runs: what a block of the widest packing holds (16 rows of 8 lanes), so that none is padding.
EMULATED_ROWS = 16

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Studied:
    """One rung at one row length. ``skipped`` says why there is nothing else."""

    rung: Rung
    operator: Operator
    rows: int
    cols: int
    skipped: str = ""
    steps: Steps | None = None
    compiled: tuple[Compiled, ...] = ()
    findings: tuple[Finding, ...] = ()
    counts: Counts | None = None
    kernel_bytes: int = 0
    predicted: Prediction | None = None
    measured: Measured | None = None

    @property
    def ideal_bytes(self) -> int:
        return self.operator.ideal_bytes(self.rows, self.cols)

    @property
    def unfused_bytes(self) -> int | None:
        """What one kernel an operation would move, where the operator is several."""
        text = self.operator.unfused_bytes
        return int(evaluate(text, {"rows": self.rows, "cols": self.cols})) if text else None

    @property
    def flops(self) -> int:
        return self.operator.count_flops(self.rows, self.cols)

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return intensity(self.flops, self.ideal_bytes)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the data on which it is wrong."""
        return tuple(dict.fromkeys(f.data for f in self.findings if not f.right))

    @property
    def fit(self) -> bool:
        """Whether it may run on a device: no fault on any data, and right on the ordinary, the first."""
        if self.rung.wrong or not self.findings:
            return False
        ordinary = self.findings[0].data
        return not any(f.fault or (f.data == ordinary and not f.right) for f in self.findings)

    @property
    def as_stated(self) -> bool:
        """Whether it is right where rungs.toml says so, wrong where it says that, and in the way it says."""
        if self.skipped:
            return True
        kinds = {f.kind for f in self.findings if not f.right}
        if self.measured is not None and self.measured.void:
            return False
        # One column is its own mean: what a known failure needs, two numbers to lose each other's digits, is not there.
        missed = set(self.rung.fails) - set(self.failed) if self.cols > 1 or self.rung.wrong else set()
        return not missed and set(self.failed) <= set(self.rung.fails) and kinds <= {self.rung.wrong}

    @property
    def us(self) -> float | None:
        """Measured where it is, else predicted; None where what was measured is void. Units: µs."""
        if self.measured is not None:
            return None if self.measured.void else self.measured.us.median
        return self.predicted.us if self.predicted else None


@dataclass(frozen=True)
class Study:
    """All rungs at all row lengths."""

    ladder: Ladder
    machine: Machine
    rows: int
    entries: tuple[Studied, ...]
    is_measured: bool

    def at(self, cols: int) -> list[Studied]:
        return [e for e in self.entries if e.cols == cols]

    @property
    def cols(self) -> list[int]:
        return list(dict.fromkeys(e.cols for e in self.entries))

    def below(self, entry: Studied) -> Studied | None:
        """The rung below, at the same row length."""
        return next((e for e in self.at(entry.cols) if e.rung.name == entry.rung.below), None)

    def relative(self, entry: Studied) -> float | None:
        """Speed relative to the rung below: both measured, or both predicted; None where one has no time that counts."""
        below = self.below(entry)
        if below is None or not below.us or not entry.us:
            return None
        alike = (below.measured is None) == (entry.measured is None)
        return below.us / entry.us if alike else None

    @property
    def learners(self) -> list[Studied]:
        """A learner's kernel at every row length that it takes."""
        return [e for e in self.entries if e.rung is self.ladder.rungs[-1] and not e.skipped]

    @property
    def surprises(self) -> list[Studied]:
        return [e for e in self.entries if not e.as_stated]


def study(
    ladder: Ladder,
    machine: Machine,
    rows: int,
    cols: Sequence[int],
    *,
    on_device: bool,
    progress: Progress = lambda _: None,
) -> Study:
    """Study every rung of a ladder.

    Raises: BadRung, NoNvrtc, NoCompiler; what measuring raises.
    """
    entries: list[Studied] = []
    for c in cols:
        progress(f"{ladder.name}: {c} columns")
        ran = at_once([partial(_static, ladder, rung, machine, rows, c) for rung in ladder.rungs])
        at = _predicted(ladder, ran, machine)
        if on_device:
            progress(f"{ladder.name}: {c} columns, measuring")
            at = _measured(ladder, at, machine, rows, c)
        entries += at
    return Study(ladder, machine, rows, tuple(entries), on_device)


def _static(ladder: Ladder, rung: Rung, machine: Machine, rows: int, cols: int) -> Studied:
    """Everything that needs no GPU."""
    operator = ladder.operators[rung.operator]
    try:
        steps = steps_of(ladder, rung, rows, cols, machine.device)
    except NotAtThisShape as error:
        if ladder.is_learners and rung is ladder.rungs[-1]:
            raise  # what was asked for can't be judged
        return Studied(rung, operator, rows, cols, skipped=error.problem)
    compiled = tuple(compile_step(s, machine) for s in steps.steps)
    few = steps_of(ladder, rung, EMULATED_ROWS, cols, machine.device)
    ran = [run(ladder, rung, few, data, EMULATED_ROWS, cols) for data in ladder.data]
    if over := rows % EMULATED_ROWS:  # a last block that is not full, as the one that would be launched
        uneven = EMULATED_ROWS + over
        some = steps_of(ladder, rung, uneven, cols, machine.device)
        ran.append(run(ladder, rung, some, ladder.data[0], uneven, cols))
    counts = next((c for _, c in ran if c is not None), None)
    moved = sum(step_bytes(s, operator, steps.scratch, rows, cols) for s in steps.steps)
    findings = tuple(f for f, _ in ran)
    return Studied(rung, operator, rows, cols, "", steps, compiled, findings, counts, moved)


def _predicted(ladder: Ladder, entries: Sequence[Studied], machine: Machine) -> list[Studied]:
    """The entries with their predictions; a learner's waits as its threads access beside the rung it is judged against."""
    first = entries[0]
    beside = _accesses(first) if ladder.is_learners else None
    return [_predict(e, machine, beside if e is not first else None) if e.fit else e for e in entries]


def _predict(e: Studied, machine: Machine, beside: float | None) -> Studied:
    assert e.steps is not None
    resident, steps = e.compiled[-1].occupied, e.steps.steps
    found = predict(
        e.rung, e.operator, steps, e.kernel_bytes, e.counts, resident, machine, e.rows, e.cols, beside
    )
    return replace(e, predicted=found)


def _accesses(e: Studied) -> float | None:
    return accesses_a_thread(e.steps.steps[-1], e.counts, e.rows) if e.steps else None


def _measured(
    ladder: Ladder, entries: Sequence[Studied], machine: Machine, rows: int, cols: int
) -> list[Studied]:
    """The entries with their times. What is wrong or faulty never runs on a device."""
    able: dict[str, Any] = {e.rung.name: (e.rung, e.steps, e.compiled) for e in entries if e.fit}
    times: Mapping[str, Measured] = measure(ladder, able, machine, rows, cols)
    return [_with(e, times.get(e.rung.name)) for e in entries]


def _with(entry: Studied, measured: Measured | None) -> Studied:
    return replace(entry, measured=measured)
