"""Two clusters in one space, and a cluster's space as loops: which sizes, which stride each access takes along each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from onepass.ir.address import (
    Dim,
    View,
    coalesce,
    compose,
    compose_window,
    contiguous,
    is_identity,
    refine,
    split,
)
from onepass.ir.cluster import Cluster, Iota, Level, Load, Node, Reduce, Scan, Select, Space, Store, operands
from onepass.ir.symbol import Size, quotient


@dataclass(frozen=True)
class Strides:
    """How one access moves: elements per step along each outer dimension, along reduced and along inner.

    ``blocks``: along the slower dimensions of the reduced one, where it has several; ``reduced`` is along the fastest.
    ``per_block``: from one block of the reduced dimension to the next, of what there is one of in a block.
    """

    outer: tuple[Size, ...]
    reduced: Size
    inner: Size
    offset: Size
    blocks: tuple[Size, ...] = ()
    per_block: Size = 0


@dataclass(frozen=True)
class Layout:
    """A cluster's space as loops. ``accesses`` is keyed by node name, or by ``store:`` and the store's place.

    ``blocks`` are the sizes of the reduced dimension's slower parts, where some access does not pass it in one stride.
    """

    outer: tuple[Size, ...]
    reduced: Size
    inner: Size
    accesses: dict[str, Strides]
    blocks: tuple[Size, ...] = ()


Refusal = str  # a reason code and words


# One space


def join(producer: Cluster, consumer: Cluster) -> Cluster | Refusal:
    """Both in one cluster; tensors between them become values. A reason where that can't be."""
    placed = _place(producer, consumer)
    if isinstance(placed, str):
        return _inline(producer, consumer) if not producer.reduces else placed
    space, first, second = placed
    nodes = [_relevel(n, first) for n in producer.nodes]
    stores = [_restore(s, first) for s in producer.stores]
    renamed: dict[str, str] = {}
    for node in consumer.nodes:
        moved = _relevel(rename(node, renamed), second)
        written = _written(stores, moved)
        if not written:
            nodes.append(moved)
            continue
        read = _read(nodes, written, moved, space, producer.tensors[written[0].tensor].numel)
        if isinstance(read, str):
            return read
        nodes, renamed[node.name] = read
    after = [_restore(replace(s, value=renamed.get(s.value, s.value)), second) for s in consumer.stores]
    return tidy(
        Cluster(
            f"{producer.name}+{consumer.name}",
            space,
            tuple(nodes),
            (*stores, *after),
            (*producer.origins, *consumer.origins),
            {**producer.tensors, **consumer.tensors},
            consumer.device,
        )
    )


Levels = dict[Level, Level]
_KEEP: Levels = {"full": "full", "row": "row", "block": "block"}
_LOWER: Levels = {"full": "row"}
_BLOCKS: Levels = {"full": "full", "row": "block"}  # rows that are blocks of longer ones
_BLOCK: Levels = {"full": "block"}


def _place(a: Cluster, b: Cluster) -> tuple[Space, Levels, Levels] | Refusal:
    """The common space, and what each cluster's levels become in it."""
    if a.space.numel == b.space.numel:
        if a.reduces and b.reduces:
            return _nested(a.space, b.space, a.scans or b.scans)
        return (a.space if a.reduces else b.space), _KEEP, _KEEP
    if a.reduces and not b.reduces and b.space.numel == a.space.rows:
        return a.space, _KEEP, _LOWER
    if a.space.block and not b.reduces and b.space.numel == a.space.count("block"):
        return a.space, _KEEP, _BLOCK
    if b.space.block and not a.reduces and a.space.numel == b.space.count("block"):
        return b.space, _BLOCK, _KEEP
    if b.reduces and not a.reduces and a.space.numel == b.space.rows:
        return b.space, _LOWER, _KEEP
    return "space_mismatch: spaces of different size"


def _nested(a: Space, b: Space, scans: bool) -> tuple[Space, Levels, Levels] | Refusal:
    """Of two spaces that both reduce: the same one, or rows and blocks that rows consist of."""
    if (a.outer, a.reduced, a.inner) == (b.outer, b.reduced, b.inner):
        if a.block and b.block and a.block != b.block:
            return "space_mismatch: blocks of different lengths"
        if scans and (a.block or b.block):
            return "space_mismatch: a scan beside a reduction over blocks of columns"
        return (a if a.block else b), _KEEP, _KEEP
    for rows, blocks, swap in () if scans else ((a, b, False), (b, a, True)):
        short = blocks.reduced
        if (rows.inner, blocks.inner) != (1, 1) or blocks.block or rows.block not in (0, short):
            continue
        if not isinstance(short, int) or rows.reduced is None or quotient(rows.reduced, short) is None:
            continue
        space = replace(rows, block=short)
        return (space, _BLOCKS, _KEEP) if swap else (space, _KEEP, _BLOCKS)
    return "space_mismatch: reductions along different dimensions"


def _relevel(node: Node, levels: Levels) -> Node:
    if not isinstance(node, Reduce):
        return replace(node, level=levels[node.level])
    return node if levels is _LOWER or levels is _BLOCK else replace(node, level=levels[node.level])


def _restore(store: Store, levels: Levels) -> Store:
    return replace(store, level=levels[store.level])


def rename(node: Node, names: dict[str, str]) -> Node:
    if not names:
        return node
    if isinstance(node, Load):
        return replace(node, index=names.get(node.index, node.index)) if node.index else node
    if isinstance(node, Iota):
        return node
    if isinstance(node, (Reduce, Scan)):
        return replace(node, operand=names.get(node.operand, node.operand))
    return replace(node, operands=tuple(names.get(o, o) if isinstance(o, str) else o for o in node.operands))


def _written(stores: Iterable[Store], node: Node) -> list[Store]:
    """The stores behind a load: several where pieces of a concatenation lie in one cluster."""
    return [s for s in stores if isinstance(node, Load) and s.tensor == node.tensor]


def _read(
    nodes: list[Node], stores: list[Store], load: Node, space: Space, numel: Size
) -> tuple[list[Node], str] | Refusal:
    """What a load of a stored tensor of ``numel`` elements is instead: the value itself, or copies of what made it."""
    assert isinstance(load, Load)
    for store in stores:
        if (value := _direct(store, load, space, numel)) is not None:
            return nodes, value
    return _copied(nodes, stores, load, numel)


def _copied(
    nodes: list[Node], stores: list[Store], load: Node, numel: Size
) -> tuple[list[Node], str] | Refusal:
    """Copies of the nodes behind a load of a stored tensor."""
    assert isinstance(load, Load)
    made: tuple[list[Node], str] | Refusal = ""
    for store in stores:
        made = _graft(nodes, store, load, numel)
        if not isinstance(made, str):
            return made
    return made


def _direct(store: Store, load: Load, space: Space, numel: Size) -> str | None:
    """The stored value itself, when the load sees at each index what was stored there."""
    if load.window is not None or load.index is not None:
        return None
    walk = _through(store, load, numel)
    if walk is None:
        return None
    if store.level == load.level:
        return store.value if is_identity(walk) else None
    spread = _spread(store.level, load.level, space)
    return store.value if spread is not None and _equal_walk(walk, spread) else None


def _spread(stored: Level, read: Level, space: Space) -> View | None:
    """How a value of one level is read where each index of a finer one takes the value that it lies in."""
    if space.outer is None or space.reduced is None:
        return None
    if (stored, read) == ("row", "full"):
        return View(((space.outer, space.inner), (space.reduced, 0), (space.inner, 1)))
    if (stored, read) == ("block", "full"):
        return View(((space.count("block"), 1), (space.block, 0)))
    if (stored, read) == ("row", "block"):
        across = quotient(space.reduced, space.block)
        return None if across is None else View(((space.outer, 1), (across, 0)))
    return None


def _through(store: Store, load: Load, numel: Size) -> View | None:
    """The load's index → the index of the stored value."""
    if is_identity(store.view):
        return load.view
    back = _inverse(store.view)
    if back is None:
        return None
    return _compose(back, load.view, load, store.view.numel != numel)


def _compose(base: View, walk: View, load: Load, piece: bool) -> View | None:
    """Into a piece of a tensor a walk must be proven to stay inside; into a whole one PyTorch has checked it."""
    if load.window is not None:
        return compose_window(base, walk, load.window, proven=piece)
    return compose(base, walk, proven=piece)


def _inverse(view: View) -> View | None:
    """The inverse of a walk that visits each element of a tensor once."""
    if view.offset != 0:
        return None
    index = contiguous(view.sizes).dims
    dims = [
        (stride, size, back) for (size, stride), (_, back) in zip(view.dims, index, strict=True) if size != 1
    ]
    ordered: list[tuple[Size, Size]] = []
    step: Size = 1
    while dims:
        found = next((d for d in dims if d[0] == step), None)
        if found is None:
            return None
        dims.remove(found)
        ordered.append((found[1], found[2]))
        step = step * found[1]
    return View(tuple(reversed(ordered)))


def _equal_walk(a: View, b: View) -> bool:
    common = refine([coalesce(a.dims), coalesce(b.dims)])
    if common is None or a.offset != b.offset:
        return False
    return all(x == y for x, y in zip(*common[1], strict=True))


def _inline(producer: Cluster, consumer: Cluster) -> Cluster | Refusal:
    """A producer without reductions computed again where the consumer reads it, through the consumer's addresses."""
    nodes: list[Node] = []
    renamed: dict[str, str] = {}
    for node in consumer.nodes:
        node = rename(node, renamed)
        written = _written(producer.stores, node)
        if not written:
            nodes.append(node)
            continue
        numel = producer.tensors[written[0].tensor].numel
        grafted = _copied([*producer.nodes, *nodes], written, node, numel)
        if isinstance(grafted, str):
            return grafted
        nodes = grafted[0][len(producer.nodes) :]
        renamed[node.name] = grafted[1]
    after = tuple(replace(s, value=renamed.get(s.value, s.value)) for s in consumer.stores)
    return tidy(
        Cluster(
            f"{producer.name}>{consumer.name}",
            consumer.space,
            tuple(nodes),
            after,
            (*producer.origins, *consumer.origins),
            {**producer.tensors, **consumer.tensors},
            consumer.device,
        )
    )


def _graft(nodes: list[Node], store: Store, load: Load, numel: Size) -> tuple[list[Node], str] | Refusal:
    """Copies of the nodes behind a stored value, addressed as ``load`` addresses it."""
    if load.index is not None:
        return "space_mismatch: a computed table is gathered from"
    walk = _through(store, load, numel)
    if walk is None:
        return "space_mismatch: the address can't be followed through the store"
    by_name = {n.name: n for n in nodes}
    copies: dict[str, str] = {}
    added: list[Node] = []

    def copy(name: str) -> str | Refusal:
        if name in copies:
            return copies[name]
        node = by_name[name]
        if isinstance(node, (Reduce, Scan, Select)) or node.level != store.level:
            return "!space_mismatch: a reduction or concatenation is read through another address"
        for operand in operands(node):
            if (done := copy(operand)).startswith("!"):
                return done
        fresh = f"{load.name}/{name}"
        moved = replace(rename(node, copies), name=fresh, level=load.level)
        if isinstance(moved, (Load, Iota)):
            over = _compose(moved.view, walk, load, store.view.numel != numel)
            if over is None:
                return "!space_mismatch: the address can't be composed"
            moved = replace(moved, view=over)
        if isinstance(moved, Load):
            if moved.window is not None:
                return "!space_mismatch: a concatenation inside another"
            moved = replace(moved, window=load.window)
        copies[name] = fresh
        added.append(moved)
        return fresh

    value = copy(store.value)
    return value[1:] if value.startswith("!") else ([*nodes, *added], value)


def merge_side_by_side(a: Cluster, b: Cluster) -> Cluster | Refusal:
    """Two clusters that read the same tensors, in one space."""
    placed = _place(a, b)
    if isinstance(placed, str):
        return placed
    space, first, second = placed
    nodes = (*(_relevel(n, first) for n in a.nodes), *(_relevel(n, second) for n in b.nodes))
    stores = (*(_restore(s, first) for s in a.stores), *(_restore(s, second) for s in b.stores))
    return tidy(
        Cluster(
            f"{a.name}|{b.name}",
            space,
            nodes,
            stores,
            (*a.origins, *b.origins),
            {**a.tensors, **b.tensors},
            a.device,
        )
    )


def tidy(cluster: Cluster, keep: Callable[[str], bool] = lambda tensor: True) -> Cluster:
    """Without nodes said twice, without stores that ``keep`` drops, without nodes nothing needs."""
    known: dict[object, str] = {}
    renamed: dict[str, str] = {}
    nodes: list[Node] = []
    for node in cluster.nodes:
        node = rename(node, renamed)
        key = (type(node), tuple(v for k, v in node.__dict__.items() if k != "name"))
        if key in known:
            renamed[node.name] = known[key]
        else:
            known[key] = node.name
            nodes.append(node)
    stores = [replace(s, value=renamed.get(s.value, s.value)) for s in cluster.stores if keep(s.tensor)]
    needed = {s.value for s in stores}
    live: list[Node] = []
    for node in reversed(nodes):
        if node.name in needed:
            needed.update(operands(node))
            live.append(node)
    live.reverse()
    used = {n.tensor for n in live if isinstance(n, Load)} | {s.tensor for s in stores}
    space = cluster.space
    if not any(isinstance(n, (Reduce, Scan)) for n in live) and all(n.level == "full" for n in live):
        space = Space(space.numel)
    tensors = {k: v for k, v in cluster.tensors.items() if k in used}
    return replace(cluster, space=space, nodes=tuple(live), stores=tuple(stores), tensors=tensors)


# A space as loops


def lay_out(cluster: Cluster) -> Layout | Refusal:
    """The loops over a cluster's space, or why there are none."""
    if cluster.space.numel == 0:
        return "empty: no elements"
    walks: dict[str, tuple[Level, View]] = {}
    for key, level, view in _accesses(cluster):
        if view is None:
            return f"space_mismatch: no address for {key}"
        walks[key] = (level, view)
    space = cluster.space
    reduced, inner = (
        (space.reduced, space.inner) if space.reduced is not None else (_columns(cluster, walks), 1)
    )
    if reduced is None:
        return "space_mismatch: accesses walk in sizes that do not nest"
    once = {key: level for key, (level, _) in walks.items() if level == "block"}
    if any(not key.startswith("store:") for key in once):
        return "space_mismatch: something is read once a block"
    parts = {key: _cut(level, view, reduced, inner, space.block) for key, (level, view) in walks.items()}
    if any(p is None for p in parts.values()):
        return "space_mismatch: a dimension straddles the reduced one"
    common = refine([p[0] for p in parts.values() if p is not None])
    across = refine([p[1] for key, p in parts.items() if p is not None and key not in once])
    inside = refine([p[2] for p in parts.values() if p is not None])
    if common is None or across is None or inside is None:
        return "space_mismatch: sizes of the loops do not nest"
    per_block = {key: _one_stride(p[1]) for key, p in parts.items() if p is not None and key in once}
    blocks = across[0][:-1]
    if (space.block and blocks) or any(step is None for step in per_block.values()):
        return "space_mismatch: columns of several strides beside a reduction over blocks of them"
    if blocks and space.reduced is None:
        return "space_mismatch: a dimension straddles the columns"
    # Lanes run along the last dimension of what lies inside; the dimensions before it are walked like outer ones.
    sizes = inside[0]
    accesses = {}
    along = iter(across[1])
    for key, outer, last in zip(parts, common[1], inside[1], strict=True):
        steps = () if key in once else next(along)
        accesses[key] = Strides(
            (*outer, *last[:-1]),
            steps[-1] if steps else 0,
            last[-1] if last else 0,
            walks[key][1].offset,
            steps[:-1],
            per_block.get(key) or 0,
        )
    return Layout((*common[0], *sizes[:-1]), reduced, sizes[-1] if sizes else 1, accesses, blocks)


def turned(layout: Layout) -> Layout | None:
    """The same loops where rows run across memory: an outer dimension that full accesses run along becomes the inner one.

    None where the reduced dimension has dimensions inside it, or each access runs along it.
    """
    if layout.inner != 1:
        return None
    down = next(
        (s.outer.index(1) for s in layout.accesses.values() if 1 in s.outer and s.reduced not in (0, 1)), None
    )
    if down is None:
        return None

    def without(sizes: tuple[Size, ...]) -> tuple[Size, ...]:
        return (*sizes[:down], *sizes[down + 1 :])

    accesses = {
        key: Strides(without(s.outer), s.reduced, s.outer[down], s.offset)
        for key, s in layout.accesses.items()
    }
    return Layout(without(layout.outer), layout.reduced, layout.outer[down], accesses)


def _accesses(cluster: Cluster) -> Iterable[tuple[str, Level, View | None]]:
    for node in cluster.nodes:
        if isinstance(node, Load):
            yield node.name, node.level, _memory(cluster, node)
        elif isinstance(node, Iota):
            yield node.name, node.level, node.view
    for i, store in enumerate(cluster.stores):
        yield f"store:{i}", store.level, compose(cluster.tensors[store.tensor].memory, store.view)


def _memory(cluster: Cluster, load: Load) -> View | None:
    memory = cluster.tensors[load.tensor].memory
    if load.window is not None:
        return compose_window(memory, load.view, load.window)
    return compose(memory, load.view)


def table_stride(cluster: Cluster, load: Load) -> Size | None:
    """Storage elements from one row of a gathered table to the next."""
    assert load.table is not None
    rows, step = load.table
    column = compose(cluster.tensors[load.tensor].memory, View(((rows, step),)))
    return None if column is None else column.dims[0][1]


def _columns(cluster: Cluster, walks: dict[str, tuple[Level, View]]) -> Size | None:
    for node in cluster.nodes:
        if isinstance(node, Select):
            return node.bounds[-1]
    common = refine([view.dims for _, view in walks.values()])
    if common is None:
        return None
    sizes, strides = common
    chosen = _behind(cluster, [n.index for n in cluster.nodes if isinstance(n, Load) and n.index is not None])
    if any(steps and steps[-1] != 0 for name, steps in zip(walks, strides, strict=True) if name in chosen):
        return 1  # tables whose rows have one element: each index chooses another row
    return sizes[-1] if sizes else 1


def _behind(cluster: Cluster, names: Iterable[str]) -> set[str]:
    """Nodes and all that they are computed from."""
    found = set(names)
    for node in reversed(cluster.nodes):
        if node.name in found:
            found.update(operands(node))
    return found


def _one_stride(dims: tuple[Dim, ...]) -> Size | None:
    """The step along what is passed in one stride."""
    merged = coalesce(dims)
    return merged[0][1] if len(merged) == 1 else None


def _cut(
    level: Level, view: View, reduced: Size, inner: Size, block: int
) -> tuple[tuple[Dim, ...], tuple[Dim, ...], tuple[Dim, ...]] | None:
    """A walk as its outer dimensions, those that the reduced one has, and its inner dimensions."""
    inside = split(tuple(d for d in view.dims if d[0] != 1), inner)
    if inside is None:
        return None
    left, inner_dims = inside
    if level == "row":
        return left, ((reduced, 0),), inner_dims
    count = quotient(reduced, block) if level == "block" else reduced
    across = None if count is None else split(left, count)
    if across is None:
        return None
    return across[0], across[1], inner_dims
