"""The roofline as a file: the figure of a report's page by itself, as SVG or PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onepass.analysis.html.page import render
from onepass.analysis.html.roofline_figure import Dot, RooflineFigure, by_itself, roofline_figure
from onepass.analysis.roofline import Roofline
from onepass.errors import MissingPackage, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PX = 96  # to the inch


def figure_of(roofline: Roofline) -> RooflineFigure:
    """Each kernel where it was measured, or at the most that the roof allows."""
    roof = roofline.roof
    dots = [
        Dot(
            f"{p.name} × {p.count}" if p.count > 1 else p.name,
            p.ai,
            p.gflops(roof),
            p.measured_us is not None,
            share=p.share(roof),
        )
        for p in roofline.points
    ]
    figure = roofline_figure(roofline.roofs, dots)
    assert figure is not None  # a roofline has a roof
    notes = [f"Filled points were measured; hollow ones were not, and stand at the {roof.kind} roof."]
    if figure.unlabelled:
        notes.append(f"{figure.unlabelled} more points have no label.")
    flat = [p.name for p in roofline.points if not p.flops]
    if flat:
        notes.append(f"Without arithmetic, so without a place here: {', '.join(flat)}.")
    return by_itself(figure, f"Roofline of {roofline.device}", notes)


def svg(roofline: Roofline) -> str:
    """The picture as text, for a file of its own. It has its own background, so it is light wherever it is shown.

    Raises: MissingPackage
    """
    return render("roofline.svg.j2", figure=figure_of(roofline))


def png(roofline: Roofline, path: Path) -> None:
    """The same picture as a PNG. Raises: MissingPackage, CannotWrite."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackage("onepass roofline --png", "matplotlib", "plot") from error
    drawn = figure_of(roofline)
    sheet = Figure(figsize=(drawn.width / PX, drawn.height / PX))
    plot = sheet.add_axes((0, 0, 1, 1), xlim=(0, drawn.width), ylim=(drawn.height, 0))
    plot.axis("off")
    _draw(drawn, plot)
    with writing(path):
        sheet.savefig(path, format="png", dpi=2 * PX)


def _draw(drawn: RooflineFigure, plot: Axes) -> None:
    c = drawn.colours

    def line(xs: Sequence[float], ys: Sequence[float], kind: str) -> None:
        thick = 1.0 if kind == "line" else 2.5
        plot.plot(
            xs, ys, color=c[kind], linewidth=thick * 72 / PX, linestyle="--" if kind == "datasheet" else "-"
        )

    def text(x: float, y: float, said: str, side: str, colour: str = "quiet") -> None:
        plot.text(x, y, said, color=c[colour], ha=side, fontsize=11 * 72 / PX, family="monospace")

    for tick in drawn.x_ticks:
        line((tick.at, tick.at), (drawn.top, drawn.bottom), "line")
        text(tick.at, drawn.bottom + 18, tick.text, "center")
    for tick in drawn.y_ticks:
        line((drawn.left, drawn.right), (tick.at, tick.at), "line")
        text(drawn.left - 6, tick.at + 4, tick.text, "right")
    text((drawn.left + drawn.right) / 2, drawn.bottom + 38, drawn.axis, "center")
    for roof in drawn.roofs:
        line([x for x, _ in roof.corners], [y for _, y in roof.corners], roof.kind)
    for dot in drawn.dots:
        if dot.label:
            line((dot.x, drawn.right + 14), (dot.y, dot.label_y), "line")
            text(drawn.right + 18, dot.label_y + 4, dot.label, "left")
        fill = c["point"] if dot.measured else c["page"]
        plot.plot(dot.x, dot.y, marker="o", markersize=10 * 72 / PX, color=c["point"], markerfacecolor=fill)
    for key in drawn.legend:
        if key.kind:
            line((drawn.left, drawn.left + 36), (key.y, key.y), key.kind)
        text(drawn.left + 46, key.y + 4, key.text, "left", "ink")
