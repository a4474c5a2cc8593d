"""FX graph of ATen ops → `Program`: views become addresses, ops become clusters of one op, the rest calls."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from onepass.capture.account import bound_of, eager_op, tensors
from onepass.capture.decompose import EAGER, decompose
from onepass.capture.expand import (
    Expansion,
    Filled,
    Operand,
    Refused,
    in_memory,
    unsqueezed,
    without_rounding,
)
from onepass.capture.sizes import hint, is_data_dependent, shares_elements, size
from onepass.capture.views import followed
from onepass.dtypes import Class, from_torch
from onepass.errors import LeftToPyTorch
from onepass.ir.address import View, contiguous
from onepass.ir.cluster import Addend, Call, Cluster, EagerOp, Item, Program, Tensor
from onepass.ir.symbol import Size
from onepass.ops.opdef import CompositeDef, OpDef
from onepass.ops.table import BY_ATEN, BY_PLACE, COMPUTE_BOUND, LEFT, VIEWS, WITHOUT_BIAS


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
    graph: GraphModule,
    fit: Callable[[Cluster], str],
    deny: frozenset[str] = frozenset(),
    strict: bool = False,
) -> Captured:
    """Reads the graph once, in order.

    ``fit`` says why no kernel takes a cluster, or nothing; ``deny`` names ops (``gelu`` or ``gelu.default``) that stay
    with PyTorch. An op that fails here stays there too, with a warning, unless ``strict``.
    """
    decompose(graph)
    return _Reader(graph, fit, deny, strict).read()


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
    def __init__(
        self, graph: GraphModule, fit: Callable[[Cluster], str], deny: frozenset[str], strict: bool
    ) -> None:
        self.graph = graph
        self.fit = fit
        self.deny = deny
        self.strict = strict
        self.items: list[Item] = []
        self.eager: list[EagerOp] = []
        self.tensors: dict[str, Tensor] = {}  # of the dtypes that kernels know
        self.memory: dict[str, list[str]] = {}  # FX node name → the tensors it leaves in memory, of any dtype
        self.operands: dict[str, Any] = {}  # FX node name → Operand, Filled, number, list of these
        self.alias: dict[str, str] = {}
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.leaving = _leaving(graph)
        self.mutated = any(_mutates(n) for n in graph.graph.nodes)
        self.by_place = any(aten_name(n.target) in BY_PLACE for n in graph.graph.nodes)

    def read(self) -> Captured:
        for node in self.graph.graph.nodes:
            {"placeholder": self.placeholder, "get_attr": self.placeholder, "output": self.output}.get(
                node.op, self.op
            )(node)
        program = Program(
            _casts_as_stores(live(self.items, self.outputs)),
            self.tensors,
            tuple(self.inputs),
            tuple(self.outputs),
            tuple(self.eager),
        )
        return Captured(program, self.graph, self.alias)

    def placeholder(self, node: Node) -> None:
        self.inputs.append(node.name)
        if node.op == "get_attr" and "val" not in node.meta:
            node.meta["val"] = operator.attrgetter(str(node.target))(self.graph)
        self.materialize(node)

    def output(self, node: Node) -> None:
        for out in _nodes(node.args):
            self.outputs.extend(self.storage_of(out))

    def op(self, node: Node) -> None:
        value = node.meta.get("val")
        if node.target is operator.getitem:
            return self.getitem(node)
        name = aten_name(node.target)
        if (op := node.meta[EAGER] if EAGER in node.meta else eager_op(node, name)) is not None:
            self.eager.append(op)
        if reason := self.attempt(node, name, value):
            self.call(node, name, reason)
        return None

    def attempt(self, node: Node, name: str, value: Any) -> str:
        """Makes addresses or clusters of an op, or says why it stays with PyTorch."""
        try:
            if name in VIEWS and self.view(node):
                return ""
            reason = self.refusal(node, name, value)
            if not reason:
                self.fused(node, name, value)
            return reason
        except Refused as refused:
            return str(refused)
        except Exception as error:  # a fault of ours must not cost more than the op it is about
            if self.strict:
                raise
            warnings.warn(LeftToPyTorch.after(name, error), stacklevel=2)
            return f"failure: {type(error).__name__}: {error}".splitlines()[0]

    def refusal(self, node: Node, name: str, value: Any) -> str:
        """Why no expansion is tried; empty when one is."""
        if name in COMPUTE_BOUND or name.removeprefix("onepass.") in COMPUTE_BOUND:
            return "compute-bound"
        if self.denied(name):
            return "denied: named in the deny list"
        if name not in BY_ATEN:
            return f"unsupported op: {LEFT[name]}" if name in LEFT else "unsupported op"
        if is_data_dependent(*(n.meta.get("val") for n in node.all_input_nodes)):
            return "data-dependent value"
        for fake in tensors(value, [n.meta.get("val") for n in node.all_input_nodes]):
            if from_torch(fake.dtype) is None:
                return f"dtype: {str(fake.dtype).removeprefix('torch.')}"
            if fake.layout is not torch.strided or type(fake).__name__ not in (
                "FakeTensor",
                "Tensor",
                "Parameter",
            ):
                return "unsupported tensor: not a plain strided tensor"
            if is_data_dependent(*fake.shape):
                return "data-dependent shape"
            if fake.is_conj() or fake.is_neg():
                return "unsupported tensor: a view that conjugates or negates when read"
        results = tensors(value)
        if results and all(any(isinstance(n, int) and n == 0 for n in t.shape) for t in results):
            return "no elements: there is nothing to compute"
        devices = {f.device for f in tensors(value, [n.meta.get("val") for n in node.all_input_nodes])}
        if len(devices) > 1 or any(d.type not in ("cpu", "cuda") for d in devices):
            return "device: operands on different or unsupported devices"
        return ""

    def denied(self, name: str) -> bool:
        return name in self.deny or name.split(".")[0] in self.deny

    def fused(self, node: Node, name: str, value: Any) -> None:
        """Nothing is kept of an op before all of it is known to work: it may be refused at any step."""
        row = BY_ATEN[name]
        arguments = _arguments(node, self.operand)
        first = next((f for f in tensors(value)), None)
        if first is None:
            raise Refused("unsupported op: no tensor result")
        if isinstance(row, CompositeDef) and row.identity and self.is_input(node, first):
            self.alias[node.name] = _first(node).name
            self.operands[node.name] = self.operands[_first(node).name]
            return
        if isinstance(row, CompositeDef) and row.stacks:
            dim = arguments.get("dim", 0)
            arguments["tensors"] = [unsqueezed(in_memory(p), dim) for p in arguments["tensors"]]
        if isinstance(row, CompositeDef) and row.pieces and self.concatenation(node, name, arguments):
            return
        expansion = Expansion(
            node.name,
            self.full_shape(row, first, arguments),
            _integers(node, first.dtype),
            _floats(node, value),
        )
        if isinstance(row, CompositeDef):
            result = row.expand(expansion, **arguments)
        else:
            result = expansion.map(row.name, *(arguments[a] for a in row.args))
        if isinstance(result, Filled):
            self.operands[node.name] = replace(result, memory=self.tensor(node.name, node.name, first))
            self.items.append(Call(node.name, name, (), (node.name,), "none"))
            return
        results = result if isinstance(result, tuple) else (result,)
        many = isinstance(value, (tuple, list))
        stores, parts = [], list[Whole | Filled | None]()
        for i, (part, fake) in enumerate(zip(results, value if many else (value,), strict=False)):
            if part is None and many and _is_used(node, i):
                raise Refused("unsupported op: a result that no kernel makes")
            if fake is None or part is None or isinstance(part, Filled):
                parts.append(part)
                continue
            if shares_elements(fake):  # as PyTorch says of dropout outside training of an expanded tensor
                raise Refused("layout: elements of the result share memory")
            whole = describe(f"{node.name}.{i}" if many else node.name, fake)
            stores.append(expansion.store(part, whole.tensor, whole.view))
            parts.append(whole)
        for i in range(len(results), len(value) if many else 0):
            if _is_used(node, i):
                raise Refused("unsupported op: a result that no kernel makes")
            parts.append(None)
        self.keep([expansion.cluster(stores, name, str(first.device))])
        wholes = [p for p in parts if isinstance(p, Whole)]
        self.tensors.update((w.tensor.name, w.tensor) for w in wholes)
        self.memory[node.name] = [w.tensor.name for w in wholes]
        self.operands[node.name] = parts if many else parts[0]

    def keep(self, clusters: Sequence[Cluster]) -> None:
        for cluster in clusters:
            if trouble := self.fit(cluster):
                raise Refused(trouble)
        self.items.extend(clusters)

    def full_shape(self, row: OpDef | CompositeDef, fake: Any, arguments: dict[str, Any]) -> Sequence[Size]:
        """The shape an expansion works in: its result's, or its input's when it reduces."""
        if isinstance(row, CompositeDef) and row.narrows:
            return [size(s) for s in fake.shape]
        main = arguments.get("self", arguments.get("input"))
        shape = [size(s) for s in fake.shape]
        return (
            main.shape if isinstance(main, (Operand, Filled)) and not _spreads(main.shape, shape) else shape
        )

    # Views and copies that need no kernel

    def view(self, node: Node) -> bool:
        """Folds a view into an address; False where the algebra can't follow it."""
        source = self.operands.get(_first(node).name)
        if not isinstance(source, Operand) or source.view is None:
            return False
        if is_data_dependent(*(n.meta.get("val") for n in node.all_input_nodes)):
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
        if fake.dtype != base.dtype or source.view is None:
            return None
        shape = tuple(size(s) for s in fake.shape)
        view = followed(aten_name(node.target), node, i, source.view, shape)
        return (
            None if view is None else Operand(shape, source.kind, source.tensor, view, torch_dtype=fake.dtype)
        )

    def is_input(self, node: Node, fake: Any) -> bool:
        """Whether a copy may be its input: same values in the same places, and nobody can tell the memories apart."""
        before = _first(node).meta["val"]
        if self.mutated or self.by_place or node.name in self.leaving:
            return False
        if before.dtype != fake.dtype or before.device != fake.device:
            return False
        return all(size(a) == size(b) for a, b in zip(before.stride(), fake.stride(), strict=True))

    def concatenation(self, node: Node, name: str, arguments: dict[str, Any]) -> bool:
        """Along another dimension than the last each piece is stored at its place. Else False: one kernel chooses."""
        fake = node.meta["val"]
        dim = int(arguments.get("dim", 0)) % max(fake.dim(), 1)
        pieces = arguments["tensors"] = [p for p in arguments["tensors"] if 0 not in p.shape]
        if not pieces:
            raise Refused("unsupported op: a concatenation of no elements")
        widths = [p.shape[dim] for p in pieces]
        if len(pieces) == 1 or (dim == fake.dim() - 1 and all(isinstance(w, int) for w in widths)):
            return False
        whole = describe(node.name, fake)
        clusters = list[Cluster]()
        at: Size = 0
        for i, piece in enumerate(pieces):
            expansion = Expansion(f"{node.name}.{i}", piece.shape)
            place = View(
                tuple((piece.shape[d], stride) for d, (_, stride) in enumerate(whole.view.dims)),
                (at * whole.view.dims[dim][1]),
            )
            read = in_memory(piece)
            value = expansion.map("copy" if read.kind == whole.kind else f"to_{whole.kind}", read)
            store = expansion.store(value, whole.tensor, place)
            clusters.append(expansion.cluster([store], name, str(fake.device)))
            at = at + piece.shape[dim]
        self.keep(clusters)
        self.tensors[node.name] = whole.tensor
        self.memory[node.name] = [node.name]
        self.operands[node.name] = whole
        return True

    # What stays with PyTorch

    def call(self, node: Node, name: str, reason: str) -> None:
        reads: list[str] = []
        for source in node.all_input_nodes:
            reads.extend(self.storage_of(source))
        self.materialize(node)
        writes = tuple(self.memory[node.name])
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
                self.addend(node, name),
            )
        )

    def addend(self, node: Node, name: str) -> Addend | None:
        """The bias of a matmul, where a kernel that reads the result had better add it.

        On the CPU PyTorch copies the bias into the result before it multiplies; cuBLAS adds it for nothing. In 16 bits
        the product would be rounded before the bias is added.
        """
        if name not in WITHOUT_BIAS or self.denied(name) or len(node.args) != 3 or node.kwargs:
            return None
        value = node.meta["val"]
        bias = self.operands.get(_first(node).name)
        if value.device.type != "cpu" or value.dtype is not torch.float32 or not isinstance(bias, Operand):
            return None
        rows, cols = map(size, value.shape)
        if bias.tensor is None or bias.view is None or bias.shape != (cols,):
            return None
        if [size(s) for s in value.stride()] != [cols, 1]:
            return None
        others = dict.fromkeys(t for factor in node.args[1:] for t in self.storage_of(factor))  # type: ignore[arg-type]
        return Addend(bias.tensor.name, View(((rows, 0), *bias.view.dims), bias.view.offset), tuple(others))

    def getitem(self, node: Node) -> None:
        source, index = _first(node).name, node.args[1]
        held = self.operands.get(source)
        self.operands[node.name] = held[index] if isinstance(held, list) and isinstance(index, int) else None
        self.memory[node.name] = [n for n in (f"{source}.{index}",) if n in self.memory.get(source, [])]

    def materialize(self, node: Node) -> None:
        """What a node leaves in memory as it is: an input, a constant, or the results of a call."""
        value = node.meta.get("val")
        self.memory[node.name] = []
        # PyTorch's capture says of some results that their elements share memory, and then they don't.
        doubtful = node.op == "call_function" and not is_view(node)

        def operand(name: str, part: Any) -> Any:
            if not isinstance(part, torch.Tensor):
                return _scalar(part)
            made = self.tensor(name, node.name, part)
            return None if doubtful and shares_elements(part) else made

        if isinstance(value, (tuple, list)):
            self.operands[node.name] = [operand(f"{node.name}.{i}", v) for i, v in enumerate(value)]
        else:
            self.operands[node.name] = operand(node.name, value)

    # Small things

    def operand(self, node: Node) -> Any:
        found = self.operands.get(node.name)
        if found is None and isinstance(node.meta.get("val"), torch.Tensor):
            raise Refused("unsupported tensor: no address")
        return found

    def tensor(self, name: str, node: str, fake: torch.Tensor) -> Operand | None:
        """A tensor that a node leaves in memory; None where no kernel reads it."""
        self.memory.setdefault(node, []).append(name)
        if from_torch(fake.dtype) is None or fake.layout is not torch.strided:
            return None
        whole = describe(name, fake)
        self.tensors[name] = whole.tensor
        return whole

    def storage_of(self, node: Node) -> list[str]:
        """The tensors in memory that a call needs when it is given this node."""
        held = self.operands.get(node.name)
        parts = [
            p.memory if isinstance(p, Filled) else p for p in (held if isinstance(held, list) else [held])
        ]
        names = [p.tensor.name for p in parts if isinstance(p, Operand) and p.tensor is not None]
        return names or self.memory.get(node.name, [])


def _casts_as_stores(items: Sequence[Item]) -> tuple[Item, ...]:
    """Casts that no other cluster reads, as plain stores."""
    read = {tensor for item in items if isinstance(item, Cluster) for tensor in item.reads}
    return tuple(
        without_rounding(item) if isinstance(item, Cluster) and not read.intersection(item.writes) else item
        for item in items
    )


def _is_used(node: Node, i: int) -> bool:
    return any(u.target is not operator.getitem or (u.args[1] == i and u.users) for u in node.users)


def _spreads(shape: Sequence[Size], over: Sequence[Size]) -> bool:
    """Whether a tensor of one shape broadcasts to the other."""
    return len(shape) <= len(over) and all(
        a == b or a == 1 for a, b in zip(reversed(shape), reversed(over), strict=False)
    )


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


def _leaving(graph: GraphModule) -> set[str]:
    """The nodes whose memory the caller gets to see: what is returned, and what that is a view of."""
    found, waiting = set[str](), _nodes(graph.graph.output_node().args)
    while waiting:
        node = waiting.pop()
        if node.name not in found:
            found.add(node.name)
            waiting.extend(node.all_input_nodes if _shares_memory(node) else ())
    return found


def _shares_memory(node: Node) -> bool:
    """Whether a result may be a view of an operand; true where nothing says that it is not."""
    schema = getattr(node.target, "_schema", None)
    return schema is None or is_view(node) or any(r.alias_info is not None for r in schema.returns)


def _integers(node: Node, result: torch.dtype) -> torch.dtype:
    """The dtype that PyTorch computes an op's integers in."""
    dtype = result
    if result is torch.bool and len(node.args) == 2:  # a comparison: what both operands become
        left, right = (_scalar(a.meta.get("val")) if isinstance(a, Node) else a for a in node.args)
        dtype = torch.result_type(_typical(left), _typical(right))
    is_integer = not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool
    return dtype if is_integer else torch.int64


def _floats(node: Node, value: Any) -> Class:
    """The class that PyTorch computes an op's floating-point numbers in: its results', or what its inputs become."""
    results = [t.dtype for t in tensors(value) if t.dtype.is_floating_point]
    if not results:
        given = tensors([n.meta.get("val") for n in node.all_input_nodes])
        results = [functools.reduce(torch.promote_types, [t.dtype for t in given])] if given else []
    return "double" if torch.float64 in results else "float"


def _typical(operand: Any) -> Any:
    """A tensor, or a number of the operand's kind."""
    return operand if isinstance(operand, (torch.Tensor, float)) else 1


def _mutates(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)
