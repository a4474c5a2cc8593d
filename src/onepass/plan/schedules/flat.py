"""CUDA: element-wise work, vectors of columns one after the other over threads."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.device import Device
from onepass.ir.kernel import Access, Choose, ColumnLoop, IotaValue, Kernel, RowBlock
from onepass.ir.symbol import Size, product, quotient
from onepass.plan.schedules.row import vector_width

# Narrower vectors are so many more a thread at most: each has its row to find, in code of its own.
MORE_STEPS = 4


@dataclass(frozen=True)
class FlatSchedule:
    """Each thread takes ``steps`` vectors of ``width`` elements, a block apart.

    A launch whose tensors are not aligned to vectors takes the same kernel's path of single elements. ``level`` walks
    tensors without regard to rows, so that vectors may end in the next row; only row vectors are read by column.
    """

    threads: int
    steps: int
    width: int
    level: bool = False
    family: str = "flat"

    def explain(self) -> str:
        return (
            f"{self.threads} threads a block, {self.steps} vectors of {self.width} a thread"
            f"{', across the ends of rows' if self.level else ''}"
        )


def schedules(kernel: Kernel, device: Device) -> list[FlatSchedule] | str:
    if kernel.reduces:
        return "it reduces"
    narrow = vector_width(kernel)
    width = _widest_access(kernel)
    edges = [e for a in kernel.accesses for e in a.window or ()]
    while width > 1 and any(e % width for e in edges):
        width //= 2
    level = quotient(kernel.cols, width) is None and _is_level(kernel)
    while not level and width > 1 and isinstance(kernel.cols, int) and kernel.cols % width:
        width //= 2
    # Two independent vectors a thread and tensor keep 32 KB in flight on a multiprocessor; with many inputs one does.
    inputs = sum(1 for a in kernel.accesses if a.column == "unit")
    more = min(MORE_STEPS, narrow // width) if narrow > width and not edges else 1
    steps = (2 if inputs <= 4 else 1) * more
    return [FlatSchedule(256, steps, width, level), FlatSchedule(128, more, width, level)]


def _widest_access(kernel: Kernel) -> int:
    """Elements of 16 bytes of the widest tensor that each row walks: with more, a warp's access has gaps between lanes."""
    whole = [a.dtype.nbytes for a in kernel.accesses if a.column == "unit" and not _is_row_vector(kernel, a)]
    return max(1, 16 // max(whole, default=2))


def _is_row_vector(kernel: Kernel, a: Access) -> bool:
    return bool(kernel.outer) and all(s == 0 for s in a.outer)


def _is_level(kernel: Kernel) -> bool:
    """Whether every tensor is read or written from its first element to its last, but for row vectors and scalars."""
    statements = [
        s for stage in kernel.stages if isinstance(stage, ColumnLoop | RowBlock) for s in stage.body
    ]
    if any(isinstance(s, Choose) for s in statements):
        return False
    positions = any(isinstance(s, IotaValue) for s in statements)
    vectors = [a for a in kernel.accesses if a.column == "unit" and _is_row_vector(kernel, a)]
    if positions and len(kernel.outer) > 1:
        return False
    if vectors and not positions and not isinstance(kernel.cols, int):
        return False  # most row vectors of a length known at run time are divided by vectors
    return all(a in vectors or _one_after_another(kernel, a) for a in kernel.accesses)


def _one_after_another(kernel: Kernel, a: Access) -> bool:
    if a.window is not None or a.index is not None or a.column == "strided":
        return False
    if a.column == "zero":
        return all(s == 0 for s in a.outer)
    steps: list[Size] = [product(kernel.outer[k + 1 :]) * kernel.cols for k in range(len(kernel.outer))]
    return list(a.outer) == steps
