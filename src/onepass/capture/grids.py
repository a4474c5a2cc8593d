"""Read the tensors of a Dynamo graph that are index arithmetic alone.

A tensor that depends on no data has a *grid*: its sizes, which may be symbolic, and the cell at its own
index. A call that is not known here has no grid, and nothing computed from it has.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node

from onepass.capture.cells import (
    Cases,
    Cell,
    Unreadable,
    as_dtype,
    cases,
    checked,
    combine,
    compare,
    condition,
    few,
    pairs,
    renamed,
    select,
)
from onepass.capture.proof import FALSE, TRUE, Formula, Linear, all_of, any_of, negation
from onepass.capture.writes import is_untouched

Sizes = tuple[sympy.Expr, ...]
Size = int | torch.SymInt


@dataclass(frozen=True)
class Grid:
    """What a tensor holds at its own index, and its sizes."""

    cell: Cell
    sizes: Sizes


def size_of(size: Size) -> sympy.Expr:
    """The size as an expression; no guard is added."""
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def sizes_of(shape: Sequence[Size]) -> Sizes:
    """The sizes as expressions; no guard is added."""
    return tuple(size_of(size) for size in shape)


def scalar_of(raw: Any) -> Any:
    """The number that a node stands for, or what was given."""
    value = raw.meta.get("example_value") if isinstance(raw, Node) else None
    return value if isinstance(value, int | float | torch.SymInt) else raw


def name_of(node: Node) -> str:
    """The name of what a node calls."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def read_grids(graph: Graph) -> dict[Node, Grid]:
    """Every tensor of the graph that is index arithmetic alone and is never written to; `mark_written` comes first."""
    grids: dict[Node, Grid] = {}
    for node in graph.nodes:
        reader = _reader(node)
        if reader is None or not _is_readable(node):
            continue
        value = node.meta["example_value"]
        sizes = sizes_of(value.shape)
        ones = {dim: Linear() for dim in range(-len(sizes), 0) if sizes[dim] == 1}
        try:
            grids[node] = Grid(renamed(reader(_Call(node, value.dtype, sizes, grids)), ones), sizes)
        except Unreadable:
            continue
    return grids


def _is_readable(node: Node) -> bool:
    value: Any = node.meta.get("example_value")
    return is_untouched(node) and (value.dtype in (torch.bool, torch.int64) or value.dtype.is_floating_point)


@dataclass(frozen=True)
class _Call:
    """A call in the graph with the dtype and sizes of its result, and the grids read so far."""

    node: Node
    dtype: torch.dtype
    sizes: Sizes
    grids: Mapping[Node, Grid]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """A raw argument; a node that stands for a number is replaced by it."""
        given = self.node.args
        return scalar_of(given[position] if position < len(given) else self.node.kwargs.get(name, default))

    def operand(self, position: int, name: str) -> Cell:
        """An argument as a cell that broadcasts to the result."""
        raw = self.argument(position, name)
        return self._broadcast(raw) if isinstance(raw, Node) else scalar_cell(raw)

    def _broadcast(self, node: Node) -> Cell:
        grid = self.source(node)
        mine, theirs = grid.sizes[::-1], self.sizes[::-1]
        fits = all(size in (1, whole) for size, whole in zip(mine, theirs, strict=False))
        if len(mine) > len(theirs) or not fits:
            raise Unreadable
        return grid.cell

    def source(self, node: Any) -> Grid:
        """The grid of a tensor argument."""
        grid = self.grids.get(node) if isinstance(node, Node) else None
        if grid is None:
            raise Unreadable
        return grid


def scalar_cell(raw: Any) -> Cell:
    """A number given in the program as a cell."""
    if isinstance(raw, bool):
        return TRUE if raw else FALSE
    if isinstance(raw, int | torch.SymInt):
        return ((TRUE, _linear(raw)),)
    if isinstance(raw, float):
        return ((TRUE, raw),)
    raise Unreadable


def _linear(value: Size) -> Linear:
    linear = Linear.size(size_of(value))
    if linear is None:
        raise Unreadable
    return checked(linear)


_Reader = Callable[[_Call], Cell]


def _reader(node: Node) -> _Reader | None:
    return _READERS.get(name_of(node)) if is_pytorchs(node) else None


def is_pytorchs(node: Node) -> bool:
    """Whether it calls a method of a tensor, or the function of its name that is PyTorch's or Python's own."""
    if node.op != "call_function":
        return node.op == "call_method"
    return any(getattr(home, name_of(node), None) is node.target for home in (torch, operator, builtins))


def _arange(call: _Call) -> Cell:
    given = [scalar_of(argument) for argument in call.node.args]
    start, step = given[0] if len(given) > 1 else 0, given[2] if len(given) > 2 else 1
    named = any(name in call.node.kwargs for name in ("start", "end", "step"))
    if call.dtype is not torch.int64 or named or not isinstance(start, Size) or type(step) is not int:
        raise Unreadable
    return ((TRUE, checked(_linear(start) + Linear.index(-1) * step)),)


def _filled(position: int, name: str) -> _Reader:
    """A tensor of one value, given as an argument."""
    return lambda call: as_dtype(scalar_cell(call.argument(position, name)), call.dtype)


def _filled_with(value: int) -> _Reader:
    return lambda call: as_dtype(((TRUE, Linear(value)),), call.dtype)


def _copied(call: _Call) -> Cell:
    return as_dtype(call.operand(0, "self"), call.dtype)


def _compared(name: str) -> _Reader:
    def read(call: _Call) -> Cell:
        both = pairs(call.operand(0, "input"), call.operand(1, "other"))
        return any_of(*(all_of(guard, compare(name, left, right)) for guard, left, right in both))

    return read


def _combined(name: str) -> _Reader:
    def read(call: _Call) -> Cell:
        if call.dtype is torch.bool or "alpha" in call.node.kwargs or len(call.node.args) != 2:
            raise Unreadable
        return as_dtype(_combined_cases(name, call.operand(0, "input"), call.operand(1, "other")), call.dtype)

    return read


def _combined_cases(name: str, left: Cell, right: Cell) -> Cases:
    return few(
        (all_of(guard, inner), value)
        for guard, first, second in pairs(left, right)
        for inner, value in combine(name, first, second)
    )


def _joined(join: Callable[..., Formula]) -> _Reader:
    def read(call: _Call) -> Cell:
        if call.dtype is not torch.bool:
            raise Unreadable
        return join(condition(call.operand(0, "input")), condition(call.operand(1, "other")))

    return read


def _inverted(call: _Call) -> Cell:
    if call.dtype is not torch.bool:
        raise Unreadable
    return negation(condition(call.operand(0, "input")))


def _negated(call: _Call) -> Cell:
    return as_dtype(_combined_cases("mul", call.operand(0, "input"), scalar_cell(-1)), call.dtype)


def _absolute(call: _Call) -> Cell:
    given = call.operand(0, "input")
    positive = any_of(*(all_of(guard, compare("ge", value, Linear())) for guard, value in cases(given)))
    return as_dtype(
        select(positive, cases(given), _combined_cases("mul", given, scalar_cell(-1))), call.dtype
    )


def _where(call: _Call) -> Cell:
    if call.node.op == "call_method":  # x.where(condition, other)
        yes, formula = call.operand(0, "self"), condition(call.operand(1, "condition"))
    else:
        formula, yes = condition(call.operand(0, "condition")), call.operand(1, "input")
    return _chosen(call, formula, yes, call.operand(2, "other"))


def _masked_fill(call: _Call) -> Cell:
    return _chosen(
        call, condition(call.operand(1, "mask")), call.operand(2, "value"), call.operand(0, "input")
    )


def _chosen(call: _Call, formula: Formula, yes: Cell, no: Cell) -> Cell:
    return as_dtype(select(formula, cases(yes), cases(no)), call.dtype)


def _triangle(name: str) -> _Reader:
    def read(call: _Call) -> Cell:
        diagonal = call.argument(1, "diagonal", 0)
        if not isinstance(diagonal, Size):
            raise Unreadable
        inside = compare(name, Linear.index(-1) - Linear.index(-2), _linear(diagonal))
        return _chosen(call, inside, call.operand(0, "input"), scalar_cell(0))

    return read


def _reshaped(call: _Call) -> Cell:
    """A change of shape that only adds and removes dimensions of size one."""
    source = call.source(call.argument(0, "self"))
    if any(isinstance(given, torch.dtype) for given in (*call.node.args, *call.node.kwargs.values())):
        raise Unreadable  # view(dtype) reads the same bits as something else
    old = [dim for dim in range(-len(source.sizes), 0) if source.sizes[dim] != 1]
    new = [dim for dim in range(-len(call.sizes), 0) if call.sizes[dim] != 1]
    if [source.sizes[dim] for dim in old] != [call.sizes[dim] for dim in new]:
        raise Unreadable
    return renamed(source.cell, {a: Linear.index(b) for a, b in zip(old, new, strict=True)})


def _permuted(call: _Call) -> Cell:
    source = call.source(call.argument(0, "self"))
    rank, given = len(source.sizes), call.node.args[1:]
    dims: Any = given[0] if len(given) == 1 else given
    if not isinstance(dims, Sequence) or not all(type(dim) is int for dim in dims):
        raise Unreadable
    order = [dim % rank for dim in dims]
    if name_of(call.node) == "transpose":
        if len(order) != 2:
            raise Unreadable
        swap = dict(zip(order, reversed(order), strict=True))
        order = [swap.get(dim, dim) for dim in range(rank)]
    return renamed(source.cell, {old - rank: Linear.index(new - rank) for new, old in enumerate(order)})


def _indexed(call: _Call) -> Cell:
    """Basic indexing: new axes, integers, and slices of step one, from a start that is not negative."""
    source, given = call.source(call.argument(0, "self")), call.argument(1, "index")
    items = full_index(given if isinstance(given, tuple) else (given,), len(source.sizes))
    dims: dict[int, Linear] = {}
    old, new = -len(source.sizes), -len(call.sizes)
    for item in items:
        if item is not None:
            dims[old] = _start(item, new)
            old += 1
        if item is None or isinstance(item, slice):
            new += 1
    return renamed(source.cell, dims)


def full_index(items: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    """The items of an index with an ellipsis, written or implied, filled in."""
    dots = [place for place, item in enumerate(items) if item is Ellipsis]
    missing = rank - sum(item is not None and item is not Ellipsis for item in items)
    if len(dots) > 1 or missing < 0:
        raise Unreadable
    cut = dots[0] if dots else len(items)
    return (*items[:cut], *(slice(None),) * missing, *items[cut + 1 :])


def _start(item: Any, new_dim: int) -> Linear:
    if isinstance(item, slice) and scalar_of(item.step) in (None, 1):
        start = scalar_of(item.start) or 0
        if type(start) is int and start >= 0:
            return Linear.index(new_dim) + start
    elif type(item) is int and item >= 0:
        return Linear(item)
    raise Unreadable


_READERS: dict[str, _Reader] = {
    **{name: _compared(name) for name in ("ge", "le", "gt", "lt", "eq", "ne")},
    **{name: _combined(name) for name in ("add", "sub", "mul", "minimum", "maximum")},
    "min": _combined("minimum"),
    "max": _combined("maximum"),
    **dict.fromkeys(("and_", "logical_and", "bitwise_and"), _joined(all_of)),
    **dict.fromkeys(("or_", "logical_or", "bitwise_or"), _joined(any_of)),
    **dict.fromkeys(("invert", "inv", "logical_not", "bitwise_not"), _inverted),
    **dict.fromkeys(("ones", "new_ones", "ones_like"), _filled_with(1)),
    **dict.fromkeys(("zeros", "new_zeros", "zeros_like"), _filled_with(0)),
    **dict.fromkeys(("full", "full_like"), _filled(1, "fill_value")),
    "new_full": _filled(2, "fill_value"),
    "tensor": _filled(0, "data"),
    **dict.fromkeys(("to", "bool", "long", "float", "half", "bfloat16", "type_as"), _copied),
    **dict.fromkeys(("contiguous", "clone", "detach", "expand", "expand_as", "broadcast_to"), _copied),
    **dict.fromkeys(("view", "reshape", "unsqueeze", "squeeze", "flatten"), _reshaped),
    **dict.fromkeys(("transpose", "permute"), _permuted),
    "arange": _arange,
    "neg": _negated,
    "abs": _absolute,
    "where": _where,
    "masked_fill": _masked_fill,
    "tril": _triangle("le"),
    "triu": _triangle("ge"),
    "getitem": _indexed,
}
