"""Clusters and programs in float64: what generated kernels are compared with.

A tensor is the flat array of its row-major numbering, floating-point numbers as float64, integers as int64. Every value of
a cluster is an array over the linear index of its level. Nothing is shared with lowering or the printers, so that a fault
there can't hide here: addresses are worked out one element at a time, from the views alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

import torch

from onepass.dtypes import Class
from onepass.errors import BadCluster
from onepass.ir.address import View
from onepass.ir.cluster import (
    Call,
    Cluster,
    Iota,
    Level,
    Load,
    Map,
    Node,
    Program,
    Reduce,
    Scan,
    Select,
    Store,
    Tensor,
)
from onepass.ir.symbol import Poly, Size, evaluate
from onepass.ops.table import OPS, REDUCE

Flat = torch.Tensor
Sizes = Mapping[str, int]
NO_SIZES: Sizes = MappingProxyType({})
# Sees each floating-point value of a cluster, for a reduction the terms it is about to combine, and may change them: the
# tests put rounding errors in this way. Called with the node and the array.
Watch = Callable[[Node, Flat], Flat]

SCANS: Mapping[str, Callable[..., Flat]] = {"sum": torch.cumsum, "prod": torch.cumprod}

TYPE: dict[Class, torch.dtype] = {
    "float": torch.float64,
    "double": torch.float64,
    "int": torch.int64,
    "bool": torch.bool,
}


@dataclass
class Memory:
    """Tensors by name, and which of their elements hold something."""

    values: dict[str, Flat] = field(default_factory=dict)
    known: dict[str, Flat] = field(default_factory=dict)

    def put(self, name: str, values: Flat) -> None:
        """A whole tensor, in its row-major numbering."""
        self.values[name] = values
        self.known[name] = torch.ones(values.numel(), dtype=torch.bool)

    def read(self, tensor: Tensor, at: Flat) -> Flat:
        values, known = self.values.get(tensor.name), self.known.get(tensor.name)
        if values is None or known is None:
            raise BadCluster(tensor.name, "is read before anything wrote it")
        _inside(tensor, at, values.numel())
        if not bool(known[at].all()):
            raise BadCluster(tensor.name, "is read where nothing wrote it")
        return values[at]

    def write(self, tensor: Tensor, at: Flat, value: Flat, numel: int) -> None:
        if tensor.name not in self.values:
            self.values[tensor.name] = torch.zeros(numel, dtype=TYPE[tensor.dtype.kind])
            self.known[tensor.name] = torch.zeros(numel, dtype=torch.bool)
        _inside(tensor, at, numel)
        if torch.unique(at).numel() != at.numel():
            raise BadCluster(tensor.name, "has an element that two indices write")
        self.values[tensor.name][at] = value
        self.known[tensor.name][at] = True


def number(tensor: Tensor, x: torch.Tensor, sizes: Sizes) -> Flat:
    """The row-major numbering of a tensor in memory, given as PyTorch holds it."""
    dims = [(evaluate(n, sizes), evaluate(s, sizes)) for n, s in tensor.memory.dims]
    at = x.storage_offset() + evaluate(tensor.memory.offset, sizes)
    walked = torch.as_strided(x, [n for n, _ in dims], [s for _, s in dims], at)
    return walked.reshape(-1).to(TYPE[tensor.dtype.kind])


def place(
    tensor: Tensor, flat: Flat, shape: torch.Size, stride: tuple[int, ...], sizes: Sizes
) -> torch.Tensor:
    """A numbering as PyTorch would hold it: the inverse of `number`, in float64 or int64."""
    dims = tuple((evaluate(n, sizes), evaluate(step, sizes)) for n, step in tensor.memory.dims)
    at = _elements(dims, evaluate(tensor.memory.offset, sizes))
    x = torch.empty_strided(shape, stride, dtype=flat.dtype)
    storage = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,))
    storage[at.reshape(-1)] = (
        flat  # elements that share memory, as in an expanded tensor, hold the same value
    )
    return x


def run_program(
    program: Program,
    inputs: Mapping[str, Flat],
    call: Callable[[Call, Memory], Mapping[str, Flat]],
    sizes: Sizes = NO_SIZES,
    watch: Watch | None = None,
) -> Memory:
    """Every item in order; ``call`` gives the tensors that a call writes.

    Raises: BadCluster if a cluster reads what is not there, or walks out of a tensor.
    """
    memory = Memory()
    for name, values in inputs.items():
        memory.put(name, values)
    for item in program.items:
        if isinstance(item, Cluster):
            run_cluster(item, memory, sizes, watch)
        else:
            for name, values in call(item, memory).items():
                memory.put(name, values)
    return memory


def run_cluster(
    cluster: Cluster, memory: Memory, sizes: Sizes = NO_SIZES, watch: Watch | None = None
) -> None:
    """Reads and writes ``memory``."""
    run = _Run(cluster, memory, sizes, watch or (lambda node, x: x))
    for node in cluster.nodes:
        run.values[node.name] = run.node(node)
        run.levels[node.name] = node.level
    for store in cluster.stores:
        run.store(store)


class _Run:
    def __init__(self, cluster: Cluster, memory: Memory, sizes: Sizes, watch: Watch) -> None:
        self.cluster, self.memory, self.sizes, self.watch = cluster, memory, sizes, watch
        self.values: dict[str, Flat] = {}
        self.levels: dict[str, Level] = {}
        space = cluster.space
        self.numel = self.size(space.numel)
        self.inner = self.size(space.inner)
        self.reduced = 1 if space.reduced is None else self.size(space.reduced)
        self.block = space.block
        self.outer = (
            self.numel // max(1, self.reduced * self.inner) if space.outer is None else self.size(space.outer)
        )
        if self.outer * self.reduced * self.inner != self.numel:
            raise BadCluster(cluster.name, f"has {self.numel} indices in {space}")

    def size(self, size: Size) -> int:
        return evaluate(size, self.sizes)

    def count(self, level: Level) -> int:
        if level == "block":
            return self.numel // self.block
        return self.numel if level == "full" else self.outer * self.inner

    def walk(self, view: View, level: Level) -> Flat:
        """The element number at each index of a level."""
        dims = tuple((self.size(n), self.size(stride)) for n, stride in view.dims)
        at = _elements(dims, self.size(view.offset))
        if at.numel() != self.count(level):
            raise BadCluster(
                self.cluster.name, f"walks {at.numel()} elements over {self.count(level)} indices"
            )
        return at.reshape(-1)

    def node(self, node: Node) -> Flat:
        if isinstance(node, Load):
            value = self.load(node)
        elif isinstance(node, Iota):
            value = self.scalar(node.start, "int") + self.walk(node.view, node.level)
        elif isinstance(node, Map):
            value = self.map(node)
        elif isinstance(node, Select):
            value = self.select(node)
        elif isinstance(node, Scan):
            value = self.scan(node)
        else:
            return self.reduce(node)
        value = value.to(TYPE[node.kind])
        return self.watch(node, value) if node.kind in ("float", "double") else value

    def load(self, node: Load) -> Flat:
        tensor = self.cluster.tensors[node.tensor]
        at = self.walk(node.view, node.level)
        if node.index is not None and node.table is not None:
            rows, chosen = self.size(node.table[0]), self.operand(node.index, node.level, "int")
            if bool(((chosen < 0) | (chosen >= rows)).any()):
                raise IndexError("index out of range in self")
            at = at + chosen * self.size(node.table[1])
        if node.window is None:
            return self.memory.read(tensor, at)
        column = torch.arange(at.numel()) % self.size(node.view.dims[-1][0])
        inside = (column >= node.window[0]) & (column < node.window[1])
        value = torch.zeros(at.numel(), dtype=TYPE[node.kind])
        value[inside] = self.memory.read(tensor, at[inside]).to(value.dtype)
        return value

    def map(self, node: Map) -> Flat:
        op = OPS[node.op]
        kinds = [self.kind(o) for o in node.operands]
        wide = max((k for k in kinds if k is not None), key=("bool", "int", "float", "double").index)
        values = []
        for i, o in enumerate(node.operands):
            kind: Class = (
                "bool"
                if op.operands == "condition" and i == 0
                else (wide if wide == "double" else "float")
                if op.operands == "float"
                else (node.kind if op.operands == "condition" else wide)
            )
            values.append(self.operand(o, node.level, kind))
        result: Flat = op.reference(*values)
        return result.expand(self.count(node.level))

    def kind(self, operand: object) -> Class | None:
        return (
            next(n.kind for n in self.cluster.nodes if n.name == operand)
            if isinstance(operand, str)
            else None
        )

    def operand(self, operand: object, level: Level, kind: Class) -> Flat:
        if not isinstance(operand, str):
            return self.scalar(operand, kind)
        value = self.values[operand]
        if self.levels[operand] == level:
            return value
        if level == "row" or self.levels[operand] == "full":
            raise BadCluster(self.cluster.name, f"uses {operand}, a value of every index, once a {level}")
        if self.levels[operand] == "block":
            return value.repeat_interleave(self.block)
        across = self.reduced // self.block if level == "block" else self.reduced
        return value.reshape(self.outer, 1, self.inner).expand(-1, across, -1).reshape(-1)

    def scalar(self, value: object, kind: Class) -> Flat:
        return torch.tensor(value.value(self.sizes) if isinstance(value, Poly) else value, dtype=TYPE[kind])

    def select(self, node: Select) -> Flat:
        column = torch.arange(self.count(node.level)) % node.bounds[-1]
        value = torch.zeros(column.numel(), dtype=TYPE[node.kind])
        low = 0
        for operand, high in zip(node.operands, node.bounds, strict=True):
            piece = self.operand(operand, node.level, node.kind).to(value.dtype)
            value = torch.where((column >= low) & (column < high), piece, value)
            low = high
        return value

    def reduce(self, node: Reduce) -> Flat:
        terms = self.operand(node.operand, "full", node.kind)
        if node.kind in ("float", "double"):
            terms = self.watch(node, terms)
        shape = (-1, self.block, 1) if node.level == "block" else (self.outer, self.reduced, self.inner)
        reduced: Flat = REDUCE[node.op].reference(terms.reshape(shape), [1])
        return reduced.reshape(-1)

    def scan(self, node: Scan) -> Flat:
        terms = self.operand(node.operand, "full", node.kind)
        if node.kind in ("float", "double"):
            terms = self.watch(node, terms)
        rows = terms.reshape(self.outer, self.reduced, self.inner)
        return SCANS[node.op](rows, dim=1).reshape(-1)

    def store(self, store: Store) -> None:
        tensor = self.cluster.tensors[store.tensor]
        at = self.walk(store.view, store.level)
        value = self.operand(store.value, store.level, tensor.dtype.kind)
        self.memory.write(tensor, at, value, self.size(tensor.numel))


@lru_cache(maxsize=256)  # a test interprets a program many times, each time with another error in it
def _elements(dims: tuple[tuple[int, int], ...], offset: int) -> Flat:
    at = torch.tensor(offset)
    for n, stride in dims:
        at = at[..., None] + torch.arange(n) * stride
    return at.reshape(-1)


def _inside(tensor: Tensor, at: Flat, numel: int) -> None:
    if at.numel() and (int(at.min()) < 0 or int(at.max()) >= numel):
        raise BadCluster(
            tensor.name, f"is walked from {int(at.min())} to {int(at.max())}, and has {numel} elements"
        )
