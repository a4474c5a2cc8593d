"""Builds the cluster of one ATen op: expansions ask for maps and reductions, this makes nodes with addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch

from onepass.dtypes import Class, from_torch
from onepass.ir.address import Dim, View, contiguous, reshape
from onepass.ir.cluster import (
    Cluster,
    Iota,
    Level,
    Load,
    Map,
    Node,
    Reduce,
    Scan,
    Select,
    Space,
    Store,
    Tensor,
)
from onepass.ir.symbol import Poly, Size, product
from onepass.ops.opdef import OpDef
from onepass.ops.table import OPS, REDUCE


class Refused(Exception):
    """An op that no kernel expresses. The message is the reason that reports show."""


@dataclass(frozen=True)
class Operand:
    """A tensor as one op sees it: a walk through a tensor in memory, or a node made by this expansion."""

    shape: tuple[Size, ...]
    kind: Class
    tensor: Tensor | None = None
    view: View | None = None  # over the tensor's numbering, with the sizes of ``shape``
    node: str | None = None
    level: Level = "full"
    torch_dtype: torch.dtype | None = None


def in_memory(x: Operand | Filled) -> Operand:
    """The operand as a tensor whose elements can be read from places.

    Raises: Refused where there is none.
    """
    if isinstance(x, Operand):
        return x
    if x.memory is None:
        raise Refused("constant: a filled tensor that is nowhere in memory")
    return x.memory


def unsqueezed(x: Operand, dim: int) -> Operand:
    """An operand in memory with a dimension of size one at ``dim``."""
    assert x.view is not None
    at = dim % (len(x.shape) + 1)
    view = View((*x.view.dims[:at], (1, 0), *x.view.dims[at:]), x.view.offset)
    return replace(x, shape=(*x.shape[:at], 1, *x.shape[at:]), view=view)


@dataclass(frozen=True)
class Filled:
    """A tensor with one value everywhere: a number wherever ops compute with it.

    ``memory`` is the same tensor as PyTorch makes it, for ops that read elements from places.
    """

    shape: tuple[Size, ...]
    kind: Class
    value: Any
    torch_dtype: torch.dtype
    memory: Operand | None = None


class Expansion:
    """The builder that `onepass.ops.composite` rows talk to. One instance makes one cluster."""

    def __init__(
        self,
        name: str,
        shape: Sequence[Size],
        integers: torch.dtype = torch.int64,
        floats: Class = "float",
    ) -> None:
        """``integers`` is what PyTorch computes this op's integers in: kernels do in 64 bits, and wrap what came out.
        ``floats`` is the class it computes floating-point numbers in."""
        self.name = name
        self.full = tuple(shape)
        self.integers = integers
        self.floats = floats
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self.reduced_dims: tuple[int, ...] | None = None  # neighbours once `order` holds
        self.order: tuple[int, ...] | None = None  # of the dimensions, where those reduced are not neighbours
        self._known: dict[Any, str] = {}

    # What expansions call

    def map(self, op: str, *operands: Any) -> Any:
        row = OPS[op]
        if not any(isinstance(o, Operand) for o in operands):
            nowhere = [o for o in operands if isinstance(o, Filled) and o.memory is None]
            if nowhere:
                return self._of_numbers(row, operands, nowhere[0])
            operands = tuple(in_memory(o) if isinstance(o, Filled) else o for o in operands)
        values = [self._value(o) for o in operands]
        if not all(isinstance(v, (int, float, Poly, Operand)) for v in values):
            self.refuse("data-dependent value: a number that is computed at run time")
        kind = self._common_kind(row.operands, values)
        truth = kind == "bool" and row.operands == "number"  # PyTorch's sums of truth values are truth values
        if truth:
            kind = "int"
        if kind == "int":
            values = [self._fitted(v) for v in values]
        level: Level = "full" if any(self._is_full(v) for v in values) or not self._any(values) else "row"
        names = tuple(
            self._as(v, level, "bool" if row.operands == "condition" and i == 0 else kind)
            for i, v in enumerate(values)
        )
        result: Class = kind if row.result == "same" else row.result
        if not self._any(values):
            self.refuse("constant: no tensor operand")
        name = self._add(Map(self._fresh(op), level, op, names, result))
        if result == "int" and not row.chooses and self.integers is not torch.int64:
            name = self._add(Map(self._fresh("wrap"), level, _WRAPS[self.integers], (name,), "int"))
        if truth and result == "int":
            result, name = "bool", self._convert(name, level, "bool")
        return Operand(self.full if level == "full" else self._row_shape(), result, node=name, level=level)

    def _of_numbers(self, row: OpDef, operands: Sequence[Any], like: Filled) -> Any:
        """An op on tensors that have one value everywhere, and are nowhere in memory."""
        values = [self._value(o) for o in operands]
        if not all(isinstance(v, (bool, int, float)) for v in values):
            self.refuse("constant: a filled tensor that is nowhere in memory")
        kind = self._common_kind(row.operands, values)
        types = {"float": torch.float64, "double": torch.float64, "int": torch.int64, "bool": torch.bool}
        given = [
            torch.tensor(v, dtype=types["bool" if row.operands == "condition" and i == 0 else kind])
            for i, v in enumerate(values)
        ]
        result: Class = kind if row.result == "same" else row.result
        return Filled(like.shape, result, row.reference(*given).item(), torch.float32)

    def reduce(self, op: str, x: Any, dims: list[int], keepdim: bool) -> Any:
        if any(n == 0 for n in (x.shape[d] for d in dims)):
            return self._of_nothing(op, x, dims, keepdim)
        if isinstance(x, Filled) and x.memory is None:
            return self._of_one_value(op, x, dims, keepdim)
        self._reduce_along(x, dims)
        value = in_memory(x)
        kind = self._common_kind("number", [value])
        kind = "int" if kind == "bool" else kind
        name = self._add(Reduce(self._fresh(op), op, self._as(value, "full", kind), kind))
        kept = Operand(self._row_shape(), kind, node=name, level="row")
        return kept if keepdim else self.squeeze(kept, dims)

    def scan(self, op: str, x: Any, dim: int) -> Any:
        if not x.shape or any(n == 0 for n in x.shape):
            self.refuse("no elements: nothing to combine")
        value = in_memory(x)
        if x.shape[dim] == 1:
            return self.map("copy", value)
        self._reduce_along(value, [dim])
        kind = self._common_kind("number", [value])
        kind = "int" if kind == "bool" else kind
        name = self._add(Scan(self._fresh(op), op, self._as(value, "full", kind), kind))
        return Operand(self.full, kind, node=name)

    def _of_nothing(self, op: str, x: Operand, dims: list[int], keepdim: bool) -> Any:
        """A reduction of no elements: what the reduction starts from."""
        if REDUCE[op].empty is None:
            self.refuse("no elements: nothing to combine")
        shape = tuple(1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims)
        kind: Class = "int" if x.kind in ("bool", "int") else x.kind
        return Filled(
            shape, kind, float(REDUCE[op].empty or 0) if kind != "int" else REDUCE[op].empty, torch.int64
        )

    def _of_one_value(self, op: str, x: Filled, dims: list[int], keepdim: bool) -> Filled:
        """A reduction of a tensor that has one value everywhere and is nowhere in memory."""
        n = self.count(x, dims)
        if not isinstance(n, int) or n > 1 << 20:
            self.refuse("constant: a filled tensor that is nowhere in memory")
        kind: Class = "int" if x.kind in ("bool", "int") else x.kind
        row = torch.full((n,), x.value, dtype=torch.int64 if kind == "int" else torch.float64)
        shape = tuple(1 if d in dims else m for d, m in enumerate(x.shape) if keepdim or d not in dims)
        return Filled(shape, kind, REDUCE[op].reference(row, [0]).item(), torch.float32)

    def squeeze(self, x: Operand | Filled, dims: list[int]) -> Operand | Filled:
        shape = tuple(size for i, size in enumerate(x.shape) if i not in dims)
        if isinstance(x, Filled):
            return replace(x, shape=shape, memory=None)
        return Operand(shape, x.kind, node=x.node, level=x.level)

    def count(self, x: Any, dims: list[int]) -> Size:
        return product(x.shape[d] for d in dims)

    def cast(self, x: Any, dtype: torch.dtype) -> Any:
        """A cast that the program asks for, so what it loses is lost: results of other ops are not rounded."""
        target = from_torch(dtype)
        if target is None:
            self.refuse(f"dtype: {dtype}")
        if isinstance(x, Filled):
            return self.constant(x.shape, x.value, dtype)
        value = self._value(x)
        same = isinstance(value, Operand) and value.torch_dtype == dtype
        if dtype in _ROUNDING and not same:
            return self.map(_ROUNDING[dtype], value)
        known = isinstance(value, Operand) and value.kind == target.kind
        moved = (
            value if known and dtype in _WRAPS else self.map("copy" if known else f"to_{target.kind}", value)
        )
        return self.map(_WRAPS[dtype], moved) if dtype in _WRAPS and not same else moved

    def constant(self, shape: Any, value: Any, dtype: torch.dtype) -> Filled:
        target = from_torch(dtype)
        if target is None:
            self.refuse(f"dtype: {dtype}")
        if isinstance(value, (int, float, bool)):
            try:
                value = torch.tensor(value, dtype=dtype, device="cpu").item()
            except (RuntimeError, OverflowError, ValueError):
                self.refuse(f"constant: {value} is no {dtype}")
        elif dtype in _ROUNDING or (target.kind == "int" and dtype is not torch.int64):
            self.refuse(f"data-dependent value: a size as {dtype}")
        return Filled(tuple(shape), target.kind, value, dtype)

    def iota(self, size: Size, start: Size, step: int) -> Operand:
        if self.integers is not torch.int64:
            for end in (start, start + size - 1):
                self._check_fits(end)
        name = self._add(Iota(self._fresh("iota"), "full", contiguous(self.full), start))
        return Operand(self.full, "int", node=name)

    def position(self, x: Operand, dims: list[int]) -> Operand:
        strides: list[Size] = [0] * len(self.full)
        step: Size = 1
        for d in reversed(dims):
            strides[d], step = step, step * self.full[d]
        name = self._add(
            Iota(self._fresh("position"), "full", View(tuple(zip(self.full, strides, strict=True))), 0)
        )
        return Operand(self.full, "int", node=name)

    def floating(self, x: Any) -> Any:
        if isinstance(x, Filled):
            return replace(x, kind=self.floats, value=float(x.value))
        if not isinstance(x, Operand):
            return float(x)
        return x if x.kind in ("float", "double") else self.map(f"to_{self.floats}", x)

    def view(self, x: Operand | Filled, shape: Sequence[Size]) -> Operand | Filled:
        if isinstance(x, Filled):
            return replace(x, shape=tuple(shape), memory=None)
        seen = reshape(x.view, shape) if x.view is not None else None
        if seen is None:
            self.refuse("space_mismatch: a shape that the elements in memory do not have")
        return replace(x, shape=tuple(shape), view=seen)

    def unsqueeze(self, x: Operand | Filled, dim: int) -> Operand:
        return unsqueezed(in_memory(x), dim)

    def work_in(self, shape: Sequence[Size]) -> None:
        assert not self.nodes and product(shape) == product(self.full)
        self.full = tuple(shape)

    def halves(self, x: Operand | Filled, dim: int) -> tuple[Operand, Operand]:
        whole = in_memory(x)
        dims, offset, at = _dims(whole), _offset(whole), dim % len(whole.shape)
        size, stride = dims[at]
        if not isinstance(size, int):
            self.refuse("data-dependent shape: half of a symbolic size")
        half = (*dims[:at], (size // 2, stride), *dims[at + 1 :])
        shape = tuple(n for n, _ in half)
        first, second = (
            replace(whole, shape=shape, view=View(half, offset + start * stride)) for start in (0, size // 2)
        )
        return first, second

    def reverse(self, x: Operand | Filled, dims: list[int]) -> Operand:
        given = in_memory(x)
        turned, offset = list(_dims(given)), _offset(given)
        for d in dims:
            size, stride = turned[d]
            offset, turned[d] = offset + (size - 1) * stride, (size, stride * -1)
        return replace(given, view=View(tuple(turned), offset))

    def gather(self, table: Operand | Filled, index: Operand | Filled) -> Operand:
        table, index = in_memory(table), in_memory(index)
        if table.view is None or len(table.shape) != 2 or index.kind != "int" or table.tensor is None:
            self.refuse("unsupported op: a gather that is not rows of a table")
        walk = View((*((size, 0) for size in index.shape), table.view.dims[1]), table.view.offset)
        along = self._load(
            Operand(
                (*index.shape, table.shape[1]),
                "int",
                index.tensor,
                View((*_dims(index), (table.shape[1], 0)), _offset(index)),
            ),
            "full",
        )
        name = self._add(
            Load(
                self._fresh("gather"),
                "full",
                self._use(table.tensor),
                walk,
                table.kind,
                index=along,
                table=(table.shape[0], table.view.dims[0][1]),
            )
        )
        return Operand(self.full, table.kind, node=name)

    def concatenate(self, pieces: list[Operand | Filled], dim: int) -> Operand:
        """Along the last dimension: each piece is read at the columns it covers."""
        found = [in_memory(p) for p in pieces]
        if len(found) == 1:
            copied: Operand = self.map("copy", found[0])
            return copied
        names, bounds, at = list[str](), list[int](), 0
        kind = self._common_kind("any", list(found))
        for piece in found:
            width = piece.shape[-1]
            if not isinstance(width, int):
                self.refuse("data-dependent shape: a concatenation of symbolic widths")
            dims, offset = _dims(piece), _offset(piece)
            view = View((*dims[:-1], (self.full[-1], dims[-1][1])), offset - at * dims[-1][1])
            part = self._load(Operand(self.full, piece.kind, piece.tensor, view), "full", (at, at + width))
            names.append(part if piece.kind == kind else self._convert(part, "full", kind))
            at += width
            bounds.append(at)
        name = self._add(Select(self._fresh("cat"), "full", tuple(names), tuple(bounds), kind))
        return Operand(self.full, kind, node=name)

    def refuse(self, reason: str) -> NoReturn:
        raise Refused(reason)

    # The finished cluster

    def store(self, value: Any, tensor: Tensor, view: View | None = None) -> Store:
        ready = self._value(value)
        if isinstance(ready, (int, float, bool)) or (isinstance(ready, Operand) and ready.node is None):
            ready = (
                self.map("copy", ready)
                if isinstance(ready, Operand)
                else self.refuse("constant: a filled tensor")
            )
        assert isinstance(ready, Operand) and ready.node is not None
        if ready.kind != tensor.dtype.kind:
            ready = self.map(f"to_{tensor.dtype.kind}", ready)
        assert ready.node is not None
        self.tensors[tensor.name] = tensor
        return Store(tensor.name, ready.node, ready.level, view or contiguous(tensor.shape))

    def cluster(self, stores: Sequence[Store], origin: str, device: str) -> Cluster:
        nodes = tuple(map(self._ordered, self.nodes))
        return Cluster(
            self.name,
            self._space(),
            nodes,
            tuple(map(self._ordered, stores)),
            (origin,),
            self.tensors,
            device,
        )

    # Inside

    def _common_kind(self, rule: str, values: Sequence[Any]) -> Class:
        """The compute class an op works in; numbers do not promote tensors above their own class."""
        if rule == "float":
            return self.floats
        if rule in ("int", "bool"):
            return rule  # type: ignore[return-value]
        rank: dict[Class, int] = {"bool": 0, "int": 1, "float": 2, "double": 2}
        found = values[1:] if rule == "condition" else values
        kinds = [self.floats if isinstance(v, float) else _kind_of(v) for v in found]
        widest = max(kinds, key=lambda k: rank[k])
        return self.floats if rank[widest] == 2 and len(set(kinds)) > 1 else widest

    def _fitted(self, value: Any) -> Any:
        """An integer operand as the dtype that the op computes in."""
        if self.integers is torch.int64:
            return value
        if not isinstance(value, Operand):
            self._check_fits(value)
        elif value.kind == "int" and value.torch_dtype is not None:
            given, held = torch.iinfo(value.torch_dtype), torch.iinfo(self.integers)
            if given.min < held.min or given.max > held.max:
                return self.map(_WRAPS[self.integers], replace(value, torch_dtype=None))
        return value

    def _check_fits(self, value: Any) -> None:
        bounds = torch.iinfo(self.integers)
        if not isinstance(value, (int, float)) or not bounds.min <= value <= bounds.max:
            self.refuse(f"dtype: a number that does not fit in {_named(self.integers)}")

    def _ordered(self, item: Any) -> Any:
        """A node or store whose walk over every index is in the order that makes reduced dimensions neighbours."""
        if self.order is None or item.level != "full" or not hasattr(item, "view"):
            return item
        dims = item.view.dims
        if len(dims) != len(self.order):
            self.refuse("space_mismatch: a walk that does not follow the dimensions")
        return replace(item, view=View(tuple(dims[d] for d in self.order), item.view.offset))

    def _space(self) -> Space:
        if self.reduced_dims is None:
            return Space(product(self.full))
        dims = self.reduced_dims
        last = dims[-1] if dims else -1
        return Space(
            product(self.full),
            product(n for d, n in enumerate(self.full[: last + 1]) if d not in dims),
            product(self.full[d] for d in dims),
            product(self.full[last + 1 :]),
        )

    def _reduce_along(self, x: Any, dims: list[int]) -> None:
        if self.reduced_dims is None:
            if len(x.shape) != len(self.full):
                self.refuse("space_mismatch: reduction of a value of another rank")
            if not dims and self.full:
                self.refuse("unsupported op: a reduction along no dimension")
            self.reduced_dims = tuple(dims)
            if dims and dims != list(range(dims[0], dims[-1] + 1)):
                kept = [d for d in range(len(self.full)) if d not in dims]
                before = [d for d in kept if d < dims[-1]]
                self.order = (*before, *dims, *(d for d in kept if d > dims[-1]))
        elif tuple(dims) != self.reduced_dims:
            self.refuse("space_mismatch: reductions along different dimensions")

    def _row_shape(self) -> tuple[Size, ...]:
        assert self.reduced_dims is not None
        return tuple(1 if d in self.reduced_dims else size for d, size in enumerate(self.full))

    @staticmethod
    def _value(x: Any) -> Any:
        return x.value if isinstance(x, Filled) else x

    @staticmethod
    def _any(values: list[Any]) -> bool:
        return any(isinstance(v, Operand) for v in values)

    def _is_full(self, value: Any) -> bool:
        """Whether a value differs along the row; one in memory may be of a row's shape."""
        if not isinstance(value, Operand):
            return False
        if value.node is not None or self.reduced_dims is None:
            return value.level == "full"
        missing = len(self.full) - len(value.shape)
        return any(
            self.full[d] != 1 and d >= missing and value.shape[d - missing] != 1 for d in self.reduced_dims
        )

    def _as(self, value: Any, level: Level, kind: Class) -> Any:
        """A node's name, or a number, of compute class ``kind``."""
        if not isinstance(value, Operand):
            return _number(value, kind)
        name = value.node or self._load(value, level)
        if value.kind == kind:
            return name
        return self._convert(name, level if value.node is None else value.level, kind)

    def _convert(self, name: str, level: Level, kind: Class) -> str:
        return self._add(Map(self._fresh(f"to_{kind}"), level, f"to_{kind}", (name,), kind))

    def _load(self, value: Operand, level: Level, window: tuple[int, int] | None = None) -> str:
        assert value.tensor is not None and value.view is not None
        shape = self.full if level == "full" else self._row_shape()
        view = _broadcast(value.view, shape)
        if view is None:
            self.refuse("space_mismatch: operand shapes do not broadcast to the op's shape")
        return self._add(Load(self._fresh("load"), level, self._use(value.tensor), view, value.kind, window))

    def _use(self, tensor: Tensor) -> str:
        self.tensors[tensor.name] = tensor
        return tensor.name

    def _fresh(self, op: str) -> str:
        return f"{self.name}.{op}{len(self.nodes)}"

    def _add(self, node: Node) -> str:
        key = tuple(v for k, v in node.__dict__.items() if k != "name")
        if (type(node), key) in self._known:
            return self._known[type(node), key]
        self.nodes.append(node)
        self._known[type(node), key] = node.name
        return node.name


# What a cast to these dtypes loses; a kernel computes with floats of 32 bits whatever it loads and stores.
_ROUNDING = {
    torch.bfloat16: "round_bf16",
    torch.float16: "round_f16",
    torch.float8_e4m3fn: "round_e4m3",
    torch.float8_e5m2: "round_e5m2",
}

# What an integer op leaves in fewer than 64 bits: the low bits, as PyTorch's own arithmetic does.
_WRAPS = {
    torch.int32: "wrap_i32",
    torch.int16: "wrap_i16",
    torch.int8: "wrap_i8",
    torch.uint8: "wrap_u8",
}


def without_rounding(cluster: Cluster) -> Cluster:
    """A cast alone, to be stored: storing rounds, and nobody here sees the value before."""
    rounded = cluster.nodes[-1]
    if not isinstance(rounded, Map) or rounded.op not in _ROUNDING.values():
        return cluster
    return replace(cluster, nodes=(*cluster.nodes[:-1], replace(rounded, op="copy")))


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dims(x: Operand) -> tuple[Any, ...]:
    assert x.view is not None
    return x.view.dims


def _offset(x: Operand) -> Size:
    assert x.view is not None
    return x.view.offset


def _broadcast(view: View, shape: Sequence[Size]) -> View | None:
    missing = len(shape) - len(view.dims)
    if missing < 0:
        return None
    dims: list[Dim] = [(size, 0) for size in shape[:missing]]
    for (size, stride), target in zip(view.dims, shape[missing:], strict=True):
        if size == target:
            dims.append((target, stride if size != 1 else 0))
        elif size == 1:
            dims.append((target, 0))
        else:
            return None
    return View(tuple(dims), view.offset)


def _kind_of(value: Any) -> Class:
    if isinstance(value, Operand):
        return value.kind
    return "bool" if isinstance(value, bool) else "float" if isinstance(value, float) else "int"


def _number(value: Any, kind: Class) -> Any:
    if not isinstance(value, (int, float, bool)):
        return value  # a symbolic size
    return {"float": float, "double": float, "int": int, "bool": bool}[kind](value)
