"""Where the boxes of a graph go: layers and their order by fast-sugiyama, places by the sizes of the boxes.

Every edge stays between two layers or in a lane of its own through one, so that no line crosses a box.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from onepass.errors import MissingPackage

Point = tuple[float, float]
Size = tuple[float, float]

LANE = 14.0  # of an edge that passes through a layer
SWEEPS = 12  # up and down; more no longer move boxes of models by a pixel


@dataclass(frozen=True)
class Layout:
    """Centres of the boxes and the bends of the edges. Units: px; the top left corner is (0, 0)."""

    centres: dict[str, Point]
    paths: dict[tuple[str, str], tuple[Point, ...]]
    width: float
    height: float


def lay_out(sizes: Mapping[str, Size], edges: Iterable[tuple[str, str]], gap: Point = (24.0, 26.0)) -> Layout:
    """Places boxes of these sizes (px) from top to bottom along their edges, which must not go in a circle.

    Raises: MissingPackage
    """
    graph = list(dict.fromkeys(edges))
    parts = [_Part(layers, steps) for layers, steps in _layers(sizes, graph)]
    centres: dict[str, Point] = {}
    paths: dict[tuple[str, str], tuple[Point, ...]] = {}
    left = height = 0.0
    for part in parts:
        width, tall = part.place(sizes, gap, left)
        centres |= part.centres
        paths |= part.paths(set(graph))
        left, height = left + width + gap[0], max(height, tall)
    return Layout(centres, paths, max(left - gap[0], 0.0), height)


Layers = list[list[str]]  # from the top, each from the left
Steps = list[tuple[str, str]]  # from one layer to the next


def _layers(sizes: Mapping[str, Size], edges: Sequence[tuple[str, str]]) -> list[tuple[Layers, Steps]]:
    """Each connected part. A name that begins with ``lane:`` is where an edge passes through a layer."""
    ends = {end for edge in edges for end in edge}
    linked = [name for name in sizes if name in ends]
    found: list[tuple[Layers, Steps]] = []
    for positions, steps in _sugiyama(linked, edges):
        part = len(found)
        name = {n: linked[n] if n < len(linked) else f"lane:{part}:{n}" for n, _ in positions}
        rows: dict[float, list[tuple[float, str]]] = defaultdict(list)
        for n, (x, y) in positions:
            rows[round(-y, 3)].append((x, name[n]))  # the library's y grows upwards
        layers = [[each for _, each in sorted(rows[y])] for y in sorted(rows)]
        found.append((layers, [(name[s], name[t]) for s, t in steps]))
    return [*found, *(([[name]], []) for name in sizes if name not in ends)]


def _sugiyama(
    names: Sequence[str], edges: Sequence[tuple[str, str]]
) -> list[tuple[list[tuple[int, Point]], list[tuple[int, int]]]]:
    """Positions and steps of each connected part. Names are given as numbers: of names the library makes a set, whose
    order changes from process to process. Numbers beyond those of the names are lanes."""
    if not edges:
        return []
    try:
        from fast_sugiyama import from_edges
    except ImportError as error:
        raise MissingPackage("a page with a picture of the data flow", "fast-sugiyama", "html") from error
    number = {name: i for i, name in enumerate(names)}
    layouts = from_edges(
        [(number[s], number[t]) for s, t in edges], vertex_spacing=100, dummy_vertices=True, dummy_size=100
    )
    return [
        ([(int(n), xy) for n, xy in positions], [(int(s), int(t)) for s, t in steps or ()])
        for positions, _, _, steps in layouts
    ]


class _Part:
    """One connected part while it is being placed."""

    def __init__(self, layers: Layers, steps: Steps) -> None:
        self.layers, self.steps = layers, steps
        self.above: dict[str, list[str]] = defaultdict(list)
        self.below: dict[str, list[str]] = defaultdict(list)
        for source, target in steps:
            self.below[source].append(target)
            self.above[target].append(source)

    def place(self, sizes: Mapping[str, Size], gap: Point, left: float) -> tuple[float, float]:
        """Sets the centres, and gives width and height."""
        self.sizes = {name: sizes.get(name, (LANE, 0.0)) for layer in self.layers for name in layer}
        x = dict.fromkeys(self.sizes, 0.0)
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            towards = self.above if down else self.below
            for layer in self.layers if down else reversed(self.layers):
                wanted = [_mean([x[n] for n in towards[name]], x[name]) for name in layer]
                apart = [(self.sizes[a][0] + self.sizes[b][0]) / 2 + gap[0] for a, b in pairwise(layer)]
                x.update(zip(layer, spread(wanted, apart), strict=True))
        least = min(x[name] - self.sizes[name][0] / 2 for name in x)
        y = 0.0
        self.centres: dict[str, Point] = {}
        self.spans: dict[str, Point] = {}  # top and bottom of the layer that a box is in
        for layer in self.layers:
            tall = max(self.sizes[name][1] for name in layer)
            for name in layer:
                self.centres[name] = (x[name] - least + left, y + tall / 2)
                self.spans[name] = (y, y + tall)
            y += tall + gap[1]
        right = max(self.centres[name][0] + self.sizes[name][0] / 2 for name in x)
        return right - left, y - gap[1]

    def paths(self, edges: set[tuple[str, str]]) -> dict[tuple[str, str], tuple[Point, ...]]:
        """The bends of each edge: down to the end of its layer, across, through the lanes, down to its target."""
        found = {}
        for start in self.layers:
            for source in start:
                if source.startswith("lane:"):
                    continue
                for first in self.below[source]:
                    way = [source, first]
                    while way[-1].startswith("lane:"):
                        way.append(self.below[way[-1]][0])
                    if (source, way[-1]) in edges:
                        found[source, way[-1]] = self.bends(way)
        return found

    def bends(self, way: list[str]) -> tuple[Point, ...]:
        first, last = way[0], way[-1]
        x, y = self.centres[first]
        points = [(x, y + self.sizes[first][1] / 2), (x, self.spans[first][1])]
        for name in way[1:-1]:
            points += [(self.centres[name][0], edge) for edge in self.spans[name]]
        x, y = self.centres[last]
        points += [(x, self.spans[last][0]), (x, y - self.sizes[last][1] / 2)]
        # A box as tall as its layer gives one point twice, and a line of no length gives its arrow no direction.
        return tuple(dict.fromkeys(points))


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def spread(wanted: Sequence[float], apart: Sequence[float]) -> list[float]:
    """Places in the given order, neighbours at least ``apart``, with the least squared distance to those wanted.

    Source: isotonic regression by pooling neighbours that violate the order (Barlow et al., 1972).
    """
    if not wanted:
        return []
    offsets = list(accumulate(apart, initial=0.0))
    pools: list[tuple[float, int]] = []  # mean of wanted − offset, members
    for want, offset in zip(wanted, offsets, strict=True):
        pools.append((want - offset, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (b, m), (a, n) = pools.pop(), pools.pop()
            pools.append(((a * n + b * m) / (n + m), n + m))
    flat = [mean for mean, members in pools for _ in range(members)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=True)]
