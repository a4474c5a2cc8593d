"""Forecast beside measurement, a row each: a bar over what was forecast, a point at what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onepass.analysis.html.text import clipped, text_width

# px. Names stand to the left of the plot, values to its right, each as wide as the longest, up to a limit.
PLOT = 340.0
NAME, VALUE = 240.0, 240.0
GAP, EDGE = 14.0, 8.0
TOP, ROW = 12.0, 26.0
FONT = 11.0
MOST_ROWS = 40  # a longer picture compares nothing any more
TICKS = 5

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Ranged:
    """One row. ``low`` and ``high`` may be the same; ``point`` is None where nothing was measured.

    ``measured`` is whether the point was: else it is another forecast.
    """

    name: str
    low: float | None
    high: float | None
    point: float | None
    says: str
    measured: bool = True
    link: str = ""


@dataclass(frozen=True)
class Mark:
    at: float
    text: str


@dataclass(frozen=True)
class DrawnRow:
    y: float
    name: str
    says: str
    value: str
    bar: tuple[float, float] | None  # its ends
    point: float | None
    measured: bool
    link: str


@dataclass(frozen=True)
class RangeFigure:
    ticks: tuple[Mark, ...]
    rows: tuple[DrawnRow, ...]
    one: float | None  # where neither more nor less is
    left_out: int
    height: float
    bottom: float
    width: float
    left: float
    right: float
    top: float = TOP
    shown: int = MOST_ROWS


def range_figure(rows: Sequence[Ranged], logarithmic: bool = False) -> RangeFigure | None:
    """Places the rows that have something to show, in their order; None where none has.

    ``logarithmic`` is for ratios, whose neutral value is 1; else it is 0.
    """
    able = [r for r in rows if r.low is not None or r.point is not None]
    shown = able[:MOST_ROWS]
    if not shown:
        return None
    values = [v for r in shown for v in (r.low, r.high, r.point) if v is not None]
    neutral = 1.0 if logarithmic else 0.0
    ticks = (
        _ratios(min(*values, 1.0), max(*values, 1.0))
        if logarithmic
        else _steps(min(*values, 0.0), max(*values, 0.0))
    )
    left = _widest([r.name for r in shown], NAME) + GAP + EDGE
    right = left + PLOT
    x = _scale(ticks[0], ticks[-1], left, right, logarithmic)
    bottom = TOP + ROW * len(shown)
    return RangeFigure(
        tuple(Mark(x(t), f"{t:,.6g}") for t in ticks),
        tuple(_row(r, TOP + ROW * (i + 0.5), x) for i, r in enumerate(shown)),
        x(neutral) if ticks[0] <= neutral <= ticks[-1] else None,
        len(able) - len(shown),
        bottom + 46,
        bottom,
        max(
            right + GAP + _widest([r.says for r in shown], VALUE) + EDGE,
            right + text_width(f"{ticks[-1]:,.6g}", FONT),
        ),
        left,
        right,
    )


def _widest(texts: Sequence[str], most: float) -> float:
    return min(max(text_width(text, FONT) for text in texts), most)


def _row(row: Ranged, y: float, x: Scale) -> DrawnRow:
    letters = int(NAME / text_width("0", FONT)), int(VALUE / text_width("0", FONT))
    return DrawnRow(
        y,
        clipped(row.name, letters[0]),
        f"{row.name}: {row.says}",
        clipped(row.says, letters[1]),
        None if row.low is None or row.high is None else (x(row.low), x(row.high)),
        None if row.point is None else x(row.point),
        row.measured,
        row.link,
    )


def _scale(low: float, high: float, left: float, right: float, logarithmic: bool) -> Scale:
    def linear(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low)

    def log(value: float) -> float:
        return left + (right - left) * math.log(value / low) / math.log(high / low)

    return log if logarithmic else linear


def _steps(low: float, high: float) -> list[float]:
    """Round numbers from below the lowest to above the highest."""
    raw = (high - low) / TICKS or 1.0
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [n * step for n in range(first, max(last, first + 1) + 1)]


def _ratios(low: float, high: float) -> list[float]:
    """Of 1, 2, 5 and their tens, those from below the lowest to above the highest."""
    known = [m * 10.0**e for e in range(-6, 7) for m in (1, 2, 5)]
    first = max(i for i, v in enumerate(known) if v <= max(low, known[0]) * 1.0001)
    last = min(i for i, v in enumerate(known) if v >= min(high, known[-1]) / 1.0001)
    return known[first : max(last, first + 1) + 1]
