"""The page: a verdict and a list of sections, in one HTML file that asks nothing of a network.

Jinja2 escapes whatever comes from outside; templates, style and script are files beside this one.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.analysis.fold import fold
from onepass.analysis.html import text
from onepass.analysis.html.picture import Picture, picture
from onepass.analysis.html.roofline_figure import Dot, roofline_figure
from onepass.errors import BadReportPath, MissingPackage

if TYPE_CHECKING:
    from jinja2 import Environment

    from onepass.analysis.report import DecisionRow, KernelRow, LeftRow, Report
    from onepass.analysis.roofline import Roof

HERE = Path(__file__).parent
MOST_ROWS = 40  # of decisions of one kind on the page; `report.to_dict()` has them all


@dataclass(frozen=True)
class Section:
    """One part of a page. ``body`` is what `render` gave."""

    anchor: str
    title: str
    body: str


@dataclass(frozen=True)
class Fact:
    """One figure with its name."""

    name: str
    value: str


def page(title: str, verdict: str, facts: Sequence[Fact], sections: Sequence[Section]) -> str:
    """A whole page: the first line of the verdict large, then the facts, then the sections.

    Raises: MissingPackage
    """
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("style.css", "page.js"))
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    return render(
        "page.html.j2",
        title=title,
        verdict=verdict.splitlines(),
        facts=facts,
        sections=sections,
        style=style,
        script=script,
        policy=policy,
    )


def _digest(content: str) -> str:
    """What a content policy knows a script or a style by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def render(template: str, **values: Any) -> str:
    """A template filled in. What a template made is markup for the next; every other text is escaped.

    Raises: MissingPackage
    """
    environment = _environment()
    from markupsafe import Markup

    return Markup(environment.get_template(template).render(**values))


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise MissingPackage("a page", "Jinja2", "html") from error
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"bytes": text.nbytes, "us": text.us, "counted": text.counted}
    return made


def table_section(
    anchor: str, title: str, head: Sequence[str], rows: Sequence[Sequence[str]], kinds: str
) -> Section:
    """A table as a section. ``kinds`` has a letter a column: ``n`` numbers, ``w`` words that may wrap, a space names."""
    styles = [{"n": "n", "w": "words", " ": ""}[kind] for kind in kinds]
    body = render("table.html.j2", label=title, head=head, rows=rows, styles=styles)
    return Section(anchor, title, body)


def check_path(path: str | Path) -> Path:
    """The path as one. Raises: BadReportPath where its name does not end in .html."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise BadReportPath(str(path))
    return Path(path)


def in_frame(content: str) -> str:
    """A page as part of another, which leaves its styles and script alone."""
    return (
        f'<iframe srcdoc="{escape(str(content))}" title="onepass report" sandbox="allow-scripts" '
        'style="width: 100%; height: 720px; border: 0"></iframe>'
    )


# The page of `onepass explain`


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
    def facts(self) -> list[Fact]:
        """What the card says of the kernel beside its source."""
        k = self.first
        facts = [
            Fact("launch", f"{k.schedule}: {k.launch}"),
            Fact("rows × cols", f"{k.rows} × {k.cols}"),
            Fact("dtypes", ", ".join(k.dtypes)),
            Fact("FLOPs", f"{k.flops:,}"),
            Fact("FLOPs a byte", f"{k.arithmetic_intensity:.2f}"),
            Fact("bound by", k.bound),
        ]
        if k.registers is not None:
            occupied = "–" if k.occupancy is None else f"{k.occupancy:.0%}"
            facts += [
                Fact("registers a thread", str(k.registers)),
                Fact("spilled", text.nbytes(k.spill_bytes or 0)),
                Fact("occupancy (warps)", occupied),
            ]
        return facts

    @property
    def widths(self) -> list[tuple[str, str, float]]:
        """Bars of predicted and measured time: name, value, share of the longer in percent."""
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


def report_page(report: Report) -> str:
    """The page of a report: verdict, roofline, data flow, kernels, decisions, what is left to PyTorch.

    Raises: MissingPackage
    """
    groups, links = kernel_groups(report.kernels)
    made = [
        roofline_section(report.roofs, [_dot(group) for group in groups]),
        flow_section(report, links),
        Section("kernels", "Kernels", render("kernels.html.j2", groups=groups)) if groups else None,
        decisions_section(report),
        _left(report.left),
        Section("notes", "Notes", render("notes.html.j2", notes=list(dict.fromkeys(report.notes))))
        if report.notes
        else None,
    ]
    return page("onepass explain", report.verdict, _totals(report), [s for s in made if s is not None])


def _totals(report: Report) -> list[Fact]:
    t = report.totals
    predicted = sum(k.predicted_us for k in report.kernels)
    facts = [
        Fact("bytes in eager → fused", f"{text.nbytes(t.eager_bytes)} → {text.nbytes(t.fused_bytes)}"),
        Fact("memory-bound kernels", f"{t.eager_kernels} → {t.fused_kernels}"),
        Fact("kernels, predicted", text.us(predicted)),
    ]
    timed = [k.measured_us for k in report.kernels if k.measured_us is not None]
    return [*facts, Fact("kernels, measured", text.us(sum(timed)))] if timed else facts


def _dot(group: KernelGroup) -> Dot:
    k, measured = group.first, group.measured_us
    time_us = k.predicted_us if measured is None else measured
    rate = k.flops / time_us / 1000 if time_us else 0.0
    name = f"{k.name} × {group.times}" if group.times > 1 else k.name
    return Dot(name, k.arithmetic_intensity, rate, measured is not None, f"#{group.anchor}")


def roofline_section(roofs: Sequence[Roof], dots: Sequence[Dot]) -> Section | None:
    """Roofs and kernels. Kernels without arithmetic are named below the figure."""
    figure = roofline_figure(roofs, dots)
    if figure is None:
        return None
    flat = [dot.name for dot in dots if dot.intensity <= 0 or dot.gflops <= 0]
    sources = [Fact(roof.kind, roof.source) for roof in roofs]
    return Section(
        "roofline", "Roofline", render("roofline.html.j2", figure=figure, flat=flat, sources=sources)
    )


def flow_section(report: Report, links: dict[int, str]) -> Section | None:
    """Each graph's picture with equal layers folded, and its cut edges as a list."""
    pictures: list[Picture] = []
    for flow in report.flows:
        if flow.boxes:
            done = sum(len(p.cuts) for p in pictures)
            pictures.append(picture(fold(flow), report.reasons, links, done))
    if not pictures:
        return None
    cuts = [cut for each in pictures for cut in each.cuts]
    return Section("flow", "Data flow", render("flow.html.j2", pictures=pictures, cuts=cuts))


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


def decisions_section(report: Report) -> Section | None:
    if not report.decisions:
        return None
    parts = []
    for title, verdict in (
        ("Fused: what it saves", "fused"),
        ("Not fused: what fusing would save", "kept"),
    ):
        rows = _decision_groups(d for d in report.decisions if d.verdict == verdict)
        if rows:
            parts.append((title, rows[:MOST_ROWS], len(rows) - MOST_ROWS))
    body = render("decisions.html.j2", parts=parts, reasons=report.reasons)
    return Section("decisions", "Decisions", body)


def _decision_groups(decisions: Iterable[DecisionRow]) -> list[DecisionGroup]:
    groups: dict[tuple[str, str, str, str], list[DecisionRow]] = {}
    for d in decisions:
        groups.setdefault((d.source, d.target, d.reason, d.detail), []).append(d)
    made = [
        DecisionGroup(*key, len(same), sum(d.bytes_saved for d in same), sum(d.us_saved for d in same))
        for key, same in groups.items()
    ]
    return sorted(made, key=lambda g: -g.bytes_saved)


def _left(left: Sequence[LeftRow]) -> Section | None:
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
            reason or "bound by arithmetic: PyTorch's by design",
        )
        for (op, bound, reason), same in ordered
    ]
    return table_section("left", "Left to PyTorch", ("op", "times", "moved", "why"), rows, " nnw")
