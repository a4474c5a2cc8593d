"""Equal layers of a flow drawn once: the first of them as it is, the others as one box."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onepass.analysis.flow import Box, Edge, Flow
from onepass.analysis.words import IN_ENGLISH, Words

# Folding that hides fewer boxes costs the reader more than it saves: the three projections of attention look alike too.
LEAST_HIDDEN = 8

Repeat = tuple[int, int, int]  # first box, boxes in one, how many


def fold(flow: Flow, words: Words = IN_ENGLISH) -> Flow:
    """The flow with runs of equal stretches folded; each edge of ``flow`` is behind exactly one of the result's."""
    repeats = _repeats(_signatures(flow))
    home = {box.name: box.name for box in flow.boxes}
    again: dict[str, tuple[int, int, str]] = {}  # box → repeat it is in, which of them, the box drawn for it
    more: list[tuple[int, Box]] = []
    hidden: set[str] = set()
    for r, (start, period, count) in enumerate(repeats):
        stretch = flow.boxes[start : start + period]
        name = f"more:{start}"
        for i, box in enumerate(flow.boxes[start : start + period * count]):
            again[box.name] = (r, i // period, stretch[i % period].name)
            if i >= period:
                home[box.name] = name
                hidden.add(box.name)
        more.append((start + period, _more(name, stretch, count - 1, words)))
    edges: dict[tuple[str, str], Edge] = {}
    for edge in flow.edges:
        ends = _ends(edge, home, again)
        edges[ends] = _together(edges.get(ends), replace(edge, source=ends[0], target=ends[1]))
    counts = {again[name][2] for name in again}
    boxes: list[Box] = []
    after = dict(more)
    for i, box in enumerate(flow.boxes):
        if i in after:
            boxes.append(after[i])
        if box.name not in hidden:
            times = repeats[again[box.name][0]][2] if box.name in counts else 1
            boxes.append(replace(box, times=times))
    return Flow(tuple(boxes), tuple(edges.values()))


def _together(before: Edge | None, edge: Edge) -> Edge:
    if before is None:
        return edge
    reasons = {e.cut.reason for e in (before, edge) if e.cut} | {*before.others}
    cut = before.cut or edge.cut
    others = tuple(sorted(reasons - {cut.reason})) if cut else ()
    return replace(before, times=before.times + 1, cut=cut, others=others)


def _ends(edge: Edge, home: dict[str, str], again: dict[str, tuple[int, int, str]]) -> tuple[str, str]:
    """Where an edge is drawn: inside one layer in the first, from layer to layer from the first to the others."""
    source, target = again.get(edge.source), again.get(edge.target)
    if source is None or target is None or source[0] != target[0]:
        return home[edge.source], home[edge.target]
    if source[1] == target[1]:
        return source[2], target[2]
    return source[2], home[edge.target]


def _more(name: str, stretch: tuple[Box, ...], count: int, words: Words) -> Box:
    kernels = sum(box.kind == "kernel" for box in stretch)
    calls = sum(box.kind == "call" for box in stretch)
    parts = [words.count(what, n) for what, n in (("kernel", kernels), ("call", calls)) if n]
    told = words("flow_and", first=parts[0], second=parts[1]) if len(parts) == 2 else "".join(parts)
    return Box(
        name,
        "more",
        words("flow_more", n=count),
        words("flow_each", parts=told),
        read_bytes=sum(box.read_bytes for box in stretch if box.kind == "kernel"),
        written_bytes=sum(box.written_bytes for box in stretch if box.kind == "kernel"),
        times=count,
    )


def _signatures(flow: Flow) -> list[Any]:
    """What makes a box equal to another: what it is and does, what comes in and why that was not fused."""
    kinds = {box.name: box.kind for box in flow.boxes}
    incoming: dict[str, list[tuple[Any, ...]]] = {box.name: [] for box in flow.boxes}
    for edge in flow.edges:
        reason = edge.cut.reason if edge.cut else ""
        incoming[edge.target].append((kinds[edge.source], edge.nbytes, edge.tensors, reason))
    return [
        (
            box.kind,
            box.title,
            box.detail,
            tuple((op.label, op.again) for op in box.ops),
            box.read_bytes,
            box.written_bytes,
            tuple(sorted(incoming[box.name])),
        )
        for box in flow.boxes
    ]


def _repeats(signatures: list[Any], offset: int = 0) -> list[Repeat]:
    """Disjoint runs of equal stretches: the one that hides most, then what is left of it and right of it."""
    start, period, count = _longest(signatures)
    if period * (count - 1) < LEAST_HIDDEN:
        return []
    end = start + period * count
    return [
        *_repeats(signatures[:start], offset),
        (offset + start, period, count),
        *_repeats(signatures[end:], offset + end),
    ]


def _longest(signatures: list[Any]) -> Repeat:
    """The run that hides most boxes; of two the one with the shorter stretch."""
    ids: dict[Any, int] = {}
    numbers = [ids.setdefault(s, len(ids)) for s in signatures]
    best: Repeat = (0, 1, 1)
    for period in range(1, len(numbers) // 2 + 1):
        run = 0
        for i in range(len(numbers) - period + 1):
            if i + period < len(numbers) and numbers[i] == numbers[i + period]:
                run += 1
                continue
            count = run // period + 1
            if period * (count - 1) > best[1] * (best[2] - 1):
                best = (i - run, period, count)
            run = 0
    return best
