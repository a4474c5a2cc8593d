"""CUDA: element-wise work that reads along one dimension and writes along another, a tile at a time in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.device import Device
from onepass.ir.kernel import Access, Kernel, StoreValue
from onepass.ir.symbol import Size

# Elements of a tile, and of its shorter side where both sizes allow it: 128 bytes of 16-bit elements, four 16-byte vectors
# of fp32 in flight for each of 256 threads.
TILE, SIDE = 4096, 64
# Columns up to which neighbouring threads each take a whole row of them: their reads are neighbours too.
FEW_COLUMNS = 8
# Static shared memory of a block.
MOST_SHARED_BYTES = 48 << 10


@dataclass(frozen=True)
class TiledSchedule:
    """A block takes ``tall`` positions of outer dimension ``down`` by ``wide`` columns.

    What runs along ``down`` in memory is read and written in vectors of ``height`` and turned in shared memory; what runs
    along the columns in vectors of ``width``.
    """

    down: int
    tall: int
    wide: int
    height: int
    width: int
    threads: int = 256
    family: str = "tiled"

    def tiles(self, down: int, cols: int) -> tuple[int, int]:
        """Tiles along the two dimensions."""
        return -(-down // self.tall), -(-cols // self.wide)

    def explain(self) -> str:
        return (
            f"tiles of {self.tall} × {self.wide} turned in shared memory, vectors of {self.height} on one side and "
            f"{self.width} on the other"
        )


def schedules(kernel: Kernel, device: Device) -> list[TiledSchedule] | str:
    down = _down(kernel)
    if down is None:
        return "nothing runs along another dimension than the columns"
    if any(a.index or a.window for a in kernel.accesses) or kernel.bounds:
        return "a gather or a concatenation"
    if isinstance(kernel.cols, int) and kernel.cols <= FEW_COLUMNS:
        return "its rows are short: neighbouring rows are neighbours in memory"
    tall, wide = _sides(kernel.outer[down], kernel.cols)
    made = TiledSchedule(down, tall, wide, *_widths(kernel, down, tall, wide))
    if shared_bytes(kernel, made) > MOST_SHARED_BYTES:
        return "too_large: the tiles do not fit in shared memory"
    return [made]


def turned(kernel: Kernel, down: int) -> list[Access]:
    """What runs along an outer dimension, and takes steps along the columns."""
    return [a for a in kernel.accesses if a.column == "strided" and a.outer[down] == 1]


def pitch(a: Access, schedule: TiledSchedule) -> int:
    """Elements from one column of a tile to the next: an odd number of words, so that neither side meets in a bank."""
    return schedule.tall + max(1, 4 // a.dtype.nbytes)


def shared_bytes(kernel: Kernel, schedule: TiledSchedule) -> int:
    return sum(
        -(-pitch(a, schedule) * schedule.wide * a.dtype.nbytes // 16) * 16
        for a in turned(kernel, schedule.down)
    )


def _down(kernel: Kernel) -> int | None:
    """The outer dimension that some accesses run along while others run along the columns."""
    if kernel.reduces or not any(a.column == "unit" for a in kernel.accesses):
        return None
    for a in kernel.accesses:
        if a.column == "strided" and 1 in a.outer:
            return a.outer.index(1)
    return None


def _sides(down: Size, cols: Size) -> tuple[int, int]:
    """A tile's sides: where one size is small, the other side is long."""
    most_tall, most_wide = (_power_above(n) if isinstance(n, int) else TILE for n in (down, cols))
    tall = max(2, min(SIDE, most_tall))
    wide = max(2, min(TILE // tall, most_wide)) if tall < SIDE else max(2, min(SIDE, most_wide))
    return max(2, min(TILE // wide, most_tall)), wide


def _widths(kernel: Kernel, down: int, tall: int, wide: int) -> tuple[int, int]:
    """Elements of the widest accesses that the sizes and strides that are known allow on each side."""
    over = turned(kernel, down)
    height = _fitting(min(tall, _vector(over)), [kernel.outer[down]])
    for a in over:
        height = _fitting(height, [a.step, a.offset, *(s for k, s in enumerate(a.outer) if k != down)])
    straight = [a for a in kernel.accesses if a.column == "unit"]
    width = _fitting(min(wide, _vector(straight)), [kernel.cols])
    for a in straight:
        width = _fitting(width, [a.offset, *a.outer])
    return height, width


def _vector(accesses: list[Access]) -> int:
    """Elements of 16 bytes of the narrowest tensor; at most 8."""
    return min(8, 16 // max(2, min(a.dtype.nbytes for a in accesses)))


def _fitting(width: int, numbers: list[Size]) -> int:
    while width > 1 and any(isinstance(n, int) and n % width for n in numbers):
        width //= 2
    return width


def _power_above(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def written(kernel: Kernel) -> set[str]:
    """Names of the accesses that are stores."""
    return {s.access for loop in kernel.loops for s in loop.body if isinstance(s, StoreValue)}
