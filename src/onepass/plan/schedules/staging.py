"""CUDA: rows that start anywhere go through shared memory, in whole vectors to and from there."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.ir.kernel import Access, ColumnLoop, Kernel, LoadValue, StoreValue

VECTOR_BYTES = 16
# Shorter rows would have their first and last vector be the same.
SHORTEST_BYTES = 64


@dataclass(frozen=True)
class Place:
    """Where a block has a tensor's rows in shared memory, and how far one group's is from the next one's."""

    at_bytes: int
    row_bytes: int


@dataclass(frozen=True)
class Region:
    """A part of a block's shared memory that holds a row of each group: of tensors that take turns."""

    accesses: tuple[str, ...]
    nbytes: int  # of one row


def row_bytes(a: Access, cols: int) -> int:
    """What a row takes in whole vectors wherever it starts."""
    return -(-((cols - 1) * a.dtype.nbytes + VECTOR_BYTES) // VECTOR_BYTES) * VECTOR_BYTES


def regions(kernel: Kernel, cols: int, unit: int, widths: tuple[int, ...], below_bytes: int) -> list[Region]:
    """Where rows lie whose accesses, of ``widths`` elements in units of ``unit``, are of less than ``below_bytes``.

    A result lies where a tensor lay that was read before a reduction, if there is one: a barrier is between them.
    """
    width = dict(zip((a.name for a in kernel.accesses), widths, strict=True))
    chosen = {a.name: a for a in kernel.accesses if _narrow(a, cols, unit, width[a.name], below_bytes)}
    sizes = {n: row_bytes(a, cols) for n, a in chosen.items()}
    first, last = _times(kernel)
    found = [Region((n,), sizes[n]) for n in chosen if n not in first]
    for name, written in first.items():
        if name not in chosen:
            continue
        free = next((r for r in found if last.get(r.accesses[-1], written) < written), None)
        if free is None:
            found.append(Region((name,), sizes[name]))
        else:
            both = Region((*free.accesses, name), max(free.nbytes, sizes[name]))
            found[found.index(free)] = both
    return found


def ragged(a: Access) -> bool:
    """Whether only the end of the row is in the way of wide accesses: row vectors begin where their tensor does."""
    return a.column == "unit" and a.window is None and a.table is None and all(s == 0 for s in a.outer)


def _narrow(a: Access, cols: int, unit: int, width: int, below_bytes: int) -> bool:
    size = a.dtype.nbytes
    walked = a.column == "unit" and a.window is None and a.index is None and not a.blocks and not ragged(a)
    unaligned = width < unit or cols * size % VECTOR_BYTES != 0
    return walked and unaligned and width * size < below_bytes and cols * size >= SHORTEST_BYTES


def _times(kernel: Kernel) -> tuple[dict[str, int], dict[str, int]]:
    """The loop in which each result is stored, and the loop that last reads each other tensor from shared memory.

    Tensors that a later phase needs too are read into registers before the first loop. Each loop but the first comes
    after a reduction.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    loops = [s for s in kernel.stages if isinstance(s, ColumnLoop)]
    for i, loop in enumerate(loops):
        for s in loop.body:
            if isinstance(s, StoreValue):
                first[s.access] = i
            elif isinstance(s, LoadValue):
                last[s.access] = 0 if kernel.access(s.access).resident else i
    return first, last
