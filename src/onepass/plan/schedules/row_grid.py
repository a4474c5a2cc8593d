"""CUDA: a row in the registers and the shared memory of many blocks of the grid, which wait for each other.

For rows that no thread-block cluster holds: read once and written once, where `row_stream` reads them twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from onepass.device import Device, limits_of
from onepass.ir.kernel import Kernel
from onepass.plan.schedules.row import aligned, vector_width
from onepass.plan.schedules.row_cluster import HELD_WORDS, RESERVED_BYTES, held, held_words

# Blocks of so many threads, so many of them resident: while one waits for the others of its row, its neighbour works on
# another row. Each thread is bound to 64 registers, of which 32 hold the row. Not measured (docs/notes/011).
THREADS, RESIDENT = 512, 2
# Rows of up to so many columns are left to thread-block clusters where these hold them; of more fp32 columns a cluster's
# blocks leave no room for a second one on their multiprocessors.
FROM_COLUMNS = 262144
# Devices before it have no copies to shared memory that pass by the registers, and hold less.
FIRST_ARCH = 80


@dataclass(frozen=True)
class GridSchedule:
    """``parts`` blocks of ``threads`` share a row, each thread takes ``steps`` vectors of ``width``.

    The first ``in_registers`` of them lie in registers, the others in shared memory. Column c belongs to lane
    (c / width) mod (parts × threads) whatever the alignment, the row or the number of rows, and parts are combined in their
    order: the reduction tree depends on these numbers alone, and they on the row's length, the dtypes and the device.
    ``teams`` rows are under way at a time where there are so many; all their blocks are resident, ``min_blocks`` on a
    multiprocessor. ``accesses`` is as in `RowSchedule`.
    """

    parts: int
    teams: int
    threads: int
    steps: int
    width: int
    cols: int
    accesses: tuple[int, ...]
    in_registers: int
    shared_bytes: int
    min_blocks: int
    depth: int = 0  # as in `ClusterSchedule`
    anew: bool = True
    family: str = "row-grid"

    @property
    def blocks(self) -> int:
        """That share a row."""
        return self.parts

    @property
    def lanes(self) -> int:
        return self.parts * self.threads

    @property
    def exact(self) -> bool:
        """Whether every lane always has a full vector."""
        return self.lanes * self.steps * self.width == self.cols

    def grid(self, rows: int) -> int:
        """Blocks of a launch."""
        return min(rows, self.teams) * self.parts

    def explain(self) -> str:
        held = (
            f"{self.in_registers} of them in registers and {self.steps - self.in_registers} in shared memory"
        )
        return (
            f"{self.parts} blocks of {self.threads} threads a row, {self.teams} rows at a time, "
            f"{self.steps} vectors of {self.width} a lane, {held if self.shared_bytes else 'row in registers'}"
        )


def schedules(kernels: tuple[Kernel, ...], device: Device) -> tuple[Kernel, list[GridSchedule]] | str:
    """Of kernels that hold a row in different ways, the one that holds the fewest bytes, and its schedules, best first."""
    width = vector_width(kernels[0])
    kernel = min(kernels, key=lambda k: held_words(k, width))
    words = held_words(kernel, width)
    if not isinstance(kernel.cols, int):
        return "too_large: the reduced size is only known at run time"
    if kernel.axis != "reduced":
        return "the reduction has an inner dimension"
    if any(a.window for a in kernel.accesses):
        return "too_large: a concatenation in a row that does not fit in registers"
    if int(device.arch.removeprefix("sm_")) < FIRST_ARCH:
        return "too_large: this architecture holds no row in many blocks"
    if words == 0:
        return "nothing of the row is held"
    # Rows of 16 bits are unpacked: with all 32 registers for the row, some architectures' compilers want a stack.
    narrow = any(kernel.access(name).dtype.nbytes < 4 for name in held(kernel))
    most = max(1, HELD_WORDS // words - narrow)
    tried = (
        schedule(kernel, device, THREADS, RESIDENT, registers, depth)
        for registers, depth in ((most, 0), (most - 1, 0), (most - most // 4, 0), (most // 2, 1), (0, 1))
    )
    found = list(dict.fromkeys(s for s in tried if s))
    return (kernel, found) if found else "too_large: the row does not fit into all blocks of the device"


def schedule(
    kernel: Kernel, device: Device, threads: int, resident: int, most: int, depth: int = 0
) -> GridSchedule | None:
    """With at most so many vectors a thread in registers; None where a row is one block's, or no grid's."""
    assert isinstance(kernel.cols, int)
    width = vector_width(kernel)
    words, vectors = held_words(kernel, width), -(-kernel.cols // width)
    room = min(device.shared_bytes // resident, limits_of(device.arch).block_shared_bytes) - RESERVED_BYTES
    in_shared = room // (4 * words * threads)
    blocks = device.units * resident
    needed = -(-vectors // ((most + in_shared) * threads))
    if needed > blocks or needed < 2:
        return None
    teams = blocks // needed
    parts = blocks // teams  # all that there are: each has less to hold
    steps = -(-vectors // (parts * threads))
    in_registers = min(steps, most)
    shared_bytes = 4 * words * (steps - in_registers) * threads
    return GridSchedule(
        parts,
        teams,
        threads,
        steps,
        width,
        kernel.cols,
        aligned(kernel, kernel.cols, width),
        in_registers,
        shared_bytes,
        resident,
        depth,
    )
