"""The address that each of ATen's views walks, from the address of what it is a view of."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from onepass.capture.sizes import size
from onepass.ir.address import View, reshape
from onepass.ir.symbol import Size, at_least


def followed(name: str, node: Node, i: int, source: View, shape: tuple[Size, ...]) -> View | None:
    """The address of result ``i`` of a view op, over the numbering of the tensor behind ``source``."""
    dims, offset = source.dims, source.offset
    rank = len(dims)
    arguments = list(node.args[1:])
    if name in ("view.default", "_unsafe_view.default", "reshape.default", "_reshape_alias.default"):
        return reshape(source, shape)
    if name in ("alias.default", "detach.default", "lift_fresh.default"):
        return source
    if name == "t.default":
        return View(tuple(reversed(dims)), offset)
    if name == "transpose.int":
        if not rank:
            return source
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
        return reshape(source, shape) if any(d[0] == 1 for d in dims) else source
    if name == "slice.Tensor":
        return _slice(dims, offset, arguments, shape)
    if name == "select.int":
        at = int(arguments[0]) % rank  # type: ignore[arg-type]
        index = _plain(arguments[1])
        if index is None:
            return None
        if _is_negative(index):
            index = index + dims[at][0]
        elif not at_least(index, 0) or not _are_sizes(index):
            return None
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
    if shape[at] == extent:
        start = 0
    elif _is_negative(start):
        start = start + extent
    elif not at_least(start, 0) or not _are_sizes(start):
        return None
    if isinstance(start, int) and isinstance(extent, int):
        start = max(0, min(start, extent))
    return View((*dims[:at], (shape[at], (stride * step)), *dims[at + 1 :]), (offset + start * stride))


def _is_negative(start: Size) -> bool:
    """Counted from the end, whatever the sizes are."""
    return at_least(-start - 1, 0) and _are_sizes(start)


def _are_sizes(value: Size) -> bool:
    """Whether every name in it is a size of an input, which is at least one; a remainder may be zero."""
    return isinstance(value, int) or all(name.isidentifier() for name in value.names)


def _plain(value: Any) -> Size | None:
    if isinstance(value, Node):
        value = value.meta.get("val")
    return size(value) if isinstance(value, (int, torch.SymInt)) else None
