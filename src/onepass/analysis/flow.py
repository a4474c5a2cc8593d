"""The data flow of a planned graph: what runs, which ops are inside, the bytes between, and why an edge was cut."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from onepass.analysis.traffic import Hints, elements_read, number, values
from onepass.ir.cluster import Call, Cluster, Item, Program

Kind = Literal["kernel", "call", "input", "output", "more"]

# Tensors from outside that are smaller than this share of the largest in the graph are counted in what a kernel reads,
# not drawn: weights of norms and biases would be half of a picture.
SMALL = 0.02


@dataclass(frozen=True)
class Op:
    """One op of the captured graph inside a box; ``again`` where another box computes it too."""

    name: str
    label: str
    again: bool = False


@dataclass(frozen=True)
class Cut:
    """Why an edge goes through memory, and what fusing across it would save. Units: bytes, µs (estimates)."""

    reason: str
    detail: str
    bytes_saved: int
    us_saved: float


@dataclass(frozen=True)
class Edge:
    """What one box leaves in memory for another, or, inside a box, one op in registers for another.

    ``times`` edges like it stand behind one of a folded flow, some of them cut for ``others`` of the reasons.
    """

    source: str
    target: str
    nbytes: int
    tensors: int = 1
    cut: Cut | None = None
    times: int = 1
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Box:
    """A kernel, a call of PyTorch, a tensor from outside or for outside, or ``more`` layers like the one drawn.

    ``kernel`` is the place among the report's kernels.
    """

    name: str
    kind: Kind
    title: str
    detail: str = ""
    ops: tuple[Op, ...] = ()
    inside: tuple[Edge, ...] = ()
    read_bytes: int = 0
    written_bytes: int = 0
    kernel: int | None = None
    times: int = 1


@dataclass(frozen=True)
class Flow:
    """Boxes in execution order, and the edges between them."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]


def flow(
    program: Program,
    items: Sequence[Item],
    titles: Sequence[str],
    cuts: Mapping[tuple[str, str], Cut],
    hints: Hints,
    first_kernel: int = 0,
) -> Flow:
    """The flow of a planned program.

    ``titles`` names the kernels of the clusters among ``items``, ``cuts`` holds the planner's reason for each pair of
    items by their names, ``first_kernel`` is how many kernels the report has before this graph's.
    """
    return _Reading(program, hints, cuts, dict(enumerate(titles)), first_kernel).run(items)


@dataclass
class _Reading:
    program: Program
    hints: Hints
    cuts: Mapping[tuple[str, str], Cut]
    titles: dict[int, str]
    first_kernel: int
    boxes: list[Box] = field(default_factory=list)
    edges: dict[tuple[str, str], Edge] = field(default_factory=dict)
    writer: dict[str, str] = field(default_factory=dict)  # tensor → the box that wrote it last
    inputs: set[str] = field(default_factory=set)
    seen_ops: set[str] = field(default_factory=set)

    def run(self, items: Sequence[Item]) -> Flow:
        self.captured = {item.name: item for item in self.program.items}
        self.biases = {i.writes[0]: i for i in items if isinstance(i, Call) and i.bare}
        self.least = SMALL * max((max(self.read(i).values(), default=0) for i in items), default=0)
        for item in items:
            self.take(item)
        linked = {end for key in self.edges for end in key}
        drawn = [b for b in self.boxes if b.name in linked or b.kind == "kernel"]
        return Flow(tuple(drawn), tuple(self.edges.values()))

    def take(self, item: Item) -> None:
        """One item: the inputs it is the first to read, itself, its edges, and what of it leaves the graph."""
        read, box = self.read(item), self.box(item)
        known = [(t, n) for t, n in read.items() if t in self.writer]
        outside = [(t, n) for t, n in read.items() if t not in self.writer and self.shown(item, n)]
        for tensor, _ in outside:
            self.input(tensor)
        self.boxes.append(box)
        for tensor, nbytes in known:
            self.link(self.writer[tensor], box.name, nbytes)
        for tensor, nbytes in outside:
            self.link(f"input:{tensor}", box.name, nbytes)
        for tensor in (*item.writes, *getattr(item, "mutates", ())):
            self.writer[tensor] = box.name
            if tensor in self.program.outputs:
                self.output(tensor, box.name)

    def shown(self, item: Item, nbytes: int) -> bool:
        """Weights of matmuls are no traffic that fusing could save."""
        return isinstance(item, Cluster) and nbytes >= self.least

    def input(self, tensor: str) -> None:
        if tensor not in self.inputs:
            self.inputs.add(tensor)
            self.boxes.append(Box(f"input:{tensor}", "input", "input", self.shape(tensor)))

    def output(self, tensor: str, box: str) -> None:
        name = f"output:{tensor}:{len(self.boxes)}"
        self.boxes.append(Box(name, "output", "result", self.shape(tensor)))
        self.link(box, name, self.whole(tensor))

    def link(self, source: str, target: str, nbytes: int) -> None:
        before = self.edges.get((source, target))
        if before is not None:
            self.edges[source, target] = replace(
                before, nbytes=before.nbytes + nbytes, tensors=before.tensors + 1
            )
            return
        self.edges[source, target] = Edge(source, target, nbytes, cut=self.cuts.get((source, target)))

    # One item

    def box(self, item: Item) -> Box:
        read = sum(self.read(item).values())
        if isinstance(item, Call):
            written = sum(self.whole(t) for t in item.writes)
            detail = item.reason or ("bound by arithmetic" if item.bound == "compute" else "")
            return Box(item.name, "call", plain(item.target), detail, read_bytes=read, written_bytes=written)
        index = next(iter(self.titles))
        ops = self.ops(item)
        return Box(
            item.name,
            "kernel",
            self.titles.pop(index),
            ops=ops,
            inside=self.inside(ops),
            read_bytes=read,
            written_bytes=sum(
                values(item, s.level, self.hints) * item.tensors[s.tensor].dtype.nbytes for s in item.stores
            ),
            kernel=self.first_kernel + index,
        )

    def ops(self, cluster: Cluster) -> tuple[Op, ...]:
        """The captured ops of a cluster, whose name joins theirs, and the biases that it adds for matmuls."""
        names = dict.fromkeys(re.split(r"[+>|]", cluster.name))
        found = [Op(name, self.label(name), name in self.seen_ops) for name in names]
        self.seen_ops.update(names)
        biases = [Op(f"{t}.bias", "add bias") for t in cluster.reads if t in self.biases]
        return (*biases, *found)

    def label(self, name: str) -> str:
        item = self.captured.get(name)
        return plain(item.origins[0]) if isinstance(item, Cluster) and item.origins else plain(name)

    def inside(self, ops: Sequence[Op]) -> tuple[Edge, ...]:
        """What ops of one kernel hand on without memory."""
        edges = []
        wrote = {
            t: op.name for op in ops if (item := self.captured.get(op.name)) is not None for t in item.writes
        }
        biased = {op.name.removesuffix(".bias"): op.name for op in ops if op.name.endswith(".bias")}
        for op in ops:
            item = self.captured.get(op.name)
            for tensor in item.reads if item is not None else ():
                source = wrote.get(tensor) or biased.get(tensor)
                if source is not None and source != op.name:
                    edges.append(Edge(source, op.name, self.whole(tensor)))
        return tuple({(e.source, e.target): e for e in edges}.values())

    # Bytes

    def read(self, item: Item) -> dict[str, int]:
        """Bytes an item reads of each tensor."""
        if isinstance(item, Cluster):
            found = elements_read(item, self.hints)
            return {t: n * item.tensors[t].dtype.nbytes for t, n in found.items()}
        return {t: self.whole(t) for t in item.reads}

    def whole(self, tensor: str) -> int:
        """All of a tensor; 0 of one that only calls hand on, of which a program knows no more than the name."""
        info = self.program.tensors.get(tensor)
        return 0 if info is None else number(info.numel, self.hints) * info.dtype.nbytes

    def shape(self, tensor: str) -> str:
        info = self.program.tensors.get(tensor)
        if info is None:
            return ""
        sizes = " × ".join(str(number(size, self.hints)) for size in info.shape)
        return f"{info.dtype.short} {sizes}".rstrip()


def plain(name: str) -> str:
    """``gelu`` for ``gelu.default``, ``softmax`` for ``_softmax.default``, ``attention`` for onepass's own."""
    return name.removeprefix("onepass.").split(".")[0].removeprefix("native_").removeprefix("_")
