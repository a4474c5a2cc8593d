"""Bytes and operations, read off the IRs: what eager's ops move, and what a cluster moves as one kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onepass.ir.address import View
from onepass.ir.cluster import Cluster, EagerOp, Iota, Level, Load, Map, Reduce, Scan, Select
from onepass.ir.symbol import Poly, Size, product
from onepass.ops.table import OPS, REDUCE

Hints = dict[str, int]  # name of a size → a typical value

# A size nobody has seen a value of: data-dependent ones, mostly. Any small number ranks plans the same.
UNKNOWN_SIZE = 64


def number(size: Size, hints: Mapping[str, int]) -> int:
    """A size as a number at typical values."""
    if not isinstance(size, Poly):
        return size
    return size.value({name: hints.get(name, UNKNOWN_SIZE) for name in size.names})


@dataclass(frozen=True)
class Traffic:
    """Bytes a kernel moves when every tensor is read once and written once, and the work it does."""

    read_bytes: int
    written_bytes: int
    flops: int
    instructions: int
    special: int

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes


def traffic(cluster: Cluster, hints: Mapping[str, int]) -> Traffic:
    """The ideal bytes of a cluster, and its operations.

    Units: bytes; operations, lane instructions and special-function instructions, at typical sizes.
    """
    tensors = cluster.tensors
    read = sum(n * tensors[name].dtype.nbytes for name, n in elements_read(cluster, hints).items())
    written = sum(values(cluster, s.level, hints) * tensors[s.tensor].dtype.nbytes for s in cluster.stores)
    half = cluster.half
    flops = instructions = special = 0
    for node in cluster.nodes:
        times = values(cluster, "full" if isinstance(node, Reduce) else node.level, hints)
        if isinstance(node, Map):
            op = OPS[node.op]
            cost = op.cost_half if half and op.cost_half is not None else op.cost
            flops, instructions, special = (
                flops + times * op.flops,
                instructions + times * cost,
                special + times * op.special,
            )
        elif isinstance(node, (Reduce, Scan)):
            reduction = REDUCE[node.op]
            flops, instructions = flops + times * reduction.flops, instructions + times * reduction.cost
        elif isinstance(node, (Load, Iota, Select)):
            instructions += times
    return Traffic(read, written, flops, instructions, special)


def values(cluster: Cluster, level: Level, hints: Mapping[str, int]) -> int:
    """How many values a node or store of a level has."""
    return number(cluster.space.count(level), hints)


def elements_read(cluster: Cluster, hints: Mapping[str, int]) -> dict[str, int]:
    """Elements read of each tensor: loads of one tensor share what they read, gathered rows count one by one."""
    reads: dict[str, int] = {}
    for node in cluster.nodes:
        if isinstance(node, Load):
            elements = reads.get(node.tensor, 0) + _touched(cluster, node, hints)
            whole = number(cluster.tensors[node.tensor].numel, hints)
            reads[node.tensor] = elements if node.index is not None else min(elements, whole)
    return reads


def _touched(cluster: Cluster, load: Load, hints: Mapping[str, int]) -> int:
    """Distinct elements one load needs."""
    if load.index is not None:
        return values(cluster, load.level, hints)
    elements = number(distinct(load.view), hints)
    if load.window is not None:
        low, high = load.window
        elements = elements * (high - low) // max(number(load.view.dims[-1][0], hints), 1)
    return elements


def distinct(view: View) -> Size:
    """Elements a walk touches, each once: expanded dimensions add none."""
    return product(size for size, stride in view.dims if stride != 0)


# Eager's account


def eager_bytes(op: EagerOp, hints: Mapping[str, int]) -> int:
    """Ideal bytes of one op run alone: each input read once, each output written once."""
    return sum(number(elements, hints) * nbytes for elements, nbytes in (*op.read, *op.written))


def memory_bound(ops: Iterable[EagerOp]) -> list[EagerOp]:
    """Eager's ops without matmul, attention, views, and what makes no tensor."""
    return [op for op in ops if op.bound == "memory"]


def ops_inside(cluster: Cluster) -> tuple[str, ...]:
    """Names of the captured graph's nodes that a cluster computes.

    A merged cluster's name joins those of its parts by ``+``, ``>`` and ``|``; what follows a dot numbers the pieces
    of one node.
    """
    return tuple(dict.fromkeys(part.partition(".")[0] for part in re.split(r"[+>|]", cluster.name)))
