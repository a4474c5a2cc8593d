"""Cluster IR: what one kernel computes, before it is decided how.

A cluster lives on a space outer × reduced × inner, numbered row-major by one linear index. A node has a level: ``full``
(one value for each index), ``row`` (one value for each outer × inner position: what a reduction gives and what is
computed from that alone) or ``block`` (the same of aligned blocks of neighbouring indices inside a row). Loads and stores
carry a `View` from the linear index of their level to the row-major numbering of a tensor; permutes, slices, splits,
expands and reshapes are in that view, not nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from onepass.dtypes import Class, DType
from onepass.ir.address import View
from onepass.ir.symbol import Poly, Size, product, quotient

Level = Literal["full", "row", "block"]
Operand = str | int | float | bool | Poly  # the name of a node, a number or a size
Number = Any  # an int, a float, a bool or a size


@dataclass(frozen=True)
class Tensor:
    """Memory that kernels read or write. ``memory`` takes its row-major numbering to its storage."""

    name: str
    dtype: DType
    shape: tuple[Size, ...]
    memory: View

    @property
    def numel(self) -> Size:
        return product(self.shape)


@dataclass(frozen=True)
class Load:
    """Reads ``tensor``. ``window`` limits it to columns lo ≤ c < hi; ``index`` names the node that chooses the row of a
    table, ``view`` then walks inside that row and ``table`` gives (rows, elements from row to row)."""

    name: str
    level: Level
    tensor: str
    view: View
    kind: Class
    window: tuple[int, int] | None = None
    index: str | None = None
    table: tuple[Size, Size] | None = None


@dataclass(frozen=True)
class Iota:
    """start + step × (where the view points)."""

    name: str
    level: Level
    view: View
    start: Number
    kind: Class = "int"


@dataclass(frozen=True)
class Map:
    """An element-wise op over nodes and numbers."""

    name: str
    level: Level
    op: str
    operands: tuple[Operand, ...]
    kind: Class


@dataclass(frozen=True)
class Select:
    """Column c comes from the piece whose half-open range holds c; ``bounds`` are the ends of the ranges."""

    name: str
    level: Level
    operands: tuple[Operand, ...]
    bounds: tuple[int, ...]
    kind: Class


@dataclass(frozen=True)
class Reduce:
    """A reduction of a full value along the reduced dimension, or along each block of it, as its level says."""

    name: str
    op: str
    operand: str
    kind: Class = "float"
    level: Level = "row"

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (self.operand,)


@dataclass(frozen=True)
class Scan:
    """Each index along the reduced dimension gets what the reduction gives of it and all before it."""

    name: str
    op: str
    operand: str
    kind: Class = "float"
    level: Level = "full"

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (self.operand,)


Node = Load | Iota | Map | Select | Reduce | Scan


@dataclass(frozen=True)
class Store:
    """Writes a value. ``view`` takes the linear index of the value's level to the tensor's numbering."""

    tensor: str
    value: str
    level: Level
    view: View


@dataclass(frozen=True)
class Space:
    """outer × reduced × inner. ``reduced`` is None while nothing in the cluster reduces: then only ``numel`` holds.

    ``block``: indices in a block of the reduced dimension, where something is reduced block by block; else 0.
    """

    numel: Size
    outer: Size | None = None
    reduced: Size | None = None
    inner: Size = 1
    block: int = 0

    @property
    def rows(self) -> Size | None:
        return None if self.outer is None else product((self.outer, self.inner))

    def count(self, level: Level) -> Size:
        """How many values a node of a level has."""
        if level == "block":
            blocks = quotient(self.numel, self.block)
            assert blocks is not None
            return blocks
        return self.numel if level == "full" or self.rows is None else self.rows


@dataclass(frozen=True)
class Cluster:
    """Nodes in one space, in an order that respects their operands, and what they leave in memory."""

    name: str
    space: Space
    nodes: tuple[Node, ...]
    stores: tuple[Store, ...]
    origins: tuple[str, ...]  # the ATen ops inside, for reports
    tensors: dict[str, Tensor] = field(hash=False, compare=False)  # of its loads and stores
    device: str = "cpu"

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n.tensor for n in self.nodes if isinstance(n, Load)))

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s.tensor for s in self.stores))

    @property
    def reduces(self) -> bool:
        return self.space.reduced is not None

    @property
    def scans(self) -> bool:
        return any(isinstance(n, Scan) for n in self.nodes)

    @property
    def half(self) -> bool:
        """Whether every float it leaves has 16 bits or fewer, for which the short forms of functions are exact enough."""
        floats = [d for s in self.stores if (d := self.tensors[s.tensor].dtype).kind == "float"]
        return bool(floats) and all(d.nbytes <= 2 for d in floats)

    def node(self, name: str) -> Node:
        return next(n for n in self.nodes if n.name == name)


def operands(node: Node) -> Iterable[str]:
    """The nodes a node needs."""
    if isinstance(node, Load):
        return () if node.index is None else (node.index,)
    if isinstance(node, Iota):
        return ()
    return tuple(o for o in node.operands if isinstance(o, str))


@dataclass(frozen=True)
class Addend:
    """What a call adds to its result and a reader could add instead. ``view``: the result's numbering to the tensor's."""

    tensor: str
    view: View
    others: tuple[str, ...]  # what the call reads without it


@dataclass(frozen=True)
class Call:
    """An op that stays with PyTorch: a matmul, attention, or something no kernel expresses.

    ``bound`` says what limits it; ``reason`` why it was left, empty for what is PyTorch's by design. Without its
    addend, ``bare``, it is another op: ``target`` says which.
    """

    name: str
    target: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    bound: Literal["compute", "memory", "view", "none"]
    reason: str = ""
    mutates: tuple[str, ...] = ()
    order: bool = False  # draws random numbers or has effects: stays in order with others like it
    addend: Addend | None = None
    bare: bool = False


Item = Cluster | Call


@dataclass(frozen=True)
class EagerOp:
    """What one ATen op of the graph would do in eager: the account that fusion is measured against.

    Units: bytes; each input read once, each output written once.
    """

    name: str
    target: str
    bound: Literal["compute", "memory", "view", "none"]
    read: tuple[tuple[Size, int], ...]  # (elements, bytes an element)
    written: tuple[tuple[Size, int], ...]


@dataclass(frozen=True)
class Program:
    """A captured graph: items in execution order, the tensors between them, and eager's account."""

    items: tuple[Item, ...]
    tensors: dict[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]  # tensors that leave the graph, directly or through views
    eager: tuple[EagerOp, ...]
