"""Addresses: how a linear index walks through a tensor.

A `View` is a list of (size, stride) pairs, slowest first, and an offset. Read as a function it takes a row-major
linear index over its sizes to an element number of some base. The base is either a tensor's own row-major numbering
(a logical view) or its storage (a memory view).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onepass.ir.symbol import Size, at_least, product, quotient

Dim = tuple[Size, Size]  # (size, stride)


@dataclass(frozen=True)
class View:
    """A strided walk: element number = offset + sum of coordinate × stride."""

    dims: tuple[Dim, ...]
    offset: Size = 0

    @property
    def sizes(self) -> tuple[Size, ...]:
        return tuple(size for size, _ in self.dims)

    @property
    def numel(self) -> Size:
        return product(self.sizes)


def contiguous(sizes: Sequence[Size]) -> View:
    dims: list[Dim] = []
    stride: Size = 1
    for size in reversed(sizes):
        dims.append((size, stride))
        stride = stride * size
    return View(tuple(reversed(dims)))


def coalesce(dims: Iterable[Dim]) -> tuple[Dim, ...]:
    """The same walk in as few dimensions as possible: ones dropped, neighbours merged."""
    merged: list[Dim] = []
    for size, stride in dims:
        if size == 1:
            continue
        if merged and merged[-1][1] == stride * size:
            merged[-1] = ((merged[-1][0] * size), stride)
        else:
            merged.append((size, stride))
    return tuple(merged)


def is_identity(view: View) -> bool:
    dims = coalesce(view.dims)
    return view.offset == 0 and (not dims or (len(dims) == 1 and dims[0][1] == 1))


def compose(base: View, walk: View, proven: bool = False) -> View | None:
    """``walk`` numbers elements of ``base`` in row-major order: the walk through what ``base`` walks through.

    None where a dimension of ``walk`` does not stay inside dimensions of ``base``, or those hold nothing. That it stays
    inside the slowest one is taken on trust (PyTorch has checked its slices, and a symbolic one can't be proven to end
    inside) unless the caller wants it ``proven``.
    """
    root = coalesce(base.dims)
    if any(size == 0 for size, _ in root):
        return None
    steps: list[Size] = []  # elements that one step along each base dimension covers
    step: Size = 1
    for size, _ in reversed(root):
        steps.append(step)
        step = step * size
    steps.reverse()
    coordinates = _coordinates(walk.offset, steps, root)
    if coordinates is None:
        return None
    offset: Size = base.offset
    used = list(coordinates)  # largest coordinate reached along each base dimension
    for coordinate, (_, stride) in zip(coordinates, root, strict=True):
        offset = offset + coordinate * stride
    dims: list[Dim] = []
    for size, stride in walk.dims:
        pieces = _place(size, stride, steps, root, used, proven)
        if pieces is None:
            return None
        dims.extend(pieces)
    first = 0 if proven else 1
    if any(
        not at_least(size - 1, reached) for reached, (size, _) in zip(used[first:], root[first:], strict=True)
    ):
        return None
    return View(tuple(dims), (offset))


def compose_window(base: View, walk: View, window: tuple[int, int], proven: bool = False) -> View | None:
    """Like `compose`, for a walk that is only inside ``base`` at the columns lo ≤ c < hi of its last dimension."""
    lo, hi = window
    *outer, (wide, stride) = walk.dims
    inside = compose(base, View((*outer, (hi - lo, stride)), (walk.offset + lo * stride)), proven)
    if inside is None or len(inside.dims) != len(walk.dims):
        return None
    step = inside.dims[-1][1]
    return View((*inside.dims[:-1], (wide, step)), (inside.offset - lo * step))


def _coordinates(offset: Size, steps: list[Size], root: tuple[Dim, ...]) -> list[Size] | None:
    rest = offset
    coordinates: list[Size] = []
    for step in steps:
        if isinstance(rest, int) and isinstance(step, int):
            coordinates.append(rest // step)
            rest = rest % step
        elif (whole := quotient(rest, step)) is not None:
            coordinates.append(whole)
            rest = 0
        elif isinstance(rest, int) and rest >= 0:
            coordinates.append(0)  # below one symbolic step; the bound check at the end proves it
        else:
            return None
    return coordinates if rest == 0 else None


def _place(
    size: Size, stride: Size, steps: list[Size], root: tuple[Dim, ...], used: list[Size], proven: bool
) -> list[Dim] | None:
    """One dimension of a walk as dimensions along the base; ``used`` grows by the reach."""
    if size == 1:
        return [(1, 0)]
    if stride == 0:
        return [(size, 0)]
    for k in range(len(root) - 1, -1, -1):
        times = quotient(stride, steps[k])
        if times is None:
            continue
        extent, base_stride = root[k]
        reach = (size - 1) * times
        if (k == 0 and not proven) or at_least(extent - 1, used[k] + reach):
            used[k] = used[k] + reach
            return [(size, (base_stride * times))]
        if times == 1 and used[k] == 0 and k > 0 and (outer := quotient(size, extent)) is not None:
            used[k] = extent - 1
            slow = _place(outer, (steps[k] * extent), steps, root, used, proven)
            return None if slow is None else [*slow, (extent, base_stride)]
    return None


def split(dims: Sequence[Dim], inner: Size) -> tuple[tuple[Dim, ...], tuple[Dim, ...]] | None:
    """The walk cut in two so that the right part counts ``inner`` elements; None where a dimension straddles."""
    left, right = list(dims), list[Dim]()
    need = inner
    while need != 1:
        if not left:
            return None
        size, stride = left.pop()
        if (rest := quotient(need, size)) is not None:
            right.append((size, stride))
            need = rest
        elif (outer := quotient(size, need)) is not None:
            right.append((need, stride))
            left.append((outer, (stride * need)))
            need = 1
        else:
            return None
    return tuple(left), tuple(reversed(right))


def refine(walks: Sequence[Sequence[Dim]]) -> tuple[tuple[Size, ...], list[tuple[Size, ...]]] | None:
    """Walks over one index as strides over common sizes, coalesced together; None where sizes do not nest."""
    rest = [[d for d in walk if d[0] != 1] for walk in walks]
    sizes: list[Size] = []
    strides: list[list[Size]] = [[] for _ in walks]
    while any(rest):
        if not all(rest):
            return None
        step = rest[0][-1][0]
        for walk in rest[1:]:
            size = walk[-1][0]
            if size == step or quotient(size, step) is not None:
                continue
            if quotient(step, size) is None:
                return None
            step = size
        for walk, out in zip(rest, strides, strict=True):
            size, stride = walk.pop()
            out.append(stride)
            outer = quotient(size, step)
            if outer is None:
                return None
            if outer != 1:
                walk.append((outer, (stride * step)))
        sizes.append(step)
    sizes.reverse()
    columns = [list(reversed(s)) for s in strides]
    return _merge(sizes, columns)


def _merge(sizes: list[Size], strides: list[list[Size]]) -> tuple[tuple[Size, ...], list[tuple[Size, ...]]]:
    """Neighbouring dimensions that every walk passes as one, made one."""
    kept: list[int] = []
    out_sizes: list[Size] = []
    out: list[list[Size]] = [[] for _ in strides]
    for i, size in enumerate(sizes):
        if kept and all(o[-1] == s[i] * size for o, s in zip(out, strides, strict=True)):
            out_sizes[-1] = out_sizes[-1] * size
            for o, s in zip(out, strides, strict=True):
                o[-1] = s[i]
        else:
            kept.append(i)
            out_sizes.append(size)
            for o, s in zip(out, strides, strict=True):
                o.append(s[i])
    return tuple(out_sizes), [tuple(o) for o in out]


def reshape(view: View, sizes: Sequence[Size]) -> View | None:
    """The view with other sizes, where no copy is needed."""
    dims: list[Dim] = []
    left: list[Dim] = list(coalesce(view.dims))
    for size in reversed(sizes):
        if size == 1:
            dims.append((1, 0))
            continue
        if not left:
            return None
        have, stride = left.pop()
        outer = quotient(have, size)
        if outer is None:
            return None
        dims.append((size, stride))
        if outer != 1:
            left.append((outer, (stride * size)))
    return View(tuple(reversed(dims)), view.offset) if not left else None
