"""A flow as boxes and lines with places: everything the template has to write down. Units: px."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from onepass.analysis.flow import Box, Cut, Edge, Flow
from onepass.analysis.html.layout import Layout, Point, lay_out
from onepass.analysis.html.text import clipped, nbytes, text_width, us
from onepass.analysis.words import Words

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


def picture(
    flow: Flow, reasons: Mapping[str, str], links: Mapping[int, str], words: Words, first_cut: int = 0
) -> Picture:
    """Draws a flow. ``links`` gives where on the page a kernel of the report is, by its place there.

    Cut edges are numbered from ``first_cut``. Raises: MissingPackage
    """
    boxes = [_in_words(box, words) for box in flow.boxes]
    inner = {box.name: _inner(box) for box in boxes}
    sizes = {box.name: _size(box, inner[box.name], words) for box in boxes}
    labels = {(edge.source, edge.target): _label(edge, words) for edge in flow.edges}
    placed = _with_labels(sizes, labels)
    titles = {box.name: _name(box) for box in boxes}
    cuts: list[ShownCut] = []
    lines = []
    for edge in flow.edges:
        why = None
        if edge.cut is not None:
            why = first_cut + len(cuts)
            cuts.append(_shown(why, edge, edge.cut, titles, reasons, words))
        style = "plain" if edge.cut is None else "cut"
        lines.append(_line(edge, placed, labels[edge.source, edge.target], style, EDGE, EDGE, words, why))
    drawn = [
        _box(box, inner[box.name], placed.centres[box.name], sizes[box.name], links, words) for box in boxes
    ]
    return Picture(placed.width + 2 * EDGE, placed.height + 2 * EDGE, tuple(drawn), tuple(lines), tuple(cuts))


def _shown(
    number: int,
    edge: Edge,
    cut: Cut,
    titles: Mapping[str, str],
    reasons: Mapping[str, str],
    words: Words,
) -> ShownCut:
    saves = words("cut_saves", nbytes=nbytes(cut.bytes_saved), time=us(cut.us_saved))
    if not cut.bytes_saved:  # the planner gave up before it had a kernel to compare with
        saves = words("cut_at_most", nbytes=nbytes(2 * edge.nbytes))
    meaning = words.reason(cut.reason, reasons.get(cut.reason, cut.reason))
    for other in edge.others:
        what = words.reason(other, reasons.get(other, other))
        meaning += words("cut_others", times=edge.times, code=other, meaning=what)
    told = replace(cut, detail=words.phrase(cut.detail))
    return ShownCut(
        number,
        titles[edge.source],
        titles[edge.target],
        nbytes(edge.nbytes),
        told,
        meaning,
        saves,
        edge.times,
    )


def _in_words(box: Box, words: Words) -> Box:
    """A box whose title, detail and ops stand in a language where they are no names."""
    title = {"input": words("flow_input"), "output": words("flow_result")}.get(box.kind, box.title)
    detail = words("flow_by_arithmetic") if box.detail == "bound by arithmetic" else words.phrase(box.detail)
    ops = tuple(replace(op, label=words("flow_add_bias")) if op.label == "add bias" else op for op in box.ops)
    return replace(box, title=title, detail=detail, ops=ops)


def _name(box: Box) -> str:
    return f"{box.title} {box.detail}" if box.kind in ("input", "output") else box.title


def _label(edge: Edge, words: Words) -> str:
    moved = nbytes(edge.nbytes)
    told = words("flow_tensors", nbytes=moved, n=edge.tensors) if edge.tensors > 1 else moved
    return told + (f" × {edge.times}" if edge.times > 1 else "")


# Layout: an edge's label is a box of its own between the two, so that nothing lies over it


def _with_labels(sizes: Mapping[str, Point], labels: Mapping[tuple[str, str], str]) -> Layout:
    plates = {
        f"label:{s}:{t}": (text_width(text, SMALL_FONT) + 10, LINE + 2) for (s, t), text in labels.items()
    }
    edges = [pair for s, t in labels for pair in ((s, f"label:{s}:{t}"), (f"label:{s}:{t}", t))]
    return lay_out({**sizes, **plates}, edges)


def _line(
    edge: Edge,
    placed: Layout,
    text: str,
    style: str,
    dx: float,
    dy: float,
    words: Words,
    why: int | None = None,
) -> Line:
    plate = f"label:{edge.source}:{edge.target}"
    points = (*placed.paths[edge.source, plate], *placed.paths[plate, edge.target])
    x, y = placed.centres[plate][0] + dx, placed.centres[plate][1] + dy
    width, height = text_width(text, SMALL_FONT) + 8, LINE
    says = words("flow_registers") if style == "kept" else ""
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


def _texts(box: Box, words: Words) -> list[tuple[str, str]]:
    """Lines of a box and their styles."""
    title = clipped(box.title, MOST_LETTERS)
    found = [(f"{title} × {box.times}" if box.kind != "more" and box.times > 1 else title, "title")]
    if box.kind == "kernel" or box.kind == "more":
        found += [(clipped(box.detail, MOST_LETTERS), "small")] if box.detail else []
        told = words("flow_reads", read=nbytes(box.read_bytes), written=nbytes(box.written_bytes))
        found.append((told, "small"))
    elif box.detail:
        found.append((clipped(box.detail, MOST_LETTERS), "small"))
    return found


def _inner(box: Box) -> Layout | None:
    if not box.ops:
        return None
    sizes = {op.name: (text_width(op.label, FONT) + 16, LINE + 6) for op in box.ops}
    return _with_labels(sizes, {(e.source, e.target): nbytes(e.nbytes) for e in box.inside})


def _size(box: Box, inner: Layout | None, words: Words) -> Point:
    texts = _texts(box, words)
    width = max(text_width(text, FONT if style == "title" else SMALL_FONT) for text, style in texts)
    height = LINE * len(texts)
    if inner is not None:
        width, height = max(width, inner.width), height + inner.height + PAD
    return width + 2 * PAD, height + 2 * PAD - 4


def _box(
    box: Box, inner: Layout | None, centre: Point, size: Point, links: Mapping[int, str], words: Words
) -> DrawnBox:
    width, height = size
    left, top = centre[0] - width / 2 + EDGE, centre[1] - height / 2 + EDGE
    middle = left + width / 2
    texts = [
        Text(middle, top + PAD + LINE * i + 10, text, style)
        for i, (text, style) in enumerate(_texts(box, words))
    ]
    chips: list[Chip] = []
    lines: list[Line] = []
    if inner is not None:
        dx, dy = middle - inner.width / 2, top + PAD + LINE * len(texts) + PAD - 4
        for op in box.ops:
            x, y = inner.centres[op.name][0] + dx, inner.centres[op.name][1] + dy
            w, h = text_width(op.label, FONT) + 16, LINE + 6
            chips.append(Chip(x - w / 2, y - h / 2, w, h, Text(x, y + 4, op.label), op.again))
        lines = [_line(e, inner, nbytes(e.nbytes), "kept", dx, dy, words) for e in box.inside]
    says = f"{box.title}: {box.detail}" if box.detail else box.title
    if box.kind == "kernel":
        says = words("flow_one_kernel", name=box.title, ops=words.count("op", len(box.ops)))
    link = "" if box.kernel is None else links.get(box.kernel, "")
    return DrawnBox(box.kind, left, top, width, height, tuple(texts), tuple(chips), tuple(lines), says, link)
