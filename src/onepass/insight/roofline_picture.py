"""The roofline as a picture: both axes logarithmic, datasheet roof dashed, measured roof solid, each kernel a point."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from onepass.analysis.roofline import Point, Roof, Roofline
from onepass.errors import CannotWrite, MissingPackage

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 22, 54
LEGEND_LINE = 20
MOST_NAMED = 12  # points with a line in the legend; a model's others are drawn without

# Light and dark, from the colours of the reader's system: no script, no network.
_STYLE = """
.roofline { font: 13px system-ui, sans-serif; color: #1f2328 }
.roofline { --line: #d0d7de; --sheet: #6e7781; --roof: #0969da; --dot: #cf222e }
@media (prefers-color-scheme: dark) {
  .roofline { color: #e6edf3; --line: #30363d; --sheet: #8b949e; --roof: #58a6ff; --dot: #ff7b72 }
}
.roofline text { fill: currentColor } .roofline .grid { stroke: var(--line) }
.roofline .datasheet { stroke: var(--sheet); stroke-dasharray: 7 5 } .roofline .measured { stroke: var(--roof) }
.roofline .roof { fill: none; stroke-width: 2 } .roofline .point { fill: var(--dot) }
.roofline .hollow { fill: none; stroke: var(--dot); stroke-width: 2 }
"""


@dataclass(frozen=True)
class Axes:
    """The part of the plane that is shown. Units: FLOPs a byte; 1e9 operations a second."""

    ai: tuple[float, float]
    gflops: tuple[float, float]

    def x(self, ai: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * _along(ai, self.ai)

    def y(self, gflops: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * _along(gflops, self.gflops)


def axes(roofline: Roofline) -> Axes:
    """Whole decades that hold all points and all ridges, with room on each side of each of them."""
    xs = [p.ai for p in roofline.points if p.ai > 0] + [r.ridge for r in roofline.roofs if r.ridge]
    xs = xs or [1.0]
    low, high = _decades(xs)
    ys = [p.gflops(roofline.roof) for p in roofline.points if p.flops]
    ys += [r.attainable_gflops(x) for r in roofline.roofs for x in (*xs, high) if r.peak_gflops or x != high]
    return Axes((low, high), _decades(ys))


def _decades(values: Iterable[float]) -> tuple[float, float]:
    """Powers of ten around positive values, a fifth of a decade away from each at least."""
    found = [math.log10(v) for v in values if v > 0]
    return 10.0 ** math.floor(min(found) - 0.2), 10.0 ** math.ceil(max(found) + 0.2)


def _along(value: float, span: tuple[float, float]) -> float:
    low, high = map(math.log10, span)
    return (math.log10(max(value, span[0])) - low) / (high - low)


def corners(roof: Roof, shown: Axes) -> list[tuple[float, float]]:
    """The roof's line within the axes: (FLOPs a byte, 1e9 operations a second) at its start, ridge and end."""
    start, end = shown.ai
    start = max(start, shown.gflops[0] / roof.bandwidth_gbps)
    if roof.ridge is None:
        end = min(end, shown.gflops[1] / roof.bandwidth_gbps)
        return [(start, start * roof.bandwidth_gbps), (end, end * roof.bandwidth_gbps)]
    return [(x, roof.attainable_gflops(x)) for x in (start, roof.ridge, end)]


def svg(roofline: Roofline) -> str:
    """The picture as text, for a file of its own or inside a page. Points are numbered; a legend below has their names."""
    shown = axes(roofline)
    named = roofline.points[:MOST_NAMED]
    height = HEIGHT + LEGEND_LINE * (len(roofline.roofs) + len(named) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="roofline" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(f'Roofline of {roofline.device}')}</title>",
        f"<style>{_STYLE}</style>",
        *_grid(shown),
        *(_roof(roof, shown) for roof in roofline.roofs),
        *_points(roofline, shown),
        *_legend(roofline, named),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _grid(shown: Axes) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value in _powers(shown.ai):
        x = shown.x(value)
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>'
    for value in _powers(shown.gflops):
        y = shown.y(value)
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_rate(value)}</text>'
    middle = (LEFT + right) / 2
    yield f'<text x="{middle}" y="{bottom + 42}" text-anchor="middle">arithmetic intensity, FLOPs a byte</text>'
    yield (
        f'<text transform="translate(16 {(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        "fp32 operations a second</text>"
    )


def _powers(span: tuple[float, float]) -> list[float]:
    first, last = (round(math.log10(v)) for v in span)
    return [10.0**n for n in range(first, last + 1)]


def _rate(gflops: float) -> str:
    for unit, size in (("P", 1e6), ("T", 1e3), ("G", 1.0), ("M", 1e-3)):
        if gflops >= size:
            return f"{gflops / size:g} {unit}"
    return f"{gflops * 1e6:g} k"


def _roof(roof: Roof, shown: Axes) -> str:
    line = " ".join(f"{shown.x(x):.1f},{shown.y(y):.1f}" for x, y in corners(roof, shown))
    return f'<polyline class="roof {roof.kind}" points="{line}"/>'


def _points(roofline: Roofline, shown: Axes) -> Iterator[str]:
    """A dot where a kernel was measured, a ring on the roof where it was not; numbers of near points step aside."""
    taken: list[tuple[float, float]] = []
    for number, point in enumerate(roofline.points, 1):
        if not point.flops or not point.bytes:
            continue
        x, y = shown.x(point.ai), shown.y(point.gflops(roofline.roof))
        kind = "point" if point.measured_us else "hollow"
        title = escape(f"{point.name}: {point.ai:.2f} FLOPs a byte")
        yield f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{title}</title></circle>'
        if number <= MOST_NAMED:
            label = _beside(x, y, taken)
            taken.append(label)
            yield f'<text x="{label[0]:.1f}" y="{label[1]:.1f}">{number}</text>'


def _beside(x: float, y: float, taken: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """A place for a number under and right of its point that no other number has."""
    place = (x + 8, y + 16)
    while any(abs(place[0] - a) < 16 and abs(place[1] - b) < 14 for a, b in taken):
        place = (place[0] + 17, place[1]) if place[0] + 34 < WIDTH - RIGHT else (x + 8, place[1] + 15)
    return place


def _legend(roofline: Roofline, named: Sequence[Point]) -> Iterator[str]:
    y = HEIGHT + 4
    for roof in roofline.roofs:
        yield f'<line class="roof {roof.kind}" x1="{LEFT}" y1="{y}" x2="{LEFT + 36}" y2="{y}"/>'
        yield f'<text x="{LEFT + 46}" y="{y + 4}">{escape(roof_words(roof))}</text>'
        y += LEGEND_LINE
    for number, point in enumerate(named, 1):
        yield f'<text x="{LEFT + 20}" y="{y + 4}" text-anchor="end">{number}</text>'
        yield f'<text x="{LEFT + 46}" y="{y + 4}">{escape(point_words(point, roofline.roof))}</text>'
        y += LEGEND_LINE
    more = len(roofline.points) - len(named)
    if more:
        yield f'<text x="{LEFT + 46}" y="{y + 4}">and {more} more</text>'


def roof_words(roof: Roof) -> str:
    arithmetic = "" if roof.peak_gflops is None else f", {_rate(float(f'{roof.peak_gflops:.4g}'))}FLOP/s"
    ridge = "" if roof.ridge is None else f", ridge {roof.ridge:.1f}"
    return f"{roof.kind} roof: {roof.bandwidth_gbps:.0f} GB/s{arithmetic}{ridge}"


def point_words(point: Point, roof: Roof) -> str:
    name = point.name if len(point.name) <= 58 else point.name[:57] + "…"
    times = f" × {point.count}" if point.count > 1 else ""
    share = point.share(roof)
    reached = f", {share:.0%} of the roof" if share is not None else ", at the roof (not measured)"
    return f"{name}{times}: {point.ai:.2f} FLOPs a byte{reached}"


def png(roofline: Roofline, path: Path) -> None:
    """The same picture as a PNG. Raises: MissingPackage, CannotWrite."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackage("onepass roofline --png", "matplotlib", "plot") from error
    shown = axes(roofline)
    figure = Figure(figsize=(8.5, 5.5), layout="constrained")
    plot = figure.subplots()
    plot.set(xscale="log", yscale="log", xlim=shown.ai, ylim=[1e9 * g for g in shown.gflops])
    plot.set(
        xlabel="arithmetic intensity, FLOPs a byte", ylabel="fp32 operations a second", title=roofline.device
    )
    plot.grid(alpha=0.4)
    for roof in roofline.roofs:
        xs, ys = zip(*corners(roof, shown), strict=True)
        style = "--" if roof.kind == "datasheet" else "-"
        plot.plot(xs, [1e9 * y for y in ys], style, label=roof_words(roof))
    for point in roofline.points:
        if point.flops and point.bytes:
            style = "full" if point.measured_us else "none"
            place = ([point.ai], [1e9 * point.gflops(roofline.roof)])
            plot.plot(
                *place, marker="o", fillstyle=style, linestyle="", label=point_words(point, roofline.roof)
            )
    figure.legend(loc="outside lower center", fontsize="small")
    try:
        figure.savefig(path, format="png", dpi=150)
    except OSError as error:
        raise CannotWrite(str(path), error.strerror or str(error)) from error
