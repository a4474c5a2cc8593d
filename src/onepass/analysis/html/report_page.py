"""The page of `onepass explain`, whose sections other pages show too: roofline, data flow, kernels, decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from onepass.analysis.fold import fold
from onepass.analysis.html import text
from onepass.analysis.html.code_summary import code_facts
from onepass.analysis.html.page import Fact, Section, page, render, roofline_section, table_section
from onepass.analysis.html.picture import Picture, picture
from onepass.analysis.html.roofline_figure import Dot
from onepass.analysis.machine_code import MachineCode
from onepass.analysis.report import DecisionRow, KernelRow, LeftRow, Report, bound_name
from onepass.analysis.words import IN_ENGLISH, Words

MOST_ROWS = 40  # of decisions of one kind on the page; `report.to_dict()` has them all


@dataclass(frozen=True)
class KernelGroup:
    """Kernels that are the same work in the same way; ``first`` stands for them."""

    anchor: str
    kernels: tuple[KernelRow, ...]

    @property
    def first(self) -> KernelRow:
        return self.kernels[0]

    @property
    def times(self) -> int:
        return len(self.kernels)

    @property
    def moved_bytes(self) -> int:
        return self.first.bytes_read + self.first.bytes_written

    @property
    def eager_bytes(self) -> int:
        return sum(k.eager_bytes for k in self.kernels) // self.times

    @property
    def measured_us(self) -> float | None:
        """The mean of those that were timed."""
        timed = [k.measured_us for k in self.kernels if k.measured_us is not None]
        return sum(timed) / len(timed) if timed else None

    @property
    def code(self) -> MachineCode | str | None:
        return self.first.machine_code

    def facts(self, words: Words) -> list[Fact]:
        """What the card says of the kernel beside its source."""
        k = self.first
        facts = [
            Fact(words("launch"), f"{k.schedule}: {words.phrase(k.launch)}"),
            Fact(words("shape"), f"{k.rows} × {k.cols}"),
            Fact(words("dtypes"), ", ".join(k.dtypes)),
            Fact(words("flops"), f"{k.flops:,}"),
            Fact(words("intensity"), f"{k.arithmetic_intensity:.2f}"),
            Fact(words("bound_by"), bound_name(k.bound, words)),
        ]
        if k.registers is not None:
            occupied = "–" if k.occupancy is None else f"{k.occupancy:.0%}"
            facts += [
                Fact(words("registers_a_thread"), str(k.registers)),
                Fact(words("spilled"), text.nbytes(k.spill_bytes or 0)),
                Fact(words("occupancy_warps"), occupied),
            ]
        return facts

    def code_facts(self, words: Words) -> list[Fact]:
        return code_facts(self.code, words, self.first.spill_bytes)

    @property
    def widths(self) -> list[tuple[str, str, float]]:
        """Bars of predicted and measured time: style, value, share of the longer in percent."""
        times = [("predicted", self.first.predicted_us)]
        times += [("measured", self.measured_us)] if self.measured_us is not None else []
        longest = max(t for _, t in times) or 1.0
        return [(name, text.us(t), 100 * t / longest) for name, t in times]


def kernel_groups(kernels: Sequence[KernelRow]) -> tuple[list[KernelGroup], dict[int, str]]:
    """Equal kernels together, the longest first, and each kernel's place on the page by its place in the report."""
    groups: dict[Any, list[int]] = {}
    for i, k in enumerate(kernels):
        key = (k.name, k.ops, k.rows, k.cols, k.dtypes, k.launch, k.bytes_read, k.bytes_written, k.source)
        groups.setdefault(key, []).append(i)
    ordered = sorted(groups.values(), key=lambda g: -sum(kernels[i].predicted_us for i in g))
    made = [
        KernelGroup(f"kernel-{n}", tuple(kernels[i] for i in group)) for n, group in enumerate(ordered, 1)
    ]
    return made, {i: f"#kernel-{n}" for n, group in enumerate(ordered, 1) for i in group}


def report_page(report: Report, words: Words = IN_ENGLISH) -> str:
    """The page of a report: verdict, roofline, data flow, kernels, decisions, what is left to PyTorch.

    Raises: MissingPackage
    """
    return page(
        "onepass explain",
        report.verdict_in(words),
        _totals(report, words),
        report_sections(report, words),
        words,
    )


def report_sections(report: Report, words: Words) -> list[Section]:
    """What a page says of a report, for pages that say more than that."""
    groups, links = kernel_groups(report.kernels)
    made = [
        roofline_section(report.roofs, [_dot(group) for group in groups], words),
        flow_section(report, links, words),
        Section(
            "kernels", words("kernels"), render("kernels.html.j2", words, groups=groups, bound=bound_name)
        )
        if groups
        else None,
        decisions_section(report, words),
        _left(report.left, words),
        _notes(report, words),
    ]
    return [section for section in made if section is not None]


def _notes(report: Report, words: Words) -> Section | None:
    notes = [words.phrase(note) for note in dict.fromkeys(report.notes)]
    return Section("notes", words("notes"), render("notes.html.j2", words, notes=notes)) if notes else None


def _totals(report: Report, words: Words) -> list[Fact]:
    t = report.totals
    predicted = sum(k.predicted_us for k in report.kernels)
    facts = [
        Fact(words("bytes_before_after"), f"{text.nbytes(t.eager_bytes)} → {text.nbytes(t.fused_bytes)}"),
        Fact(words("kernels_before_after"), f"{t.eager_kernels} → {t.fused_kernels}"),
        Fact(words("kernels_predicted"), text.us(predicted)),
    ]
    timed = [k.measured_us for k in report.kernels if k.measured_us is not None]
    return [*facts, Fact(words("kernels_measured"), text.us(sum(timed)))] if timed else facts


def _dot(group: KernelGroup) -> Dot:
    k, measured = group.first, group.measured_us
    time_us = k.predicted_us if measured is None else measured
    rate = k.flops / time_us / 1000 if time_us else 0.0
    name = f"{k.name} × {group.times}" if group.times > 1 else k.name
    return Dot(name, k.arithmetic_intensity, rate, measured is not None, f"#{group.anchor}")


def flow_section(report: Report, links: dict[int, str], words: Words) -> Section | None:
    """Each graph's picture with equal layers folded, and its cut edges as a list."""
    pictures: list[Picture] = []
    for flow in report.flows:
        if flow.boxes:
            done = sum(len(p.cuts) for p in pictures)
            pictures.append(picture(fold(flow, words), report.reasons, links, words, done))
    if not pictures:
        return None
    cuts = [cut for each in pictures for cut in each.cuts]
    return Section("flow", words("flow"), render("flow.html.j2", words, pictures=pictures, cuts=cuts))


@dataclass(frozen=True)
class DecisionGroup:
    """Decisions about equal pairs; bytes and µs are of all of them."""

    source: str
    target: str
    reason: str
    detail: str
    times: int
    bytes_saved: int
    us_saved: float


def decisions_section(report: Report, words: Words) -> Section | None:
    if not report.decisions:
        return None
    parts = []
    for title, verdict in (("decisions_fused", "fused"), ("decisions_kept", "kept")):
        rows = _decision_groups(d for d in report.decisions if d.verdict == verdict)
        if rows:
            parts.append((words(title), rows[:MOST_ROWS], len(rows) - MOST_ROWS))
    body = render("decisions.html.j2", words, parts=parts, reasons=report.reasons)
    return Section("decisions", words("decisions"), body)


def _decision_groups(decisions: Iterable[DecisionRow]) -> list[DecisionGroup]:
    groups: dict[tuple[str, str, str, str], list[DecisionRow]] = {}
    for d in decisions:
        groups.setdefault((d.source, d.target, d.reason, d.detail), []).append(d)
    made = [
        DecisionGroup(*key, len(same), sum(d.bytes_saved for d in same), sum(d.us_saved for d in same))
        for key, same in groups.items()
    ]
    return sorted(made, key=lambda g: -g.bytes_saved)


def _left(left: Sequence[LeftRow], words: Words) -> Section | None:
    groups: dict[tuple[str, str, str], list[LeftRow]] = {}
    for row in left:
        groups.setdefault((row.op, row.bound, row.reason), []).append(row)
    if not groups:
        return None
    ordered = sorted(groups.items(), key=lambda g: (g[0][1] == "compute", -sum(row.nbytes for row in g[1])))
    rows = [
        (
            op,
            str(len(same)),
            "–" if bound == "compute" else text.nbytes(sum(row.nbytes for row in same)),
            words.phrase(reason) if reason else words("by_design"),
        )
        for (op, bound, reason), same in ordered
    ]
    head = [words(name) for name in ("op", "times", "moved", "why")]
    return table_section("left", words("left"), head, rows, " nnw", words)
