"""The report of `onepass explain`: rows of data → text for a terminal, and JSON. Nothing is run here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onepass.analysis.flow import Flow, plain
from onepass.analysis.html.text import columns
from onepass.analysis.machine_code import MachineCode
from onepass.analysis.roofline import Point, Roof, intensity
from onepass.analysis.words import ENGLISH, Words, words_of
from onepass.errors import MissingPackage

WIDTH = 100
MOST_LINES = 8  # of decisions with one reason; a model with many different layers has hundreds
# Short enough for a column.
_BOUND = {"special functions": "bound_special_short", "instructions": "bound_issue_short"}


# How a note begins about a graph that onepass had no part in.
STAYS = "a graph stays with PyTorch: "


@dataclass(frozen=True)
class KernelRow:
    """One kernel at typical sizes.

    Units: bytes; µs; ``occupancy`` 0 … 1. ``registers``, ``spill_bytes`` and ``occupancy`` are None on the CPU,
    ``measured_us`` where nothing was timed.
    """

    name: str
    ops: tuple[str, ...]
    rows: int
    cols: int
    dtypes: tuple[str, ...]
    schedule: str
    launch: str  # the schedule in words
    bytes_read: int
    bytes_written: int
    eager_bytes: int
    flops: int
    registers: int | None
    spill_bytes: int | None
    occupancy: float | None
    predicted_us: float
    measured_us: float | None
    bound: str
    source: str
    read_code: Callable[[], MachineCode | str] | None = field(default=None, compare=False, repr=False)

    @property
    def arithmetic_intensity(self) -> float:
        """FLOPs a byte."""
        return intensity(self.flops, self.bytes_read + self.bytes_written)

    @cached_property
    def machine_code(self) -> MachineCode | str | None:
        """What it compiles to, or why that can't be read; None on the CPU. Read when it is asked for: it takes a while."""
        return None if self.read_code is None else self.read_code()

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ops": list(self.ops),
            "rows": self.rows,
            "cols": self.cols,
            "dtypes": list(self.dtypes),
            "schedule": self.schedule,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "eager_bytes": self.eager_bytes,
            "flops": self.flops,
            "arithmetic_intensity": self.arithmetic_intensity,
            "registers": self.registers,
            "spill_bytes": self.spill_bytes,
            "occupancy": self.occupancy,
            "predicted_us": self.predicted_us,
            "measured_us": self.measured_us,
        }


def points_of(kernels: Iterable[KernelRow]) -> tuple[Point, ...]:
    """A report's kernels, those that are alike as one point, the most bytes first."""
    groups: dict[tuple[Any, ...], list[KernelRow]] = {}
    for k in kernels:
        groups.setdefault((k.name, k.flops, k.bytes_read, k.bytes_written, k.eager_bytes), []).append(k)
    points = []
    for (name, flops, read, written, eager), same in groups.items():
        times = [k.measured_us for k in same if k.measured_us is not None]
        points.append(
            Point(name, len(same), flops, read, written, eager, sum(times) / len(times) if times else None)
        )
    return tuple(sorted(points, key=lambda p: -p.count * p.bytes))


@dataclass(frozen=True)
class DecisionRow:
    """One pair that the planner looked at. Units: bytes and µs that fusing saves, estimated."""

    source: str
    target: str
    verdict: str
    reason: str
    detail: str
    bytes_saved: int
    us_saved: float
    between: tuple[str, str] = ("", "")  # the two items by name

    def to_dict(self) -> dict[str, Any]:
        return {
            "from": self.source,
            "to": self.target,
            "verdict": self.verdict,
            "reason": self.reason,
            "bytes_saved": self.bytes_saved,
            "us_saved": self.us_saved,
        }


@dataclass(frozen=True)
class LeftRow:
    """One call that stays with PyTorch. ``reason`` is empty for what is PyTorch's by design."""

    op: str
    bound: str
    reason: str
    nbytes: int


@dataclass(frozen=True)
class Totals:
    """A whole program before and after; matmul and attention are in neither figure.

    ``fused_bytes`` is what remains: the kernels' bytes and those of memory-bound calls left to PyTorch.
    """

    eager_bytes: int
    fused_bytes: int
    eager_kernels: int
    fused_kernels: int
    aten_calls: int
    aten_memory_bound_bytes: int


@dataclass(frozen=True)
class Report:
    """What a function runs as, and why."""

    device: str
    kernels: tuple[KernelRow, ...]
    decisions: tuple[DecisionRow, ...]
    left: tuple[LeftRow, ...]
    totals: Totals
    notes: tuple[str, ...]
    reasons: dict[str, str]  # reason code → what it means
    flows: tuple[Flow, ...] = ()  # of each graph, in the order of the kernels
    roofs: tuple[Roof, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form, schema onepass.explain/1."""
        return {
            "schema": "onepass.explain/1",
            "device": self.device,
            "kernels": [kernel.to_dict() for kernel in self.kernels],
            "decisions": [decision.to_dict() for decision in self.decisions],
            "totals": dict(self.totals.__dict__),
        }

    def save(self, path: str | Path, language: str = ENGLISH) -> None:
        """Writes the report as a page: one HTML file that needs no network.

        Raises: BadReportPath where the name does not end in .html, NoSuchLanguage, CannotWrite, MissingPackage
        """
        from onepass.analysis.html.page import check_path, write
        from onepass.analysis.html.report_page import report_page

        file = check_path(path)
        write(file, report_page(self, words_of(language)))

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that a notebook's styles and the page's leave each other alone."""
        from onepass.analysis.html.page import in_frame
        from onepass.analysis.html.report_page import report_page

        try:
            return in_frame(report_page(self))
        except MissingPackage as missing:
            return f"<pre>{escape(self.text)}</pre><p>{escape(str(missing))}</p>"

    @property
    def text(self) -> str:
        """The report for a terminal of 100 columns: verdict, kernels, decisions, what is left."""
        return self.told(Words())

    def told(self, words: Words) -> str:
        """`text` in a language."""
        parts = [
            self.verdict_in(words),
            *_kernels(self.kernels, words),
            *self._fused(words),
            *self._kept(words),
        ]
        parts += _left(self.left, words)
        if self.notes:
            parts += ["", words("notes")]
            parts += [line for note in _counted(self.notes, words) for line in _wrap(note, "  ")]
        return "\n".join(line.rstrip() for line in parts)

    @property
    def verdict(self) -> str:
        """One sentence."""
        return self.verdict_in(Words())

    def verdict_in(self, words: Words) -> str:
        """`verdict` in a language."""
        t = self.totals
        if not self.kernels and (stays := [n for n in self.notes if n.startswith(STAYS)]):
            reason = words.phrase(stays[0].removeprefix(STAYS))
            return words("all_in_pytorch", reason=reason, device=self.device)
        if not t.eager_kernels:
            return words("nothing_bound", calls=words.count("call", t.aten_calls), device=self.device)
        kept = sum(row.bound == "memory" for row in self.left)
        after = words.count("kernel", t.fused_kernels)
        if kept:
            after = words("and_left", kernels=after, calls=words.count("call", kept))
        ratio = (
            words("less_traffic", ratio=t.eager_bytes / t.fused_bytes)
            if t.fused_bytes
            else words("no_traffic")
        )
        become = words(
            "becomes_1" if t.eager_kernels == 1 else "becomes_n",
            ops=words.count("bound_op", t.eager_kernels),
            eager=_bytes(t.eager_bytes),
            after=after,
            fused=_bytes(t.fused_bytes),
            ratio=ratio,
        )
        return f"{become}\n{words('not_counted', device=self.device)}"

    def _fused(self, words: Words) -> list[str]:
        return self._decisions("text_fused", [d for d in self.decisions if d.verdict == "fused"], words)

    def _kept(self, words: Words) -> list[str]:
        return self._decisions("text_kept", [d for d in self.decisions if d.verdict != "fused"], words)

    def _decisions(self, title: str, decisions: list[DecisionRow], words: Words) -> list[str]:
        """Decisions by reason, the most bytes first; those of equal layers on one line."""
        if not decisions:
            return []
        lines = ["", words(title)]
        for reason in sorted({d.reason for d in decisions}, key=lambda r: -_saved(decisions, r)):
            meaning = words.reason(reason, self.reasons.get(reason, reason))
            lines += _wrap(f"{reason}: {meaning}", "  ")
            groups: dict[tuple[str, str, str], list[DecisionRow]] = {}
            for d in decisions:
                if d.reason == reason:
                    groups.setdefault((d.source, d.target, words.phrase(d.detail)), []).append(d)
            rows = sorted(groups.items(), key=lambda item: -sum(d.bytes_saved for d in item[1]))
            more = sum(len(same) for _, same in rows[MOST_LINES:])
            lines += table(
                [
                    [
                        f"{_short(source)} → {_short(target)}"
                        + (words("in_brackets", text=detail) if detail else ""),
                        _times(len(same)),
                        _bytes(sum(d.bytes_saved for d in same)),
                        _us(sum(d.us_saved for d in same)),
                    ]
                    for (source, target, detail), same in rows[:MOST_LINES]
                ],
                indent="    ",
            )
            lines += [f"    {words('more_save_less', n=more)}"] if more else []
        return lines


def _saved(decisions: list[DecisionRow], reason: str) -> int:
    return sum(d.bytes_saved for d in decisions if d.reason == reason)


def _kernels(kernels: tuple[KernelRow, ...], words: Words) -> list[str]:
    if not kernels:
        return []
    groups: dict[Any, list[KernelRow]] = {}
    for k in kernels:
        key = (k.name, k.rows, k.cols, k.dtypes, k.launch, k.bytes_read, k.bytes_written)
        groups.setdefault(key, []).append(k)
    resources = any(k.registers is not None for k in kernels)
    measured = any(k.measured_us is not None for k in kernels)
    head = [words("kernel"), "", *(words(n) for n in ("shape", "moved", "in_eager", "ai", "bound"))]
    head += [words(n) for n in ("regs", "spill", "occ")] if resources else []
    head += [words("predicted")] + ([words("measured")] if measured else [])
    rows = [head]
    for same in sorted(groups.values(), key=lambda g: -sum(k.predicted_us for k in g)):
        k = same[0]
        row = [
            k.name,
            _times(len(same)),
            f"{k.rows} × {k.cols}",
            _bytes(k.bytes_read + k.bytes_written),
            _bytes(sum(each.eager_bytes for each in same) // len(same)),
            f"{k.arithmetic_intensity:.2f}",
            bound_name(k.bound, words, _BOUND),
        ]
        if resources:
            occupied = "–" if k.occupancy is None else f"{k.occupancy:.0%}"
            row += ["–" if k.registers is None else str(k.registers), str(k.spill_bytes or 0), occupied]
        row.append(_us(k.predicted_us))
        if measured:
            times = [each.measured_us for each in same if each.measured_us is not None]
            row.append(_us(sum(times) / len(times)) if times else "–")
        rows.append(row)
    return ["", *table(rows), "", *_launches(kernels, words)]


def bound_name(bound: str, words: Words, short: Mapping[str, str] = MappingProxyType({})) -> str:
    """What binds a kernel, in a language."""
    name = short.get(bound, f"bound_{bound.replace(' ', '_')}")
    return words(name) if words.has(name) else bound


def _launches(kernels: tuple[KernelRow, ...], words: Words) -> list[str]:
    """Each way of running, and how many kernels run that way."""
    ways: dict[str, int] = {}
    for k in kernels:
        way = f"{k.schedule}: {words.phrase(k.launch)}"
        ways[way] = ways.get(way, 0) + 1
    return [
        line
        for way, n in ways.items()
        for line in _wrap(f"{way}{words('in_brackets', text=words.count('kernel', n))}", "  ")
    ]


def _left(left: tuple[LeftRow, ...], words: Words) -> list[str]:
    if not left:
        return []
    groups: dict[tuple[str, str], list[LeftRow]] = {}
    for row in left:
        groups.setdefault((row.op, row.reason), []).append(row)
    lines = ["", words("left")]
    ordered = sorted(groups.items(), key=lambda g: (g[1][0].bound == "compute", -sum(r.nbytes for r in g[1])))
    for (op, reason), same in ordered:
        why = words.phrase(reason) if reason else words("by_design")
        moved = "" if same[0].bound == "compute" else f", {_bytes(sum(r.nbytes for r in same))}"
        lines += _wrap(
            f"{plain(op)} {_times(len(same))}{moved}: {why}".replace(" ,", ",").replace(" :", ":"), "  "
        )
    return lines


# Text


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Aligned columns; the first is shortened so that a line stays within the width, the others are right-aligned."""
    widths = [max(columns(row[i]) for row in rows) for i in range(len(rows[0]))]
    rest = sum(widths[1:]) + 2 * (len(widths) - 1) + len(indent)
    first = min(widths[0], max(WIDTH - rest, 16))
    lines = []
    for row in rows:
        head = row[0] if columns(row[0]) <= first else row[0][: first - 1] + "…"
        cells = [
            _padded(cell, width, right=True) for cell, width in zip(row[1:], widths[1:], strict=True) if width
        ]
        lines.append(indent + "  ".join([_padded(head, first), *cells]))
    return lines


def _padded(text: str, width: int, right: bool = False) -> str:
    room = " " * (width - columns(text))
    return room + text if right else text + room


def _wrap(text: str, indent: str) -> list[str]:
    lines, line = [], indent
    for word in text.split():
        if columns(line) + columns(word) + 1 > WIDTH and line.strip():
            lines.append(line)
            line = indent + "  "
        line += word if line == indent or line.endswith("  ") else f" {word}"
    return [*lines, line]


def _counted(texts: Iterable[str], words: Words) -> list[str]:
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return [
        words.phrase(text) + (f" {words('times_noted', n=n)}" if n > 1 else "") for text, n in counts.items()
    ]


def _short(ops: str) -> str:
    """The ops of a cluster, without PyTorch's prefixes, the first and last few of many."""
    names = [plain(name) for name in ops.split("+")]
    return "+".join(names if len(names) <= 6 else [*names[:3], f"{len(names) - 5} more", *names[-2:]])


def _times(n: int) -> str:
    return f"× {n}" if n > 1 else ""


def _bytes(n: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(n) >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"


def _us(us: float) -> str:
    return f"{us:,.1f} µs" if us < 1e4 else f"{us / 1e3:,.1f} ms"
