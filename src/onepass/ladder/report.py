"""A study as sentences, tables and one JSON document, in English or Chinese."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from onepass.ladder import predict
from onepass.ladder.compiled import Compiled
from onepass.ladder.emulated import Finding
from onepass.ladder.measure import ROUNDS
from onepass.ladder.rungs import Rung
from onepass.ladder.study import Studied, Study
from onepass.runtime.nvrtc import version

SCHEMA = "onepass.ladder/1"
# A measured step this near its prediction is as predicted: the spread of a median and of a guess.
NEAR = 0.10


@cache
def languages() -> Mapping[str, Mapping[str, str]]:
    """The sentences of each language."""
    return tomllib.loads((Path(__file__).parent / "strings.toml").read_text())


@dataclass(frozen=True)
class Judgement:
    """What became of a learner's kernel."""

    met: bool
    sentence: str


@dataclass(frozen=True)
class Report:
    """A study told in a language."""

    study: Study
    language: str = "en"

    def say(self, name: str, /, **values: Any) -> str:
        return languages()[self.language][name].format(**values)

    # Sentences

    def verdict(self) -> str:
        """The sentence that stands first."""
        study = self.study
        odd = ", ".join(f"{e.rung.name} ({e.cols})" for e in study.surprises)
        stated = self.say("not_stated", names=odd) if odd else self.say("all_stated")
        return self.say(
            "measured_verdict" if study.is_measured else "static_verdict",
            title=self.title,
            device=study.machine.name,
            rows=study.rows,
            best=self._best(),
            stated=stated,
        )

    @property
    def title(self) -> str:
        ladder = self.study.ladder
        return ladder.title_zh if self.language == "zh" else ladder.title

    def _best(self) -> str:
        """The quickest rung of the first rung's operator at the longest rows, of those that are always right."""
        cols = max(self.study.cols)
        first = self.study.ladder.rungs[0].operator
        measured = self.study.is_measured
        able = [
            e
            for e in self.study.at(cols)
            if e.us and e.rung.operator == first and (e.measured is not None) == measured
        ]
        if not able:
            return self.say("best_none", cols=cols, operator=first)
        right = [e for e in able if not e.failed] or able
        best = min(reversed(right), key=lambda e: e.us or 0.0)  # of equals the highest
        share, of = self._share(best)
        return self.say(
            "best", cols=cols, name=best.rung.name, operator=first, us=best.us, share=share, of=of
        )

    def _share(self, entry: Studied) -> tuple[float, str]:
        if entry.measured is not None:
            return entry.measured.of_roof, self.say("best_roof")
        gbps = entry.ideal_bytes / (entry.us or 1.0) / 1e3
        return gbps / self.study.machine.datasheet_gbps, self.say("best_datasheet")

    def lines(self) -> list[str]:
        """The machine, the rooflines, and what was not measured."""
        study, machine = self.study, self.study.machine
        found = [
            self.say(
                "machine" if machine.fp32_gflops else "machine_no_ridge",
                device=machine.name,
                gbps=machine.datasheet_gbps,
                tflops=(machine.fp32_gflops or 0.0) / 1e3,
                ridge=machine.ridge,
            )
        ]
        if not study.is_measured:
            found.append(self.say("not_measured"))
        found.append(
            self.say(
                "times_are",
                gbps=machine.device.bandwidth_gbps,
                wait=predict.WAIT_US,
                barrier=predict.BARRIER_US,
            )
        )
        return [*found, *self._substitutes()]

    def _substitutes(self) -> list[str]:
        names: dict[str, dict[str, None]] = {}
        for e in self.study.entries:
            for c in e.compiled:
                if c.arch != self.study.machine.device.arch:
                    names.setdefault(c.arch, {})[e.rung.name] = None
        return [self.say("compiled_for", arch=a, names=", ".join(n)) for a, n in names.items()]

    def rooflines(self, cols: int) -> list[str]:
        """AI beside the ridge, once an operator."""
        ridge = self.study.machine.ridge
        found = {}
        for e in self.study.at(cols):
            elements = e.rows * e.cols
            found[e.operator.name] = self.say(
                "at_no_ridge" if ridge is None else "at" if e.intensity < ridge else "at_right",
                cols=cols,
                operator=e.operator.name,
                flops=e.flops / elements,
                nbytes=e.ideal_bytes / elements,
                ai=e.intensity,
                ridge=ridge,
            )
        return list(found.values())

    def outcome(self, entry: Studied) -> str:
        """Right, wrong on what, or stopped where."""
        faults = [f for f in entry.findings if f.fault]
        if faults:
            f = faults[0]
            return self.say("stopped" if f.line else "stopped_nowhere", kind=f.kind, line=f.line)
        if entry.failed:
            return self.say("wrong_on", data=", ".join(entry.failed))
        return self.say("right")

    def _brief(self, entry: Studied) -> str:
        """The outcome for a cell of the table."""
        faults = [f for f in entry.findings if f.fault]
        if faults:
            return self.say("brief_stopped", kind=faults[0].kind, line=faults[0].line or "?")
        return self.say("brief_wrong", data=", ".join(entry.failed)) if entry.failed else self.say("right")

    def sentence(self, entry: Studied) -> str:
        """The verdict on one rung."""
        rung = entry.rung
        name, changed = rung.name, rung.says("changed", self.language)
        if entry.skipped:
            return self.say("verdict_skipped", name=name, why=entry.skipped)
        if not entry.fit:
            return self.say("verdict_wrong", name=name, changed=changed, outcome=self.outcome(entry))
        text = self._measured(entry) if entry.measured else self._predicted(entry)
        if rung.fails:
            text += " " + self.say("known_failure", data=", ".join(rung.fails))
        if correction := rung.says("correction", self.language):
            text += " " + self.say("correction", text=correction)
        return text

    def _predicted(self, entry: Studied) -> str:
        rung, found, relative = entry.rung, entry.predicted, self.study.relative(entry)
        assert found is not None
        values = {
            "name": rung.name,
            "changed": rung.says("changed", self.language),
            "us": found.us,
            "bound": self.say(found.bound),
            "below": rung.below,
            "model": relative,
        }
        stated = rung.prediction(entry.cols)
        if relative is None:
            return self.say("verdict_start", **values)
        if stated is None:
            return self.say("verdict_learner", **values)
        return self.say(
            "verdict_static",
            **values,
            stated=stated,
            because=rung.says("because", self.language),
            predicted_for=self.study.ladder.predicted_for,
            device=self.study.machine.name,
        )

    def _measured(self, entry: Studied) -> str:
        rung, found = entry.rung, entry.measured
        assert found is not None
        if found.void:
            return self.say("verdict_void", name=rung.name, why=found.void)
        values = {
            "name": rung.name,
            "changed": rung.says("changed", self.language),
            "us": found.us.median,
            "gbps": found.gbps,
            "datasheet": found.of_datasheet,
            "roof": found.of_roof,
        }
        stated, relative = rung.prediction(entry.cols), self.study.relative(entry)
        if stated is None or relative is None:
            return self.say("verdict_measured_start", **values)
        return self.say(
            "verdict_measured",
            **values,
            stated=stated,
            below=rung.below,
            measured=relative,
            judgement=self._judgement(rung.says("because", self.language), stated, relative),
        )

    def judgement(self, entry: Studied) -> str:
        """What the measurement makes of the prediction; where nothing was measured, what the model says binds the rung."""
        rung, stated, relative = entry.rung, entry.rung.prediction(entry.cols), self.study.relative(entry)
        if rung.wrong:
            return self.say("never_run")
        if entry.measured is not None and entry.measured.void:
            return self.say("verdict_void", name=rung.name, why=entry.measured.void)
        if entry.measured is None:
            return self.say("bound_by", bound=self.say(entry.predicted.bound)) if entry.predicted else ""
        shares = self.say(
            "shares",
            datasheet=entry.measured.of_datasheet,
            roof=entry.measured.of_roof,
            gbps=entry.measured.gbps,
        )
        if stated is None or relative is None:
            return shares
        return f"{self._judgement(rung.says('because', self.language), stated, relative)}; {shares}"

    def _judgement(self, because: str, stated: float, relative: float) -> str:
        if abs(relative / stated - 1) <= NEAR:
            return self.say("as_predicted")
        return self.say("better") if relative > stated else self.say("worse", because=because)

    def learner(self, asked: float | None) -> Judgement:
        """The judgement of the last rung against the one below it, at the row length where it does worst."""
        name, mine = self.study.ladder.rungs[-1].name, self.study.learners
        allowed = set(self.study.ladder.rung(mine[0].rung.below).fails) if mine else set()
        bad = next((e for e in mine if not e.fit or set(e.failed) - allowed), None)
        if bad is not None:
            said = self.say("learner_wrong", name=name, outcome=self._wrong(bad))
            return Judgement(False, f"{said} {self._launched(bad.rung)}".rstrip())
        void = next((e.measured.void for e in mine if e.measured and e.measured.void), "")
        if void:
            return Judgement(False, self.say("verdict_void", name=name, why=void))
        if not mine:
            why = self.study.entries[-1].skipped
            return Judgement(False, self.say("verdict_skipped", name=name, why=why))
        against = mine[0].rung.below
        factors = [f for f in map(self.study.relative, mine) if f is not None]
        if len(factors) < len(mine):
            return Judgement(False, self.say("learner_alone", name=name, against=against))
        factor = min(factors)
        values = {
            "name": name,
            "factor": factor,
            "against": against,
            "how": self.say("how_measured" if self.study.is_measured else "how_modelled"),
        }
        if asked is None:
            return Judgement(True, self.say("learner_free", **values))
        met = factor >= asked
        return Judgement(met, self.say("learner_met" if met else "learner_missed", asked=asked, **values))

    def _launched(self, rung: Rung) -> str:
        """How a learner's kernel was launched, where its file does not say: as the rung it is judged against."""
        usual, own = self.study.ladder.rung(rung.below).launches[0], rung.launches[0]
        if (usual.grid, usual.block) != (own.grid, own.block):
            return ""
        return self.say("learner_launched", against=rung.below, grid=own.grid, block=own.block)

    def _wrong(self, entry: Studied) -> str:
        """On the ordinary data: the first of a ladder's kinds. The others are the ladder's finer points."""
        ordinary = [f for f in entry.findings if f.data == entry.findings[0].data]
        wrong = next((f for f in ordinary if f.error is not None and not f.right), None)
        if wrong is None or any(f.fault for f in entry.findings):
            return self.outcome(entry)
        return self.say("error_of", error=wrong.error, data=wrong.data)

    def claim(self, name: str) -> str:
        """What the source text claims, in a sentence; empty for one that this file has no words for."""
        return languages()[self.language].get(f"claim_{name}", "")

    # Rows of a table

    def header(self) -> list[str]:
        names = [
            "rung",
            "right",
            "regs",
            "spill",
            "shared",
            "occupancy",
            "barriers",
            "memory",
            "moved",
            "time",
            "gbps",
            "share",
        ]
        names += ["roof", "step"] if self.study.is_measured else ["step"]
        return [self.say(f"column_{n}") for n in names]

    def row(self, entry: Studied) -> list[str]:
        """One rung of the table, a text a column."""
        if entry.skipped:
            return [entry.rung.name, self.say("skipped_cell"), *[""] * (len(self.header()) - 2)]
        last, counts, us = entry.compiled[-1], entry.counts, entry.us
        gbps = entry.ideal_bytes / us / 1e3 if us else None
        relative = self.study.relative(entry)
        columns = [
            entry.rung.name,
            self._brief(entry),
            str(max(c.registers for c in entry.compiled)),
            str(sum(c.spill_bytes for c in entry.compiled)),
            str(max(c.shared_bytes for c in entry.compiled)),
            f"{_percent(last.occupied.thread)}/{_percent(last.occupied.warp)}",
            f"{counts.barriers:.3g}" if counts else "–",
            f"{counts.memory_instructions:.5g}" if counts else "–",
            f"{counts.moved_bytes:.0f}" if counts else "–",
            f"{us:.1f}" if us else "–",
            f"{gbps:.0f}" if gbps else "–",
            f"{gbps / self.study.machine.datasheet_gbps:.0%}" if gbps else "–",
        ]
        if self.study.is_measured:
            columns.append(self._of_roof(entry))
        return [*columns, f"{relative:.2f}" if relative else "–"]

    def _of_roof(self, entry: Studied) -> str:
        if entry.measured is None:
            return "–"
        return self.say("void") if entry.measured.void else f"{entry.measured.of_roof:.1%}"

    # JSON

    def to_dict(self) -> dict[str, Any]:
        """The document: schema onepass.ladder/1."""
        study, machine = self.study, self.study.machine
        return {
            "schema": SCHEMA,
            "verdict": self.verdict(),
            "ladder": study.ladder.name,
            "title": self.title,
            "language": self.language,
            "device": {
                "name": machine.name,
                "arch": machine.device.arch,
                "datasheet_gbps": machine.datasheet_gbps,
                "bandwidth_gbps": machine.device.bandwidth_gbps,
                "fp32_gflops": machine.fp32_gflops,
                "ridge": machine.ridge,
                "source": machine.device.source,
            },
            "rows": study.rows,
            "measured": study.is_measured,
            "run": _run(study) if study.is_measured else None,
            "not_measured": [] if study.is_measured else ["time", "effective bandwidth", "share of roof"],
            "notes": self.lines(),
            "as_stated": not study.surprises,
            "predictions_for": study.ladder.predicted_for,
            "results": [self._entry(e) for e in study.entries],
        }

    def _entry(self, entry: Studied) -> dict[str, Any]:
        rung, counts, found = entry.rung, entry.counts, entry.predicted
        return {
            "rung": rung.name,
            "file": rung.file or None,
            "operator": rung.operator,
            "cols": entry.cols,
            "below": rung.below or None,
            "skipped": entry.skipped or None,
            "verdict": self.sentence(entry),
            "changed": rung.says("changed", self.language),
            "because": rung.says("because", self.language),
            "claims": list(rung.claims),
            "correction": rung.says("correction", self.language) or None,
            "known_failures": list(rung.fails),
            "wrong_on_purpose": bool(rung.wrong),
            "as_stated": entry.as_stated,
            "correctness": [_finding(f) for f in entry.findings],
            "kernels": [_kernel(c) for c in entry.compiled],
            "executed_a_row": counts
            and {
                "barriers": counts.barriers,
                "memory_instructions": counts.memory_instructions,
                "lane_accesses": counts.lane_accesses,
                "moved_bytes": counts.moved_bytes,
            },
            "ideal_bytes": entry.ideal_bytes,
            "kernel_bytes": entry.kernel_bytes or None,
            "unfused_bytes": entry.unfused_bytes,
            "moved_bytes": counts and int(counts.moved_bytes * entry.rows),
            "flops": entry.flops,
            "intensity": entry.intensity,
            "ridge": self.study.machine.ridge,
            "bound": _bound(entry, self.study.machine.ridge),
            "stated_relative": rung.prediction(entry.cols),
            "relative": self.study.relative(entry),
            "predicted": found and {"us": found.us, "bound": found.bound, "limits_us": dict(found.limits)},
            "measured": _measured(entry),
        }


def _run(study: Study) -> dict[str, Any]:
    """How and with what it was measured."""
    return {
        "protocol": "cold, interleaved, each call after an untimed one of its own",
        "rounds": ROUNDS,
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "compiler": version(study.machine.device.arch),
    }


def _bound(entry: Studied, ridge: float | None) -> str | None:
    if ridge is None:
        return None
    return "memory" if entry.intensity < ridge else "compute"


def _percent(share: float) -> str:
    """With two places only where they matter: 1.56 %, 50 %."""
    return f"{share:.2%}" if share < 0.1 else f"{share:.0%}"


def _measured(entry: Studied) -> dict[str, Any] | None:
    found = entry.measured
    if found is None:
        return None
    counts = not found.void
    return {
        "us": found.us.to_dict() if counts else None,
        "iqr_us": found.us.iqr if counts else None,
        "gbps": found.gbps if counts else None,
        "of_datasheet": found.of_datasheet if counts else None,
        "of_roof": found.of_roof if counts else None,
        "roof_gbps": found.roof_gbps,
        "error": found.error if found.error != float("inf") else None,
        "void": found.void or None,
        "samples_us": list(found.samples_us),
    }


def _finding(f: Finding) -> dict[str, Any]:
    finite = f.error is not None and f.error != float("inf")
    return {
        "data": f.data,
        "rows": f.rows,
        "cols": f.cols,
        "right": f.right,
        "error_of_allowed": f.error if finite else None,
        "fault": f.kind or None,
        "line": f.line,
        "message": f.fault or None,
    }


def _kernel(c: Compiled) -> dict[str, Any]:
    return {
        "kernel": c.step.kernel,
        "grid": c.step.grid,
        "block": c.step.block,
        "compiled_for": c.arch,
        "registers": c.registers,
        "spill_bytes": c.spill_bytes,
        "shared_bytes": c.shared_bytes,
        "blocks_resident": c.occupied.blocks,
        "thread_occupancy": c.occupied.thread,
        "warp_occupancy": c.occupied.warp,
    }
