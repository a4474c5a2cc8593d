"""FX graph of ATen ops → `Program`: views become addresses, ops become clusters of one op, the rest calls."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from onepass.capture.account import bound_of, eager_op, tensors
from onepass.capture.expand import Expansion, Operand, Refused, _Constant
from onepass.capture.sizes import hint, is_data_dependent, size
from onepass.dtypes import from_torch
from onepass.ir.address import View, contiguous, reshape
from onepass.ir.cluster import Call, Cluster, EagerOp, Item, Program, Tensor
from onepass.ir.symbol import Size
from onepass.ops.opdef import CompositeDef
from onepass.ops.table import BY_ATEN, COMPUTE_BOUND, LEFT, VIEWS


@dataclass
class Captured:
    """A program and the FX graph behind it. Call and tensor names are FX node names."""

    program: Program
    graph: GraphModule
    alias: dict[str, str] = field(default_factory=dict)  # node → the node whose value it takes


def aten_name(target: Any) -> str:
    """``add.Tensor`` for ``aten.add.Tensor``; other namespaces keep their prefix."""
    name = str(target)
    return name.removeprefix("aten.")


def normalize(
    graph: GraphModule, fit: Callable[[Cluster], str], deny: frozenset[str] = frozenset()
) -> Captured:
    """Reads the graph once, in order.

    ``fit`` says why no kernel takes a cluster, or nothing; ``deny`` names ops (``gelu`` or ``gelu.default``) that stay
    with PyTorch.
    """
    return _Reader(graph, fit, deny).read()


def live(items: Sequence[Item], outputs: Sequence[str]) -> tuple[Item, ...]:
    """The items that outputs, effects or later live items need."""
    needed, kept = set(outputs), list[Item]()
    for item in reversed(items):
        effect = isinstance(item, Call) and (item.order or not item.writes)
        if effect or needed.intersection(item.writes):
            needed.update(item.reads)
            kept.append(item)
    return tuple(reversed(kept))


class _Reader:
    def __init__(self, graph: GraphModule, fit: Callable[[Cluster], str], deny: frozenset[str]) -> None:
        self.graph = graph
        self.fit = fit
        self.deny = deny
        self.items: list[Item] = []
        self.eager: list[EagerOp] = []
        self.tensors: dict[str, Tensor] = {}
        self.operands: dict[str, Any] = {}  # FX node name → Operand, constant, list of these
        self.alias: dict[str, str] = {}
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.returned = {n.name for n in _nodes(graph.graph.output_node().args)}
        self.mutated = any(_mutates(n) for n in graph.graph.nodes)

    def read(self) -> Captured:
        for node in self.graph.graph.nodes:
            {"placeholder": self.placeholder, "get_attr": self.placeholder, "output": self.output}.get(
                node.op, self.op
            )(node)
        program = Program(
            live(self.items, self.outputs),
            self.tensors,
            tuple(self.inputs),
            tuple(self.outputs),
            tuple(self.eager),
        )
        return Captured(program, self.graph, self.alias)

    def placeholder(self, node: Node) -> None:
        self.inputs.append(node.name)
        if node.op == "get_attr" and "val" not in node.meta:
            node.meta["val"] = getattr(self.graph, str(node.target))
        self.materialize(node)

    def output(self, node: Node) -> None:
        for out in _nodes(node.args):
            self.outputs.extend(self.storage_of(out))

    def op(self, node: Node) -> None:
        value = node.meta.get("val")
        if node.target is operator.getitem:
            return self.getitem(node)
        name = aten_name(node.target)
        if (op := eager_op(node, name)) is not None:
            self.eager.append(op)
        if name in VIEWS and self.view(node, name):
            return None
        reason = self.refusal(node, name, value)
        if not reason:
            try:
                return self.fused(node, name, value)
            except Refused as refused:
                reason = str(refused)
        return self.call(node, name, reason)

    def refusal(self, node: Node, name: str, value: Any) -> str:
        """Why no expansion is tried; empty when one is."""
        if name in COMPUTE_BOUND or name.removeprefix("onepass.") in COMPUTE_BOUND:
            return "compute-bound"
        if name in self.deny or name.split(".")[0] in self.deny:
            return "denied: named in the deny list"
        if name not in BY_ATEN:
            return f"unsupported op: {LEFT[name]}" if name in LEFT else "unsupported op"
        for fake in tensors(value, [n.meta.get("val") for n in node.all_input_nodes]):
            if from_torch(fake.dtype) is None:
                return f"dtype: {str(fake.dtype).removeprefix('torch.')}"
            if fake.layout is not torch.strided or type(fake).__name__ not in (
                "FakeTensor",
                "Tensor",
                "Parameter",
            ):
                return "unsupported tensor: not a plain strided tensor"
            if is_data_dependent(fake):
                return "data-dependent shape"
            if fake.is_conj() or fake.is_neg():
                return "unsupported tensor: a view that conjugates or negates when read"
        devices = {f.device for f in tensors(value, [n.meta.get("val") for n in node.all_input_nodes])}
        if len(devices) > 1 or any(d.type not in ("cpu", "cuda") for d in devices):
            return "device: operands on different or unsupported devices"
        return ""

    def fused(self, node: Node, name: str, value: Any) -> None:
        row = BY_ATEN[name]
        arguments = _arguments(node, self.operand)
        first = next((f for f in tensors(value)), None)
        if first is None:
            raise Refused("unsupported op: no tensor result")
        expansion = Expansion(node.name, self.full_shape(node, name, first, arguments))
        if name == "cat.default" and self.concatenation(node, arguments):
            return
        if isinstance(row, CompositeDef):
            result = row.expand(expansion, **arguments)
        else:
            result = expansion.map(row.name, *(arguments[a] for a in row.args))
        if isinstance(result, _Constant):
            self.operands[node.name] = result
            self.items.append(Call(node.name, name, (), (node.name,), "none"))
            self.tensor(node.name, first)
            return
        if self.identity(node, name, first, expansion):
            return
        results = result if isinstance(result, tuple) else (result,)
        fakes = value if isinstance(value, (tuple, list)) else (value,)
        stores, names = [], []
        for i, (part, fake) in enumerate(zip(results, fakes, strict=False)):
            part_name = node.name if not isinstance(value, (tuple, list)) else f"{node.name}.{i}"
            if fake is None or isinstance(part, _Constant):
                names.append(part)
                continue
            if any(n != 1 and s == 0 for n, s in zip(fake.shape, fake.stride(), strict=True)):
                # PyTorch says so of dropout outside training of an expanded tensor, and gives a dense one.
                raise Refused("layout: elements of the result share memory")
            whole = describe(part_name, fake)
            stores.append(expansion.store(part, whole.tensor, whole.view))
            names.append(whole)
        cluster = expansion.cluster(stores, name, str(first.device))
        if trouble := self.fit(cluster):
            raise Refused(trouble)
        self.items.append(cluster)
        self.tensors.update((w.tensor.name, w.tensor) for w in names if isinstance(w, Whole))
        self.operands[node.name] = names if isinstance(value, (tuple, list)) else names[0]

    def full_shape(self, node: Node, name: str, fake: Any, arguments: dict[str, Any]) -> Sequence[Size]:
        """The shape an expansion works in: its result's, or its input's when it reduces."""
        main = arguments.get("self", arguments.get("input"))
        shape = [size(s) for s in fake.shape]
        return main.shape if isinstance(main, Operand) and not _spreads(main.shape, shape) else shape

    # Views and copies that need no kernel

    def view(self, node: Node, name: str) -> bool:
        """Folds a view into an address; False where the algebra can't follow it."""
        source = self.operands.get(_first(node).name)
        if not isinstance(source, Operand) or source.view is None:
            return False
        fakes = node.meta["val"]
        base = _first(node).meta["val"]
        many = isinstance(fakes, (tuple, list))
        found = [
            self.follow(source, base, fake, node, i) for i, fake in enumerate(fakes if many else [fakes])
        ]
        if any(f is None for f in found):
            return False
        self.operands[node.name] = found if many else found[0]
        return True

    def follow(self, source: Operand, base: Any, fake: Any, node: Node, i: int) -> Operand | None:
        if fake.dtype != base.dtype:
            return None
        shape = tuple(size(s) for s in fake.shape)
        view = _follow(aten_name(node.target), node, i, source, shape)
        return (
            None if view is None else Operand(shape, source.kind, source.tensor, view, torch_dtype=fake.dtype)
        )

    def identity(self, node: Node, name: str, fake: Any, expansion: Expansion) -> bool:
        """A clone or cast that changes nothing a reader can see is its input."""
        if name not in ("clone.default", "_to_copy.default", "native_dropout.default") or self.mutated:
            return False
        source = _first(node)
        before = source.meta["val"]
        if node.name in self.returned or before.dtype != fake.dtype or before.device != fake.device:
            return False
        if name == "native_dropout.default" or any(
            size(a) != size(b) for a, b in zip(before.stride(), fake.stride(), strict=True)
        ):
            return False
        self.alias[node.name] = source.name
        self.operands[node.name] = self.operands[source.name]
        return True

    def concatenation(self, node: Node, arguments: dict[str, Any]) -> bool:
        """A cat along another dimension than the last: each piece is stored at its place. Else False."""
        fake = node.meta["val"]
        dim = int(arguments.get("dim", 0)) % max(fake.dim(), 1)
        pieces = [p for p in arguments["tensors"] if p.shape != (0,) and p.shape[dim] != 0]
        if any(size(s) == 0 for s in fake.shape):
            raise Refused("empty: no elements")
        arguments["tensors"] = pieces
        widths = [p.shape[dim] for p in pieces]
        if len(pieces) == 1 or (dim == fake.dim() - 1 and all(isinstance(w, int) for w in widths)):
            return False
        whole = describe(node.name, fake)
        at: Size = 0
        for i, piece in enumerate(pieces):
            expansion = Expansion(f"{node.name}.{i}", piece.shape)
            place = View(
                tuple((piece.shape[d], stride) for d, (_, stride) in enumerate(whole.view.dims)),
                (at * whole.view.dims[dim][1]),
            )
            store = expansion.store(expansion.map("copy", piece), whole.tensor, place)
            self.items.append(expansion.cluster([store], "cat.default", str(fake.device)))
            at = at + piece.shape[dim]
        self.tensors[node.name] = whole.tensor
        self.operands[node.name] = whole
        return True

    # What stays with PyTorch

    def call(self, node: Node, name: str, reason: str) -> None:
        reads: list[str] = []
        for source in node.all_input_nodes:
            reads.extend(self.storage_of(source))
        self.materialize(node)
        writes = tuple(t for t in self.tensors if t == node.name or t.startswith(f"{node.name}."))
        mutates = tuple(self.storage_of(node.args[0])) if _mutates(node) and node.args else ()  # type: ignore[arg-type]
        bound = bound_of(node, name)
        seeded = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        self.items.append(
            Call(
                node.name,
                name,
                tuple(dict.fromkeys(reads)),
                writes,
                bound,
                "" if bound == "compute" else reason,
                mutates,
                seeded or bool(mutates),
            )
        )

    def getitem(self, node: Node) -> None:
        held, index = self.operands.get(_first(node).name), node.args[1]
        self.operands[node.name] = held[index] if isinstance(held, list) and isinstance(index, int) else None

    def materialize(self, node: Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, (tuple, list)):
            self.operands[node.name] = [
                self.tensor(f"{node.name}.{i}", v) if isinstance(v, torch.Tensor) else _scalar(v)
                for i, v in enumerate(value)
            ]
        else:
            self.operands[node.name] = (
                self.tensor(node.name, value) if isinstance(value, torch.Tensor) else _scalar(value)
            )

    # Small things

    def operand(self, node: Node) -> Any:
        found = self.operands.get(node.name)
        if found is None and isinstance(node.meta.get("val"), torch.Tensor):
            raise Refused("unsupported tensor: no address")
        return found

    def tensor(self, name: str, fake: torch.Tensor) -> Operand | None:
        if from_torch(fake.dtype) is None or fake.layout is not torch.strided:
            self.tensors[name] = Tensor(name, None, (), View(()))  # type: ignore[arg-type]
            return None
        whole = describe(name, fake)
        self.tensors[name] = whole.tensor
        return whole

    def storage_of(self, node: Node) -> list[str]:
        """The tensors in memory that a call needs when it is given this node."""
        held = self.operands.get(node.name)
        parts = held if isinstance(held, list) else [held]
        names = [p.tensor.name for p in parts if isinstance(p, Operand) and p.tensor is not None]
        if names:
            return names
        return [t for t in self.tensors if t == node.name or t.startswith(f"{node.name}.")]


def _spreads(shape: Sequence[Size], over: Sequence[Size]) -> bool:
    """Whether a tensor of one shape broadcasts to the other."""
    return len(shape) <= len(over) and all(
        a == b or a == 1 for a, b in zip(reversed(shape), reversed(over), strict=False)
    )


def _follow(name: str, node: Node, i: int, source: Operand, shape: tuple[Size, ...]) -> View | None:
    """The address of result ``i`` of a view op, over the numbering of the tensor behind ``source``."""
    assert source.view is not None
    dims, offset = source.view.dims, source.view.offset
    rank = len(dims)
    arguments = list(node.args[1:])
    if name in ("view.default", "_unsafe_view.default", "reshape.default", "_reshape_alias.default"):
        return reshape(source.view, shape)
    if name in ("alias.default", "detach.default", "lift_fresh.default"):
        return source.view
    if name == "t.default":
        return View(tuple(reversed(dims)), offset)
    if name == "transpose.int":
        order = list(range(rank))
        a, b = (int(x) % rank for x in arguments)  # type: ignore[arg-type]
        order[a], order[b] = order[b], order[a]
        return View(tuple(dims[d] for d in order), offset)
    if name == "permute.default":
        return View(tuple(dims[int(d) % rank] for d in arguments[0]), offset)  # type: ignore[union-attr, arg-type]
    if name == "expand.default":
        missing = len(shape) - rank
        old = ((1, 0),) * missing + tuple(dims)
        return View(
            tuple((n, 0 if d[0] == 1 and n != 1 else d[1]) for n, d in zip(shape, old, strict=True)), offset
        )
    if name == "unsqueeze.default":
        at = int(arguments[0]) % (rank + 1)  # type: ignore[arg-type]
        return View((*dims[:at], (1, 0), *dims[at:]), offset)
    if name.startswith("squeeze."):
        return reshape(source.view, shape) if any(d[0] == 1 for d in dims) else source.view
    if name == "slice.Tensor":
        return _slice(dims, offset, arguments, shape)
    if name == "select.int":
        at = int(arguments[0]) % rank  # type: ignore[arg-type]
        index = _plain(arguments[1])
        if index is None:
            return None
        index = index + dims[at][0] if isinstance(index, int) and index < 0 else index
        return View((*dims[:at], *dims[at + 1 :]), (offset + index * dims[at][1]))
    if name in ("split.Tensor", "split_with_sizes.default", "unbind.int"):
        at = int(arguments[-1] if len(arguments) > (name != "unbind.int") else 0) % rank  # type: ignore[arg-type]
        if name == "unbind.int":
            return View((*dims[:at], *dims[at + 1 :]), (offset + i * dims[at][1]))
        start: Size = 0
        for fake in node.meta["val"][:i]:
            start = start + size(fake.shape[at])
        return View((*dims[:at], (shape[at], dims[at][1]), *dims[at + 1 :]), (offset + start * dims[at][1]))
    return None


def _slice(dims: tuple[Any, ...], offset: Size, arguments: list[Any], shape: tuple[Size, ...]) -> View | None:
    at = int(arguments[0]) % len(dims) if arguments else 0
    start = _plain(arguments[1] if len(arguments) > 1 and arguments[1] is not None else 0)
    step = _plain(arguments[3] if len(arguments) > 3 else 1)
    if start is None or step is None:
        return None
    extent, stride = dims[at]
    if isinstance(start, int) and start < 0:
        start = start + extent
    if isinstance(start, int) and isinstance(extent, int):
        start = max(0, min(start, extent))
    elif shape[at] == extent:
        start = 0
    return View((*dims[:at], (shape[at], (stride * step)), *dims[at + 1 :]), (offset + start * stride))


def _plain(value: Any) -> Size | None:
    if isinstance(value, Node):
        value = value.meta.get("val")
    return size(value) if isinstance(value, (int, torch.SymInt)) else None


def _scalar(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return size(value)
    if isinstance(value, torch.SymFloat):
        return value.node.expr
    return value


def _arguments(node: Node, resolve: Callable[[Node], Any]) -> dict[str, Any]:
    """Arguments by schema name, defaults left out, nodes replaced by operands."""

    def value(x: Any) -> Any:
        if isinstance(x, Node):
            return resolve(x)
        if isinstance(x, (list, tuple)):
            return [value(i) for i in x]
        return _scalar(x) if isinstance(x, (torch.SymInt, torch.SymFloat)) else x

    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return {name: value(x) for name, x in given.items() if name not in ("layout", "pin_memory", "device")}


@dataclass(frozen=True)
class Whole(Operand):
    """A tensor in memory as an operand: both are set."""

    tensor: Tensor = field(kw_only=True)
    view: View = field(kw_only=True)


def describe(name: str, fake: torch.Tensor) -> Whole:
    """A tensor numbered in the order of its storage, and its logical shape as a walk over that numbering.

    PyTorch lays many results out transposed (attention, element-wise ops on permuted inputs); numbered by storage, a later
    reshape that PyTorch accepts is a plain address here too.
    """
    dtype = from_torch(fake.dtype)
    if dtype is None:
        raise Refused(f"dtype: {str(fake.dtype).removeprefix('torch.')}")
    shape = [size(s) for s in fake.shape]
    strides = [size(s) for s in fake.stride()]
    order = sorted(range(len(shape)), key=lambda d: -hint(fake.stride()[d]) if shape[d] != 1 else -_FAR)
    order = [d for d in order if shape[d] != 1 or len(shape) == 0]
    tensor = Tensor(
        name, dtype, tuple(shape[d] for d in order), View(tuple((shape[d], strides[d]) for d in order))
    )
    numbering = dict(zip(order, (stride for _, stride in contiguous(tensor.shape).dims), strict=True))
    view = View(tuple((n, numbering.get(d, 0)) for d, n in enumerate(shape)))
    return Whole(tuple(shape), dtype.kind, torch_dtype=fake.dtype, tensor=tensor, view=view)


_FAR = 2**62


def _first(node: Node) -> Node:
    """The node that an op is done to."""
    source = node.args[0]
    assert isinstance(source, Node)
    return source


def _nodes(value: Any) -> list[Node]:
    if isinstance(value, Node):
        return [value]
    return [n for v in value for n in _nodes(v)] if isinstance(value, (list, tuple)) else []


def is_view(node: Node) -> bool:
    return aten_name(node.target) in VIEWS


def _mutates(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)
