"""A flow as boxes and lines with places: everything the template has to write down. Units: px."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from onepass.analysis.flow import Box, Cut, Edge, Flow
from onepass.analysis.html.layout import Layout, Point, lay_out
from onepass.analysis.html.text import clipped, counted, nbytes, text_width, us

FONT, SMALL_FONT = 12.0, 11.0
LINE = 16.0  # from one line of text to the next
PAD = 10.0
MOST_LETTERS = 44  # of a title; longer ones are shown whole on pointing at them
EDGE = 12.0  # around the picture


@dataclass(frozen=True)
class Text:
    x: float
    y: float  # the baseline
    text: str
    style: str = ""


@dataclass(frozen=True)
class Line:
    """A curve from box to box with its label on a plate; ``style`` is ``cut``, ``kept`` (in registers) or ``plain``."""

    path: str
    style: str
    plate: tuple[float, float, float, float]  # left, top, width, height
    label: Text
    why: int | None = None  # place in the list of cuts
    says: str = ""


@dataclass(frozen=True)
class Chip:
    """An op inside a box."""

    left: float
    top: float
    width: float
    height: float
    label: Text
    again: bool


@dataclass(frozen=True)
class DrawnBox:
    kind: str
    left: float
    top: float
    width: float
    height: float
    texts: tuple[Text, ...]
    chips: tuple[Chip, ...]
    lines: tuple[Line, ...]
    says: str
    link: str = ""


@dataclass(frozen=True)
class ShownCut:
    """One cut edge in words, for the list and for the click."""

    number: int
    source: str
    target: str
    nbytes: str
    cut: Cut
    meaning: str
    saves: str
    times: int


@dataclass(frozen=True)
class Picture:
    width: float
    height: float
    boxes: tuple[DrawnBox, ...]
    lines: tuple[Line, ...]
    cuts: tuple[ShownCut, ...]


def picture(flow: Flow, reasons: Mapping[str, str], links: Mapping[int, str], first_cut: int = 0) -> Picture:
    """Draws a flow. ``links`` gives where on the page a kernel of the report is, by its place there.

    Cut edges are numbered from ``first_cut``. Raises: MissingPackage
    """
    inner = {box.name: _inner(box) for box in flow.boxes}
    sizes = {box.name: _size(box, inner[box.name]) for box in flow.boxes}
    labels = {(edge.source, edge.target): _label(edge) for edge in flow.edges}
    placed = _with_labels(sizes, labels)
    titles = {box.name: _name(box) for box in flow.boxes}
    cuts: list[ShownCut] = []
    lines = []
    for edge in flow.edges:
        why = None
        if edge.cut is not None:
            why = first_cut + len(cuts)
            cuts.append(_shown(why, edge, edge.cut, titles, reasons))
        style = "plain" if edge.cut is None else "cut"
        lines.append(_line(edge, placed, labels[edge.source, edge.target], style, EDGE, EDGE, why))
    boxes = [
        _box(box, inner[box.name], placed.centres[box.name], sizes[box.name], links) for box in flow.boxes
    ]
    return Picture(placed.width + 2 * EDGE, placed.height + 2 * EDGE, tuple(boxes), tuple(lines), tuple(cuts))


def _shown(
    number: int, edge: Edge, cut: Cut, titles: Mapping[str, str], reasons: Mapping[str, str]
) -> ShownCut:
    saves = f"{nbytes(cut.bytes_saved)}, {us(cut.us_saved)}"
    if not cut.bytes_saved:  # the planner gave up before it had a kernel to compare with
        saves = f"at most {nbytes(2 * edge.nbytes)}: writing and reading what is on the edge"
    meaning = reasons.get(cut.reason, cut.reason)
    for other in edge.others:
        meaning += f"; some of the {edge.times} for {other}: {reasons.get(other, other)}"
    return ShownCut(
        number, titles[edge.source], titles[edge.target], nbytes(edge.nbytes), cut, meaning, saves, edge.times
    )


def _name(box: Box) -> str:
    return f"{box.title} {box.detail}" if box.kind in ("input", "output") else box.title


def _label(edge: Edge) -> str:
    tensors = f" ({edge.tensors} tensors)" if edge.tensors > 1 else ""
    return f"{nbytes(edge.nbytes)}{tensors}" + (f" × {edge.times}" if edge.times > 1 else "")


# Layout: an edge's label is a box of its own between the two, so that nothing lies over it


def _with_labels(sizes: Mapping[str, Point], labels: Mapping[tuple[str, str], str]) -> Layout:
    plates = {
        f"label:{s}:{t}": (text_width(text, SMALL_FONT) + 10, LINE + 2) for (s, t), text in labels.items()
    }
    edges = [pair for s, t in labels for pair in ((s, f"label:{s}:{t}"), (f"label:{s}:{t}", t))]
    return lay_out({**sizes, **plates}, edges)


def _line(
    edge: Edge, placed: Layout, text: str, style: str, dx: float, dy: float, why: int | None = None
) -> Line:
    plate = f"label:{edge.source}:{edge.target}"
    points = (*placed.paths[edge.source, plate], *placed.paths[plate, edge.target])
    x, y = placed.centres[plate][0] + dx, placed.centres[plate][1] + dy
    width, height = text_width(text, SMALL_FONT) + 8, LINE
    says = "stays in registers: not moved" if style == "kept" else ""
    return Line(
        _curve([(px + dx, py + dy) for px, py in points]),
        style,
        (x - width / 2, y - height / 2, width, height),
        Text(x, y + 4, text, "small"),
        why,
        says,
    )


def _curve(points: Sequence[Point]) -> str:
    """Straight down inside layers, a bend where the line changes its lane between them."""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        if abs(x0 - x1) < 0.5:
            parts.append(f"L{x1:.1f} {y1:.1f}")
        else:
            parts.append(f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}")
    return "".join(parts)


# Boxes


def _texts(box: Box) -> list[tuple[str, str]]:
    """Lines of a box and their styles."""
    title = clipped(box.title, MOST_LETTERS)
    found = [(f"{title} × {box.times}" if box.kind != "more" and box.times > 1 else title, "title")]
    if box.kind == "kernel" or box.kind == "more":
        found += [(clipped(box.detail, MOST_LETTERS), "small")] if box.detail else []
        found.append((f"reads {nbytes(box.read_bytes)}, writes {nbytes(box.written_bytes)}", "small"))
    elif box.detail:
        found.append((clipped(box.detail, MOST_LETTERS), "small"))
    return found


def _inner(box: Box) -> Layout | None:
    if not box.ops:
        return None
    sizes = {op.name: (text_width(op.label, FONT) + 16, LINE + 6) for op in box.ops}
    return _with_labels(sizes, {(e.source, e.target): nbytes(e.nbytes) for e in box.inside})


def _size(box: Box, inner: Layout | None) -> Point:
    texts = _texts(box)
    width = max(text_width(text, FONT if style == "title" else SMALL_FONT) for text, style in texts)
    height = LINE * len(texts)
    if inner is not None:
        width, height = max(width, inner.width), height + inner.height + PAD
    return width + 2 * PAD, height + 2 * PAD - 4


def _box(box: Box, inner: Layout | None, centre: Point, size: Point, links: Mapping[int, str]) -> DrawnBox:
    width, height = size
    left, top = centre[0] - width / 2 + EDGE, centre[1] - height / 2 + EDGE
    middle = left + width / 2
    texts = [
        Text(middle, top + PAD + LINE * i + 10, text, style) for i, (text, style) in enumerate(_texts(box))
    ]
    chips: list[Chip] = []
    lines: list[Line] = []
    if inner is not None:
        dx, dy = middle - inner.width / 2, top + PAD + LINE * len(texts) + PAD - 4
        for op in box.ops:
            x, y = inner.centres[op.name][0] + dx, inner.centres[op.name][1] + dy
            w, h = text_width(op.label, FONT) + 16, LINE + 6
            chips.append(Chip(x - w / 2, y - h / 2, w, h, Text(x, y + 4, op.label), op.again))
        lines = [_line(e, inner, nbytes(e.nbytes), "kept", dx, dy) for e in box.inside]
    says = f"{box.title}: {box.detail}" if box.detail else box.title
    if box.kind == "kernel":
        says = f"{box.title}: one kernel of {counted(len(box.ops), 'op')}"
    link = "" if box.kernel is None else links.get(box.kernel, "")
    return DrawnBox(box.kind, left, top, width, height, tuple(texts), tuple(chips), tuple(lines), says, link)
