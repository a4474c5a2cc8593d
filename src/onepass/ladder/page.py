"""A study's page: verdict, roofline, what each step was said to bring beside what it brings, tables, and a card a rung."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.analysis.html.code_summary import code_facts
from onepass.analysis.html.page import (
    Fact,
    Section,
    joined,
    page,
    paragraph,
    ranges,
    render,
    roofline_section,
    table,
)
from onepass.analysis.html.range_figure import Ranged
from onepass.analysis.html.roofline_figure import Dot
from onepass.analysis.machine_code import MachineCode
from onepass.analysis.roofline import Roof, datasheet_roof
from onepass.analysis.words import Words
from onepass.ladder.compiled import Compiled
from onepass.ladder.report import Report
from onepass.ladder.rungs import Rung
from onepass.ladder.study import Studied
from onepass.runtime.disassemble import disassemble


@dataclass(frozen=True)
class Code:
    """One kernel of a rung: what its machine code holds, or why that was not read."""

    name: str
    code: MachineCode | str
    facts: list[Fact]


@dataclass(frozen=True)
class Card:
    """A rung in words."""

    anchor: str
    name: str
    changed: str
    facts: list[Fact]
    head: list[str]
    rows: list[list[str]]
    because: str
    known: list[str]  # what it is known to fail, and what it corrects
    claims: list[Fact]
    codes: list[Code]
    source: str


def ladder_page(report: Report, words: Words, verdict: str = "") -> str:
    """The page of a study; ``verdict`` in place of the ladder's own, where a learner's kernel was judged.

    Raises: MissingPackage
    """
    study = report.study
    sections = [
        roofline_section(_roofs(report), _dots(report), words),
        _steps(report, words),
        *(_table(report, cols, words) for cols in study.cols),
        Section(
            "rungs",
            report.say("page_rungs"),
            render("rungs.html.j2", words, cards=_cards(report, words), say=report.say),
        ),
    ]
    told = "\n".join([verdict or report.verdict(), *report.lines()])
    return page("onepass ladder", told, _facts(report, words), [s for s in sections if s is not None], words)


def _facts(report: Report, words: Words) -> list[Fact]:
    study, machine = report.study, report.study.machine
    rate = "" if machine.fp32_gflops is None else f", {machine.fp32_gflops / 1e3:.1f} TFLOP/s"
    return [
        Fact(report.say("page_ladder"), report.title),
        Fact(report.say("page_device"), machine.name),
        Fact(report.say("page_rows"), f"{study.rows:,}"),
        Fact(words("roof_datasheet"), f"{machine.datasheet_gbps:,.0f} GB/s{rate}"),
        Fact(report.say("page_ridge"), "–" if machine.ridge is None else f"{machine.ridge:.1f} FLOP/B"),
    ]


def _roofs(report: Report) -> list[Roof]:
    study = report.study
    sheet = datasheet_roof(study.machine.card)
    reached = [e.measured.roof_gbps for e in study.entries if e.measured is not None]
    measured = [Roof("measured", max(reached), None, report.say("page_roof"))] if reached else []
    return [*([sheet] if sheet else []), *measured]


def _dots(report: Report) -> list[Dot]:
    """Every rung that has a time, at each row length."""
    return [
        Dot(
            f"{e.rung.name}, {e.cols}",
            e.intensity,
            e.flops / e.us / 1e3,
            e.measured is not None,
            f"#{_anchor(e.rung)}",
        )
        for e in report.study.entries
        if e.us and not e.skipped
    ]


def _anchor(rung: Rung) -> str:
    return "rung-" + "".join(c if c.isalnum() else "-" for c in rung.name)


def _steps(report: Report, words: Words) -> Section | None:
    """How fast each rung is relative to the rung below: stated, and measured or modelled."""
    rows = [row for e in report.study.entries if (row := _step(report, e)) is not None]
    name = "range_measured" if report.study.is_measured else "range_model"
    keys = (
        ("forecast-bar", words("range_stated")),
        ("point" if report.study.is_measured else "point hollow", words(name)),
    )
    title = report.say("page_steps")
    picture = ranges(title, report.say("page_axis"), rows, keys, True, words)
    return (
        Section("steps", title, joined([paragraph(report.say("page_steps_reading")), picture]))
        if rows
        else None
    )


def _step(report: Report, entry: Studied) -> Ranged | None:
    stated, relative = entry.rung.prediction(entry.cols), report.study.relative(entry)
    if relative is None or not entry.rung.below:
        return None
    low, high = (None, None) if stated is None else (min(stated, 1.0), max(stated, 1.0))
    says = report.say(
        "page_step" if stated is not None else "page_step_unstated",
        relative=relative,
        stated=stated,
        below=entry.rung.below,
    )
    measured = entry.measured is not None
    return Ranged(
        f"{entry.rung.name}, {entry.cols}", low, high, relative, says, measured, f"#{_anchor(entry.rung)}"
    )


def _table(report: Report, cols: int, words: Words) -> Section:
    title = report.say("page_cols", cols=cols)
    head = report.header()
    rows = [report.row(entry) for entry in report.study.at(cols)]
    lines = [paragraph(line) for line in report.rooflines(cols)]
    parts = [*lines, table(title, head, rows, " s" + "n" * (len(head) - 2), words)]
    return Section(f"cols-{cols}", title, joined(parts))


def _cards(report: Report, words: Words) -> list[Card]:
    study = report.study
    return [
        _card(report, [e for e in study.entries if e.rung.name == name], words) for name in _names(report)
    ]


def _names(report: Report) -> list[str]:
    return list(dict.fromkeys(e.rung.name for e in report.study.entries))


def _card(report: Report, entries: list[Studied], words: Words) -> Card:
    rung, able = entries[0].rung, [e for e in entries if e.steps is not None]
    found = "found" if report.study.is_measured else "found_static"
    facts = [Fact(report.say("page_below"), rung.below)] if rung.below else []
    facts.append(Fact(report.say("page_operator"), rung.operator))
    if rung.file:
        facts.append(Fact(report.say("page_file"), rung.file.rpartition("/")[2]))
    return Card(
        _anchor(rung),
        rung.name,
        rung.says("changed", report.language),
        facts,
        [report.say(f"page_card_{n}") for n in ("cols", "stated", found, "right", "verdict")],
        [_card_row(report, e) for e in entries],
        _because(report, rung),
        _known(report, rung),
        [Fact(claim, report.claim(claim)) for claim in rung.claims],
        [_code(c, words) for c in (able[-1].compiled if able else ())],
        _source(report, rung, able),
    )


def _because(report: Report, rung: Rung) -> str:
    because = rung.says("because", report.language)
    return report.say("page_because", because=because) if because else ""


def _known(report: Report, rung: Rung) -> list[str]:
    found = [report.say("known_failure", data=", ".join(rung.fails))] if rung.fails else []
    correction = rung.says("correction", report.language)
    return [*found, report.say("correction", text=correction)] if correction else found


def _source(report: Report, rung: Rung, able: list[Studied]) -> str:
    """The rung's file as it stands, or what onepass wrote for the longest rows."""
    if rung.file:
        return report.study.ladder.text(rung)
    steps = able[-1].steps if able else None
    return steps.steps[0].text if steps else ""


def _card_row(report: Report, entry: Studied) -> list[str]:
    stated, relative = entry.rung.prediction(entry.cols), report.study.relative(entry)
    below = entry.rung.below
    found = report.say("page_card_none")
    if entry.us:
        found = f"{entry.us:.1f} µs" + (f", {relative:.2f} × {below}" if relative else "")
    return [
        str(entry.cols),
        report.say("page_card_none") if stated is None or not below else f"{stated:.2f} × {below}",
        found,
        report.say("skipped", why=entry.skipped) if entry.skipped else report.outcome(entry),
        report.judgement(entry),
    ]


def _code(compiled: Compiled, words: Words) -> Code:
    name = compiled.step.kernel
    found = disassemble(compiled.code)
    code = found if isinstance(found, str) else found[name]
    return Code(name, code, code_facts(code, words, compiled.spill_bytes))
