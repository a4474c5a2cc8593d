"""Read attention masks made of index arithmetic off a Dynamo graph and prove what they let through.

A tensor that depends on no data is read as a *grid*: what one element is, as a function of its own index. Booleans are
formulas of linear inequalities, numbers are cases (formula, value), a value being linear in the indices or a constant.
Sizes may be symbolic. What cannot be read this way has no grid, and a mask without a grid is left alone.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sympy
import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from onepass.capture.proof import (
    FALSE,
    TRUE,
    Formula,
    Linear,
    all_of,
    any_of,
    at_least,
    inequalities,
    is_valid,
    negation,
    rename,
)

# Sizes of tensors held in memory are below 2**48 elements and in practice below 2**40: with these limits no index
# expression overflows int64, so integer arithmetic on the tensors is the arithmetic of the integers.
_MAX_CONSTANT = 2**40
_MAX_FACTOR = 2**20
_MAX_CASES = 16

Value = Linear | float
Cases = tuple[tuple[Formula, Value], ...]
Cell = Formula | Cases
Sizes = tuple[sympy.Expr, ...]


@dataclass(frozen=True)
class Grid:
    """What a tensor holds at its own index, and its sizes."""

    cell: Cell
    sizes: Sizes


@dataclass(frozen=True)
class Proof:
    """What a mask lets through: everything, the lower triangle, or something to be kept as it is."""

    lets_through: Literal["all", "causal", "unproven"]
    reason: str


class _Unreadable(Exception):
    """The element of a tensor is no function of its index that this module can write down."""


def sizes_of(shape: Sequence[int | torch.SymInt]) -> Sizes:
    """The sizes as expressions; no guard is added."""
    return tuple(_size(size) for size in shape)


def _size(size: int | torch.SymInt) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def read_grids(graph: Graph) -> dict[Node, Grid]:
    """Every tensor of the graph that is index arithmetic alone and is never written to."""
    grids: dict[Node, Grid] = {}
    for node in graph.nodes:
        reader = _reader(node)
        value = node.meta.get("example_value")
        if reader is None or not _is_readable(value):
            continue
        try:
            cell = reader(_Call(node, value, grids))
        except _Unreadable:
            continue
        sizes = sizes_of(value.shape)
        ones = {dim: Linear() for dim in range(-len(sizes), 0) if sizes[dim] == 1}
        grids[node] = Grid(_rename_cell(cell, ones), sizes)
    return grids


def _is_readable(value: object) -> bool:
    # The version counter of the traced tensor counts every write to it or to a view of it, anywhere in the graph.
    return (
        isinstance(value, FakeTensor)
        and value.layout is torch.strided
        and (value.dtype in (torch.bool, torch.int64) or value.dtype.is_floating_point)
        and not value.is_inference()
        and value._version == 0
    )


def _written_by_unknown(node: Node) -> bool:
    """Whether a higher-order operator takes the tensor: those may write without moving the version counter."""
    return any(isinstance(user.target, HigherOrderOperator) for user in node.users)


def prove(
    node: Node, grids: Mapping[Node, Grid], query_length: int | torch.SymInt, key_length: int | torch.SymInt
) -> Proof:
    """What the mask lets through, for all sizes the graph is valid for."""
    grid = grids.get(node)
    if grid is None:
        return Proof("unproven", _why_unread(node, grids))
    if any(_written_by_unknown(ancestor) for ancestor in ancestors(node)):
        return Proof("unproven", "a higher-order operator may write to a part of the mask")
    formula, total = _lets_through(grid)
    sizes = {dim - len(grid.sizes): size for dim, size in enumerate(grid.sizes)}
    sizes |= {-2: _size(query_length), -1: _size(key_length)}
    known = _bounds(sizes, (formula, total), node.meta["example_value"].fake_mode.shape_env)
    if not is_valid(total, known):
        return Proof("unproven", "additive mask with values other than 0 and -inf")
    if is_valid(formula, known):
        return Proof("all", "every key is let through for every size")
    lower = at_least(Linear.index(-2), Linear.index(-1))
    same_length = _size(query_length) == _size(key_length)
    if is_valid(any_of(negation(formula), lower), known) and is_valid(
        any_of(formula, negation(lower)), known
    ):
        if same_length:
            return Proof("causal", "key index <= query index for every size, and as many keys as queries")
        return Proof("unproven", "key index <= query index, but the number of keys and queries may differ")
    return Proof("unproven", f"lets through what satisfies {_short(str(formula))}")


def _short(text: str) -> str:
    return text if len(text) <= 160 else text[:157] + "..."


def ancestors(node: Node) -> list[Node]:
    """The node and all it is computed from, in graph order."""
    found: set[Node] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current not in found:
            found.add(current)
            stack.extend(current.all_input_nodes)
    return sorted(found)


def _why_unread(node: Node, grids: Mapping[Node, Grid]) -> str:
    for ancestor in ancestors(node):
        value = ancestor.meta.get("example_value")
        if ancestor in grids or not isinstance(value, torch.Tensor):
            continue
        if ancestor.op in ("placeholder", "get_attr"):
            return f"depends on the data of {ancestor.name}"
        return f"{ancestor.name} ({_name(ancestor)}) is not index arithmetic that can be followed"
    return "not traced with fake tensors"


def _lets_through(grid: Grid) -> tuple[Formula, Formula]:
    """What is let through, and the condition that the rest is shut out altogether."""
    if not isinstance(grid.cell, tuple):
        return grid.cell, TRUE
    kept = any_of(*(guard for guard, value in grid.cell if value == 0.0))
    shut = any_of(*(guard for guard, value in grid.cell if value == float("-inf")))
    return kept, any_of(kept, shut)


def _bounds(
    sizes: Mapping[int, sympy.Expr], formulas: Iterable[Formula], shape_env: ShapeEnv | None
) -> list[Linear]:
    """What is known: 0 <= index < size, and the range of each symbol of a size, which Dynamo guards."""
    known = []
    for dim, size in sizes.items():
        known.append(Linear.index(dim))
        length = Linear.size(size)
        if length is not None:
            known.append(length - Linear.index(dim) - 1)
    atoms = {variable for line in (*known, *inequalities(formulas)) for variable, _ in line.terms}
    for atom in atoms:
        if isinstance(atom, sympy.Expr) and shape_env is not None:
            known.extend(_range(atom, shape_env))
    return known


def _range(atom: sympy.Expr, shape_env: ShapeEnv) -> Iterator[Linear]:
    bounds, variable = shape_env.bound_sympy(atom), Linear(0, ((atom, 1),))
    if isinstance(bounds.lower, sympy.Integer):
        yield variable - int(bounds.lower)
    if isinstance(bounds.upper, sympy.Integer):
        yield Linear(int(bounds.upper)) - variable


# --- reading one call -------------------------------------------------------------------------------------------------


class _Call:
    """A call in the graph, its arguments looked up."""

    def __init__(self, node: Node, value: torch.Tensor, grids: Mapping[Node, Grid]) -> None:
        self.node = node
        self.dtype = value.dtype
        self.sizes = sizes_of(value.shape)
        self.grids = grids

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """A raw argument; a node that stands for a number is replaced by it."""
        arguments = self.node.args
        raw = arguments[position] if position < len(arguments) else self.node.kwargs.get(name, default)
        return scalar_of(raw)

    def operand(self, position: int, name: str) -> Cell:
        """An argument as a cell that broadcasts to the result."""
        return self.cell(self.argument(position, name))

    def cell(self, raw: Any) -> Cell:
        if isinstance(raw, Node):
            return self.grid(raw).cell
        if isinstance(raw, bool):
            return TRUE if raw else FALSE
        if isinstance(raw, int | torch.SymInt):
            return ((TRUE, _linear(raw)),)
        if isinstance(raw, float):
            return ((TRUE, raw),)
        raise _Unreadable

    def grid(self, node: Any) -> Grid:
        """The grid of a tensor argument, which must broadcast to the result."""
        grid = self.source(node)
        padded = self.sizes[len(self.sizes) - len(grid.sizes) :]
        if len(grid.sizes) > len(self.sizes) or any(
            mine != 1 and mine != theirs for mine, theirs in zip(grid.sizes, padded, strict=True)
        ):
            raise _Unreadable
        return grid

    def source(self, node: Any) -> Grid:
        grid = self.grids.get(node) if isinstance(node, Node) else None
        if grid is None:
            raise _Unreadable
        return grid


def scalar_of(raw: Any) -> Any:
    """The number that a node stands for, or what was given."""
    if isinstance(raw, Node):
        value = raw.meta.get("example_value")
        if isinstance(value, int | float | torch.SymInt):
            return value
    return raw


def _linear(value: int | torch.SymInt) -> Linear:
    linear = Linear.size(_size(value))
    if linear is None:
        raise _Unreadable
    return _checked(linear)


def _checked(value: Linear) -> Linear:
    if abs(value.constant) > _MAX_CONSTANT or any(abs(factor) > _MAX_FACTOR for _, factor in value.terms):
        raise _Unreadable
    return value


def _rename_cell(cell: Cell, dims: Mapping[int, Linear]) -> Cell:
    if not isinstance(cell, tuple):
        return rename(cell, dims)
    renamed = ((rename(g, dims), v.rename(dims) if isinstance(v, Linear) else v) for g, v in cell)
    return tuple(case for case in renamed if case[0] != FALSE)


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


_Reader = Callable[[_Call], Cell]


def _reader(node: Node) -> _Reader | None:
    """How to read a call, or None; a function counts only if it is PyTorch's or Python's own of that name."""
    name = _name(node)
    if node.op == "call_method":
        return _READERS.get(name)
    if node.op != "call_function":
        return None
    known = any(getattr(home, name, None) is node.target for home in (torch, operator, builtins))
    return _READERS.get(name) if known else None


# --- cells ------------------------------------------------------------------------------------------------------------


def _cases(cell: Cell) -> Cases:
    if isinstance(cell, tuple):
        return cell
    return ((cell, Linear(1)), (negation(cell), Linear(0)))


def _condition(cell: Cell) -> Formula:
    """A cell as a boolean: where it is not zero."""
    if not isinstance(cell, tuple):
        return cell
    return any_of(*(all_of(guard, _compare("ne", value, Linear(0))) for guard, value in cell))


def _select(condition: Formula, yes: Cases, no: Cases) -> Cases:
    cases = [(all_of(condition, guard), value) for guard, value in yes]
    cases += [(all_of(negation(condition), guard), value) for guard, value in no]
    return _few(cases)


def _few(cases: Iterable[tuple[Formula, Value]]) -> Cases:
    kept = tuple(case for case in cases if case[0] != FALSE)
    if len(kept) > _MAX_CASES:
        raise _Unreadable
    return kept


def _as_dtype(cell: Cell, dtype: torch.dtype) -> Cell:
    if dtype is torch.bool:
        return _condition(cell)
    return tuple((guard, _as_number(value, dtype)) for guard, value in _cases(cell))


def _as_number(value: Value, dtype: torch.dtype) -> Value:
    if dtype is torch.int64:
        if isinstance(value, Linear):
            return _checked(value)
        raise _Unreadable
    if isinstance(value, Linear):
        if value.terms:
            raise _Unreadable
        value = float(value.constant)
    return _exact(value, dtype)


def _exact(value: float, dtype: torch.dtype) -> float:
    """A float that means the same in every floating dtype, or the named end of this one; others may round."""
    ends = (torch.finfo(dtype).min, torch.finfo(dtype).max)
    if value in (0.0, 1.0, -1.0, float("inf"), float("-inf"), *ends):
        return value
    raise _Unreadable


def _compare(name: str, left: Value, right: Value) -> Formula:
    if isinstance(left, Linear) and isinstance(right, Linear):
        match name:
            case "ge":
                return at_least(left, right)
            case "le":
                return at_least(right, left)
            case "gt":
                return at_least(left, right + 1)
            case "lt":
                return at_least(right, left + 1)
            case "eq":
                return all_of(at_least(left, right), at_least(right, left))
            case _:
                return any_of(at_least(left, right + 1), at_least(right, left + 1))
    return TRUE if getattr(operator, name)(_constant(left), _constant(right)) else FALSE


def _constant(value: Value) -> float:
    if isinstance(value, Linear):
        if value.terms:
            raise _Unreadable
        return float(value.constant)
    return value


def _combine(name: str, left: Value, right: Value) -> Cases:
    if isinstance(left, Linear) and isinstance(right, Linear):
        match name:
            case "add":
                return ((TRUE, _checked(left + right)),)
            case "sub":
                return ((TRUE, _checked(left - right)),)
            case "mul":
                if left.terms and right.terms:
                    raise _Unreadable
                scaled = right * left.constant if not left.terms else left * right.constant
                return ((TRUE, _checked(scaled)),)
            case "minimum":
                return _select(at_least(right, left), ((TRUE, left),), ((TRUE, right),))
            case _:
                return _select(at_least(left, right), ((TRUE, left),), ((TRUE, right),))
    if name not in ("add", "sub", "mul"):
        raise _Unreadable
    return ((TRUE, _float_result(name, _constant(left), _constant(right))),)


def _float_result(name: str, left: float, right: float) -> float:
    """Only results that no floating dtype rounds: of 0, 1, -1 and infinities, or a product with one of them."""
    plain = (0.0, 1.0, -1.0, float("inf"), float("-inf"))
    if (left in plain and right in plain) or (name == "mul" and (left in plain or right in plain)):
        result = float(getattr(operator, name)(left, right))
        if result == result:
            return result
    raise _Unreadable


# --- the calls that can be read ---------------------------------------------------------------------------------------


def _arange(call: _Call) -> Cell:
    given = [scalar_of(argument) for argument in call.node.args]
    named = {name: scalar_of(value) for name, value in call.node.kwargs.items()}
    if call.dtype is not torch.int64 or any(name in named for name in ("start", "end", "step")):
        raise _Unreadable
    start = given[0] if len(given) > 1 else 0
    step = given[2] if len(given) > 2 else 1
    if not isinstance(start, int | torch.SymInt) or not isinstance(step, int):
        raise _Unreadable
    return ((TRUE, _checked(_linear(start) + Linear.index(-1) * step)),)


def _filled(position: int, name: str) -> _Reader:
    """A tensor of one value, given as an argument."""
    return lambda call: _as_dtype(call.cell(_number(call.argument(position, name))), call.dtype)


def _number(raw: Any) -> Any:
    if isinstance(raw, Node):
        raise _Unreadable
    return raw


def _constant_tensor(value: int) -> _Reader:
    return lambda call: _as_dtype(((TRUE, Linear(value)),), call.dtype)


def _copied(call: _Call) -> Cell:
    return _as_dtype(call.operand(0, "self"), call.dtype)


def _compared(name: str) -> _Reader:
    def read(call: _Call) -> Cell:
        pairs = _pairs(call.operand(0, "input"), call.operand(1, "other"))
        return any_of(*(all_of(guard, _compare(name, left, right)) for guard, left, right in pairs))

    return read


def _combined(name: str) -> _Reader:
    def read(call: _Call) -> Cell:
        if call.dtype is torch.bool or "alpha" in call.node.kwargs or len(call.node.args) != 2:
            raise _Unreadable
        cases: list[tuple[Formula, Value]] = []
        for guard, left, right in _pairs(call.operand(0, "input"), call.operand(1, "other")):
            cases += [(all_of(guard, inner), value) for inner, value in _combine(name, left, right)]
        return _as_dtype(_few(cases), call.dtype)

    return read


def _pairs(left: Cell, right: Cell) -> Iterator[tuple[Formula, Value, Value]]:
    for guard_left, value_left in _cases(left):
        for guard_right, value_right in _cases(right):
            guard = all_of(guard_left, guard_right)
            if guard != FALSE:
                yield guard, value_left, value_right


def _logical(join: Callable[..., Formula]) -> _Reader:
    def read(call: _Call) -> Cell:
        parts = call.operand(0, "input"), call.operand(1, "other")
        if call.dtype is not torch.bool:
            raise _Unreadable
        return join(*(_condition(part) for part in parts))

    return read


def _inverted(call: _Call) -> Cell:
    if call.dtype is not torch.bool:
        raise _Unreadable
    return negation(_condition(call.operand(0, "input")))


def _negated(call: _Call) -> Cell:
    return _as_dtype(
        _few(
            (all_of(guard, inner), value)
            for guard, old in _cases(call.operand(0, "input"))
            for inner, value in _combine("mul", old, Linear(-1))
        ),
        call.dtype,
    )


def _absolute(call: _Call) -> Cell:
    cases = _cases(call.operand(0, "input"))
    if call.dtype is not torch.int64 or not all(isinstance(value, Linear) for _, value in cases):
        raise _Unreadable
    flipped = ((guard, -value) for guard, value in cases if isinstance(value, Linear))
    positive = any_of(*(all_of(guard, _compare("ge", value, Linear(0))) for guard, value in cases))
    return _select(positive, cases, tuple(flipped))


def _where(call: _Call) -> Cell:
    condition = _condition(call.operand(0, "condition"))
    return _chosen(call, condition, call.operand(1, "input"), call.operand(2, "other"))


def _masked_fill(call: _Call) -> Cell:
    condition = _condition(call.operand(1, "mask"))
    return _chosen(call, condition, call.operand(2, "value"), call.operand(0, "input"))


def _chosen(call: _Call, condition: Formula, yes: Cell, no: Cell) -> Cell:
    return _as_dtype(_select(condition, _cases(yes), _cases(no)), call.dtype)


def _triangle(lower: bool) -> _Reader:
    def read(call: _Call) -> Cell:
        diagonal = call.argument(1, "diagonal", 0)
        if not isinstance(diagonal, int | torch.SymInt):
            raise _Unreadable
        edge = Linear.index(-2) - Linear.index(-1) + _linear(diagonal)
        inside = at_least(edge, 0) if lower else at_least(-edge, 0)
        return _chosen(call, inside, call.operand(0, "input"), ((TRUE, Linear(0)),))

    return read


def _reshaped(call: _Call) -> Cell:
    """A change of shape that only adds and removes dimensions of size one."""
    source = call.source(call.argument(0, "self"))
    if any(isinstance(given, torch.dtype) for given in (*call.node.args, *call.node.kwargs.values())):
        raise _Unreadable  # view(dtype) reads the bits as something else
    old = [dim for dim in range(-len(source.sizes), 0) if source.sizes[dim] != 1]
    new = [dim for dim in range(-len(call.sizes), 0) if call.sizes[dim] != 1]
    if [source.sizes[dim] for dim in old] != [call.sizes[dim] for dim in new]:
        raise _Unreadable
    return _rename_cell(source.cell, {a: Linear.index(b) for a, b in zip(old, new, strict=True)})


def _permuted(call: _Call) -> Cell:
    source = call.source(call.argument(0, "self"))
    rank = len(source.sizes)
    order = list(range(rank))
    given = call.argument(1, "dims") if len(call.node.args) == 2 else call.node.args[1:]
    if not isinstance(given, Sequence) or not all(isinstance(dim, int) for dim in given):
        raise _Unreadable
    if _name(call.node) == "permute":
        order = [dim % rank for dim in given]
    else:
        if len(given) != 2:
            raise _Unreadable
        first, second = (dim % rank for dim in given)
        order[first], order[second] = second, first
    return _rename_cell(source.cell, {old - rank: Linear.index(new - rank) for new, old in enumerate(order)})


def _indexed(call: _Call) -> Cell:
    """Basic indexing: new axes, integers, and slices of step one from a start that is not negative."""
    source = call.source(call.argument(0, "self"))
    items = call.node.args[1] if isinstance(call.node.args[1], tuple) else (call.node.args[1],)
    taken = sum(item is not None and item is not Ellipsis for item in items)
    if sum(item is Ellipsis for item in items) > 1:
        raise _Unreadable
    if Ellipsis not in items:
        items = (*items, Ellipsis)
    full = (slice(None),) * (len(source.sizes) - taken)
    cut = [i for i, item in enumerate(items) if item is Ellipsis][0]
    items = (*items[:cut], *full, *items[cut + 1 :])
    dims: dict[int, Linear] = {}
    old, new = -len(source.sizes), -len(call.sizes)
    for item in items:
        if item is not None:
            dims[old] = _start(item, new)
            old += 1
        if item is None or isinstance(item, slice):
            new += 1
    return _rename_cell(source.cell, dims)


def _start(item: Any, new_dim: int) -> Linear:
    if isinstance(item, slice):
        start, step = scalar_of(item.start), scalar_of(item.step)
        if step in (None, 1) and start is None:
            return Linear.index(new_dim)
        if step in (None, 1) and type(start) is int and start >= 0:
            return Linear.index(new_dim) + start
    elif type(item) is int and item >= 0:
        return Linear(item)
    raise _Unreadable


_COMPARISONS = {name: _compared(name) for name in ("ge", "le", "gt", "lt", "eq", "ne")}
_ARITHMETIC = {name: _combined(name) for name in ("add", "sub", "mul", "minimum", "maximum")}
_ARITHMETIC |= {"min": _combined("minimum"), "max": _combined("maximum")}
_READERS: dict[str, _Reader] = {
    **_COMPARISONS,
    **_ARITHMETIC,
    **dict.fromkeys(("and_", "logical_and", "bitwise_and"), _logical(all_of)),
    **dict.fromkeys(("or_", "logical_or", "bitwise_or"), _logical(any_of)),
    **dict.fromkeys(("invert", "inv", "logical_not", "bitwise_not"), _inverted),
    **dict.fromkeys(("ones", "new_ones", "ones_like"), _constant_tensor(1)),
    **dict.fromkeys(("zeros", "new_zeros", "zeros_like"), _constant_tensor(0)),
    **dict.fromkeys(("full", "full_like"), _filled(1, "fill_value")),
    **dict.fromkeys(
        ("to", "bool", "long", "float", "half", "bfloat16", "type_as", "contiguous", "clone"), _copied
    ),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to", "detach"), _copied),
    **dict.fromkeys(("view", "reshape", "unsqueeze", "squeeze", "flatten"), _reshaped),
    **dict.fromkeys(("transpose", "permute"), _permuted),
    "tensor": _filled(0, "data"),
    "new_full": _filled(2, "fill_value"),
    "arange": _arange,
    "neg": _negated,
    "abs": _absolute,
    "where": _where,
    "masked_fill": _masked_fill,
    "tril": _triangle(lower=True),
    "triu": _triangle(lower=False),
    "getitem": _indexed,
}
