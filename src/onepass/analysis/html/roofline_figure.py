"""The roofline figure: where roofs, and each kernel as a point, stand. Axes are logarithmic.

Two draw it: templates/roofline.svg.j2, for a page or a file of its own, and `insight.roofline_picture.png`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from onepass.analysis.html.layout import spread
from onepass.analysis.html.text import clipped, text_width
from onepass.analysis.roofline import Roof

WIDTH, HEIGHT = 860.0, 380.0  # px
LEFT, RIGHT, TOP, BOTTOM = 92.0, 560.0, 16.0, 330.0  # of the plot; labels stand to its right
LABEL = 16.0  # px from one label to the next
MOST_LABELS = int((BOTTOM - TOP) / LABEL)
FONT = 11.0

Scale = Callable[[float], float]


# The page's light colours, which are also those of a picture by itself; a page's own style goes before them.
COLOURS: Mapping[str, str] = {
    "page": "#ffffff",
    "ink": "#1b1f24",
    "quiet": "#59636e",
    "line": "#d1d9e0",
    "point": "#2563eb",
    "datasheet": "#6b7280",
    "measured": "#15803d",
    "time model": "#7c3aed",
}
KEY = 20.0  # px from one line of the legend to the next


@dataclass(frozen=True)
class Dot:
    """One kernel. Units: FLOPs a byte, 1e9 operations a second; ``measured``, or where it would stand.

    ``share`` of the roof, 0 … 1, stands behind its name where it is known.
    """

    name: str
    intensity: float
    gflops: float
    measured: bool
    link: str = ""
    share: float | None = None


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class DrawnRoof:
    kind: str
    corners: tuple[tuple[float, float], ...]  # px
    says: str

    @property
    def path(self) -> str:
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in self.corners)


@dataclass(frozen=True)
class DrawnDot:
    x: float
    y: float
    measured: bool
    says: str
    number: int
    label: str  # empty where there is no room
    label_y: float
    link: str


@dataclass(frozen=True)
class Key:
    """A line of the legend that a picture by itself has; ``kind`` of a roof, or empty."""

    y: float
    kind: str
    text: str


@dataclass(frozen=True)
class RooflineFigure:
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    roofs: tuple[DrawnRoof, ...]
    dots: tuple[DrawnDot, ...]
    unlabelled: int
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = RIGHT
    top: float = TOP
    bottom: float = BOTTOM
    title: str = "roofline"
    axis: str = "arithmetic intensity, FLOPs a byte"
    legend: tuple[Key, ...] = ()

    @property
    def colours(self) -> Mapping[str, str]:
        return COLOURS


def by_itself(figure: RooflineFigure, title: str, notes: Sequence[str]) -> RooflineFigure:
    """The figure with a legend below it: title, roofs, notes."""
    lines = [("", title), *((roof.kind, roof.says) for roof in figure.roofs), *(("", note) for note in notes)]
    most = int((WIDTH - LEFT - 50) / text_width("0", FONT))
    keys = tuple(Key(HEIGHT + KEY * i, kind, clipped(text, most)) for i, (kind, text) in enumerate(lines, 1))
    return replace(figure, height=HEIGHT + KEY * (len(keys) + 1), title=title, legend=keys)


def roofline_figure(roofs: Sequence[Roof], dots: Iterable[Dot]) -> RooflineFigure | None:
    """Places roofs and points; None where there is nothing to draw. A point without arithmetic has no place here."""
    shown = [d for d in dots if d.intensity > 0 and d.gflops > 0]
    if not roofs:
        return None
    flat = [(r.peak_gflops / r.bandwidth_gbps, r.peak_gflops) for r in roofs if r.peak_gflops]
    # Beyond the last point and the ridge on both sides, in whole decades, so that no roof ends early.
    low_x, high_x = _decades([d.intensity for d in shown] + [ridge for ridge, _ in flat] or [1.0])
    floors = [low_x * r.bandwidth_gbps for r in roofs]
    low_y, high_y = _decades([d.gflops for d in shown] + floors + [peak for _, peak in flat])

    def x(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * math.log(value / low_x) / math.log(high_x / low_x)

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * math.log(value / low_y) / math.log(high_y / low_y)

    def line(roof: Roof) -> tuple[tuple[float, float], ...]:
        start = max(low_x, low_y / roof.bandwidth_gbps)
        top = roof.peak_gflops or min(high_x * roof.bandwidth_gbps, high_y)
        corners = [(start, start * roof.bandwidth_gbps), (top / roof.bandwidth_gbps, top)]
        corners += [(high_x, top)] if roof.peak_gflops else []
        return tuple((x(a), y(b)) for a, b in corners)

    return RooflineFigure(
        tuple(Tick(x(v), f"{v:g}") for v in _powers(low_x, high_x)),
        tuple(Tick(y(v), _flops(v)) for v in _powers(low_y, high_y)),
        tuple(DrawnRoof(roof.kind, line(roof), roof_words(roof)) for roof in roofs),
        tuple(_dots(shown, x, y)),
        max(len(shown) - MOST_LABELS, 0),
    )


def roof_words(roof: Roof) -> str:
    """A roof's limits and their ridge in one line."""
    memory = f"{roof.kind}: {roof.bandwidth_gbps:,.0f} GB/s"
    if not roof.peak_gflops:
        return f"{memory}, arithmetic not known"
    return f"{memory}, {_flops(roof.peak_gflops)}, ridge {roof.ridge:.1f} FLOP/B"


def _dots(dots: Sequence[Dot], x: Scale, y: Scale) -> list[DrawnDot]:
    """Points, and labels in a column beside the plot in the order of the points' heights."""
    places = sorted(
        ((x(d.intensity), y(d.gflops), i + 1, d) for i, d in enumerate(dots)), key=lambda p: (p[1], p[0])
    )
    labelled = sorted(p[2] for p in places)[:MOST_LABELS]
    column = [p for p in places if p[2] in labelled]
    wanted = [min(max(p[1], TOP + LABEL / 2), BOTTOM - LABEL / 2) for p in column]
    heights = _inside(spread(wanted, [LABEL] * (len(wanted) - 1)))
    at = {p[2]: height for p, height in zip(column, heights, strict=True)}
    return [
        DrawnDot(
            px,
            py,
            dot.measured,
            f"{dot.name}: {dot.intensity:.2f} FLOP/B, {_flops(dot.gflops)} "
            f"{'measured' if dot.measured else 'not measured'}",
            number,
            _label(number, dot) if number in at else "",
            at.get(number, py),
            dot.link,
        )
        for px, py, number, dot in places
    ]


def _label(number: int, dot: Dot) -> str:
    share = "" if dot.share is None else f", {dot.share:.0%} of the roof"
    letters = int((WIDTH - RIGHT - 40) / text_width("0", FONT))
    return clipped(f"{number} {dot.name}", letters - len(share)) + share


def _inside(heights: Sequence[float]) -> list[float]:
    """Moved so that none stands above or below the plot; those apart stay apart, as there are at most `MOST_LABELS`."""
    last = len(heights) - 1
    return [
        min(max(h, TOP + LABEL * (i + 0.5)), BOTTOM - LABEL * (last - i + 0.5)) for i, h in enumerate(heights)
    ]


def _decades(values: Sequence[float]) -> tuple[float, float]:
    low, high = math.floor(math.log10(min(values)) - 0.1), math.ceil(math.log10(max(values)) + 0.1)
    return 10.0**low, 10.0**high


def _powers(low: float, high: float) -> list[float]:
    return [10.0**n for n in range(round(math.log10(low)), round(math.log10(high)) + 1)]


def _flops(gflops: float) -> str:
    for unit, size in (("PFLOP/s", 1e6), ("TFLOP/s", 1e3), ("GFLOP/s", 1.0), ("MFLOP/s", 1e-3)):
        if gflops >= size * 0.9995:
            return f"{gflops / size:.3g} {unit}"
    return f"{gflops * 1e6:.3g} kFLOP/s"
