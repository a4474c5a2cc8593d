"""The time model: what a cluster moves and computes, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass


from onepass.device import Device
from onepass.ir.address import View
from onepass.ir.cluster import Cluster, Iota, Load, Map, Reduce, Select, Tensor
from onepass.ir.symbol import Poly, Size, product
from onepass.ops.table import OPS, REDUCE
from onepass.plan.spaces import count

Hints = dict[str, int]  # name of a size → a typical value


def number(size: Size, hints: Hints) -> int:
    """A size as a number; sizes without a hint count as 64."""
    return size.value({n: hints.get(n, 64) for n in size.names}) if isinstance(size, Poly) else size


@dataclass(frozen=True)
class Traffic:
    """Bytes a cluster moves when every tensor is read once and written once, and the work it does."""

    read_bytes: int
    written_bytes: int
    flops: int
    instructions: int
    special: int

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes


def distinct(view: View) -> Size:
    """Elements a walk touches, each once: expanded dimensions add none."""
    return product(size for size, stride in view.dims if stride != 0)


def touched(cluster: Cluster, load: Load, hints: Hints) -> int:
    """Elements of memory a load needs."""
    if load.index is not None:
        return number(count(cluster, load.level), hints)
    elements = number(distinct(load.view), hints)
    if load.window is not None:
        wide = number(load.view.dims[-1][0], hints)
        elements = elements * (load.window[1] - load.window[0]) // max(wide, 1)
    return min(elements, number(cluster.tensors[load.tensor].numel, hints))


def traffic(cluster: Cluster, hints: Hints) -> Traffic:
    reads: dict[str, int] = {}
    for node in cluster.nodes:
        if isinstance(node, Load):
            tensor = cluster.tensors[node.tensor]
            whole = number(tensor.numel, hints) if node.index is None else 2**62
            reads[node.tensor] = min(reads.get(node.tensor, 0) + touched(cluster, node, hints), whole)
    read = sum(elements * cluster.tensors[name].dtype.nbytes for name, elements in reads.items())
    written = sum(number(count(cluster, s.level), hints) * _bytes(cluster.tensors[s.tensor]) for s in cluster.stores)
    full, rows = number(cluster.space.numel, hints), number(count(cluster, "row"), hints)
    flops = instructions = special = 0
    for node in cluster.nodes:
        times = full if node.level == "full" or isinstance(node, Reduce) else rows
        if isinstance(node, Map):
            op = OPS[node.op]
            flops, instructions, special = flops + times * op.flops, instructions + times * op.cost, (
                special + times * op.special)
        elif isinstance(node, Reduce):
            flops, instructions = flops + times * REDUCE[node.op].flops, instructions + times * REDUCE[node.op].cost
        elif isinstance(node, (Load, Iota, Select)):
            instructions += times
    return Traffic(read, written, flops, instructions, special)


def _bytes(tensor: Tensor) -> int:
    return tensor.dtype.nbytes


def time_us(work: Traffic, device: Device) -> float:
    """Bound by memory, by issue or by special functions, plus a launch."""
    busiest = max(work.bytes / device.bandwidth_gbps, work.instructions / device.issue_giops,
                  work.special / device.special_giops)
    return busiest / 1000 + device.launch_us


