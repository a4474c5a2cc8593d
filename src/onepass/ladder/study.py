"""A ladder studied on a device: compiled, run on the CPU, predicted, and measured where the device is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from onepass.analysis.roofline import intensity
from onepass.errors import BadRung
from onepass.ladder.compiled import Compiled, compile_step
from onepass.ladder.emulated import Counts, Finding, run
from onepass.ladder.expression import evaluate
from onepass.ladder.machine import Machine
from onepass.ladder.measure import Measured, measure
from onepass.ladder.predict import Prediction, predict, step_bytes
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
        return tuple(f.data for f in self.findings if not f.right)

    @property
    def as_stated(self) -> bool:
        """Whether it is right where rungs.toml says so, wrong where it says that, and in the way it says."""
        if self.skipped:
            return True
        kinds = {f.kind for f in self.findings if not f.right}
        if self.measured is not None and self.measured.void:
            return False
        return set(self.failed) == set(self.rung.fails) and (
            not self.rung.wrong or kinds == {self.rung.wrong}
        )

    @property
    def us(self) -> float | None:
        """Measured where it is, else predicted. Units: µs."""
        if self.measured is not None:
            return self.measured.us.median
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
        return next(
            (e for e in self.at(entry.cols) if e.rung.name == entry.rung.below and not e.skipped), None
        )

    def relative(self, entry: Studied) -> float | None:
        """Speed relative to the rung below: measured if both are, else of the predicted times."""
        below = self.below(entry)
        if below is None or not below.us or not entry.us or entry.rung.wrong:
            return None
        return below.us / entry.us

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
        at = at_once([partial(_static, ladder, rung, machine, rows, c) for rung in ladder.rungs])
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
    except BadRung as error:
        return Studied(rung, operator, rows, cols, skipped=error.problem)
    compiled = tuple(compile_step(s, machine) for s in steps.steps)
    few = steps_of(ladder, rung, EMULATED_ROWS, cols, machine.device)
    ran = [run(ladder, rung, few, data, EMULATED_ROWS, cols) for data in ladder.data]
    counts = next((c for _, c in ran if c is not None), None)
    moved = sum(step_bytes(s, operator, steps.scratch, rows, cols) for s in steps.steps)
    predicted = None
    if not rung.wrong:
        resident = compiled[-1].occupied
        predicted = predict(rung, operator, steps.steps, moved, counts, resident, machine, rows, cols)
    findings = tuple(f for f, _ in ran)
    return Studied(rung, operator, rows, cols, "", steps, compiled, findings, counts, moved, predicted)


def _measured(
    ladder: Ladder, entries: Sequence[Studied], machine: Machine, rows: int, cols: int
) -> list[Studied]:
    """The entries with their times. What is wrong on purpose never runs on a device."""
    able: dict[str, Any] = {
        e.rung.name: (e.rung, e.steps, e.compiled) for e in entries if e.steps and not e.rung.wrong
    }
    times: Mapping[str, Measured] = measure(ladder, able, machine, rows, cols)
    return [_with(e, times.get(e.rung.name)) for e in entries]


def _with(entry: Studied, measured: Measured | None) -> Studied:
    return replace(entry, measured=measured)
