"""Mend masks that cannot be proven away: smaller where they repeat, dense where attention asks for it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Graph, Node

from onepass.capture.grids import Grid, Size, is_pytorchs, name_of, size_of, sizes_of
from onepass.capture.masks import ancestors, prove
from onepass.capture.proof import TRUE, Linear
from onepass.capture.writes import is_untouched

_REPEATS = ("expand", "expand_as", "broadcast_to")
_CONJUNCTIONS = ("and_", "logical_and", "bitwise_and")


def lightened(mask: Node, grids: Mapping[Node, Grid], queries: Size, keys: Size) -> Node:
    """A smaller mask that broadcasts to the same: no repetitions, no parts that let everything through."""
    _open_gathers(mask, grids)
    return _lightest(mask, grids, queries, keys)


def _lightest(mask: Node, grids: Mapping[Node, Grid], queries: Size, keys: Size) -> Node:
    current = mask
    while True:
        lighter = _lighter(current, grids, queries, keys)
        if lighter is None or not _may_replace(lighter, mask):
            return current
        current = lighter


def _lighter(mask: Node, grids: Mapping[Node, Grid], queries: Size, keys: Size) -> Node | None:
    if not is_pytorchs(mask) or not is_untouched(mask):
        return None
    name, args = name_of(mask), mask.args
    if name in _REPEATS and isinstance(args[0], Node):
        return args[0]
    if name in _CONJUNCTIONS and len(args) == 2:
        for part, other in (args, args[::-1]):
            if not isinstance(part, Node) or not isinstance(other, Node) or not _is_boolean(part):
                continue
            if prove(part, grids, queries, keys).lets_through == "all":
                return other
    if mask.target is torch.where and len(args) == 3:
        return _lighter_choice(mask, grids, queries, keys)
    if name == "contiguous" and len(args) == 1 and not mask.kwargs and isinstance(args[0], Node):
        with mask.graph.inserting_before(mask):
            source = _lightest(args[0], grids, queries, keys)
            return None if source is args[0] else insert(mask.graph, "call_method", "contiguous", source)
    if name == "to" and isinstance(args[0], Node) and _changes_nothing(args[0], mask):
        return args[0]
    if name == "getitem":
        return _gather_as_view(mask, grids)
    return None


def _lighter_choice(mask: Node, grids: Mapping[Node, Grid], queries: Size, keys: Size) -> Node | None:
    """Of ``torch.where(condition, chosen, other)``: what an all-true condition chooses, or one of a lighter condition.

    A new one stands where the old one stood: what it reads may be written to further on.
    """
    condition, chosen, other = mask.args
    if not isinstance(condition, Node) or not _is_boolean(condition) or mask.kwargs:
        return None
    if isinstance(chosen, Node) and prove(condition, grids, queries, keys).lets_through == "all":
        return chosen
    with mask.graph.inserting_before(mask):
        lighter = _lightest(condition, grids, queries, keys)
        if lighter is condition:
            return None
        return insert(mask.graph, "call_function", torch.where, lighter, chosen, other)


def _is_boolean(node: Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool


def _changes_nothing(source: Node, result: Node) -> bool:
    old, new = source.meta.get("example_value"), result.meta["example_value"]
    return isinstance(old, torch.Tensor) and (old.dtype, old.device) == (new.dtype, new.device)


def _may_replace(lighter: Node, mask: Node) -> bool:
    """Whether attention may read it instead: same dtype, never written to, its last dimension dense, of 2 or as many.

    No fused attention of the CPU takes a mask of three dimensions.
    """
    value: Any = lighter.meta.get("example_value")
    whole = mask.meta["example_value"]
    return (
        is_untouched(lighter)
        and value.dtype is whole.dtype
        and value.dim() in (2, whole.dim())
        and sizes_of(value.shape)[-1] == sizes_of(whole.shape)[-1]
        and (_equals(value.stride(-1), 1) or not _equals(whole.stride(-1), 1))
    )


def _open_gathers(mask: Node, grids: Mapping[Node, Grid]) -> None:
    """Read the parts of a mask that are gathered in order, as masks of padding are, through views."""
    parts = set(ancestors(mask))
    for node in sorted(parts - {mask}):
        if name_of(node) != "getitem" or not is_untouched(node):
            continue
        with node.graph.inserting_before(node):
            view = _gather_as_view(node, grids)
        if view is not None:
            node.replace_all_uses_with(view, delete_user_cb=parts.__contains__)
            erase_unused(node, grids)


def _gather_as_view(node: Node, grids: Mapping[Node, Grid]) -> Node | None:
    """A gather ``x[i, j]`` whose indices count up along one dimension of the result each, as a view of x."""
    source, items = node.args
    if not isinstance(source, Node) or not is_untouched(source):
        return None
    value, whole = source.meta["example_value"], sizes_of(node.meta["example_value"].shape)
    if not isinstance(items, tuple) or len(items) != value.dim():
        return None
    index: list[slice | None] = [None] * len(whole)
    place = -len(whole) - 1
    for item, size in zip(items, sizes_of(value.shape), strict=True):
        dim = _counted_dim(grids.get(item) if isinstance(item, Node) else None)
        if dim is None or dim <= place or whole[dim] != size:
            return None
        index[dim], place = slice(None), dim
    if any(item is None and size != 1 for item, size in zip(index, whole, strict=True)):
        return None
    return insert(node.graph, "call_function", operator.getitem, source, tuple(index))


def _counted_dim(grid: Grid | None) -> int | None:
    """The dimension whose own index the tensor holds, or None."""
    if grid is None or not isinstance(grid.cell, tuple) or len(grid.cell) != 1:
        return None
    guard, value = grid.cell[0]
    if guard != TRUE or not isinstance(value, Linear) or len(value.terms) != 1:
        return None
    dim = value.terms[0][0]
    return dim if isinstance(dim, int) and value == Linear.index(dim) else None


def dense(mask: Node) -> Node | None:
    """The mask with a dense last dimension, which fused attention asks for; None if it has one already.

    Other broadcast dimensions stay broadcast: only what must be is written out.
    """
    value = mask.meta["example_value"]
    if value.dim() == 0 or _equals(value.stride(-1), 1) or _equals(value.shape[-1], 1):
        return None
    broadcast = [_equals(stride, 0) for stride in value.stride()[:-1]]
    cut = tuple(slice(0, 1) if is_broadcast else slice(None) for is_broadcast in broadcast)
    narrow = insert(mask.graph, "call_function", operator.getitem, mask, cut) if any(broadcast) else mask
    written = insert(mask.graph, "call_method", "contiguous", narrow)
    return insert(mask.graph, "call_method", "expand_as", written, mask) if any(broadcast) else written


def _equals(size: Size, number: int) -> bool:
    return bool(size_of(size) == number)


def insert(graph: Graph, op: str, target: str | Callable[..., Any], *args: Any) -> Node:
    """A new node at the graph's insertion point, with the fake tensor it yields."""
    node = graph.create_node(op, target, args)
    values = [arg.meta["example_value"] if isinstance(arg, Node) else arg for arg in args]
    run = getattr(torch.Tensor, target) if isinstance(target, str) else target
    with values[0].fake_mode:
        node.meta["example_value"] = run(*values)
    return node


def erase_unused(mask: Node, grids: Mapping[Node, Grid]) -> None:
    """Remove the arithmetic that built a mask, as far as nothing else uses it; it has no effects."""
    built = (*_REPEATS, *_CONJUNCTIONS, "where", "contiguous", "to", "getitem")
    for node in reversed(ancestors(mask)):
        if node.users or "out" in node.kwargs:
            continue
        if node in grids or (is_pytorchs(node) and name_of(node) in built):
            node.graph.erase_node(node)
