"""Kernel IR → CUDA C++: rows in registers and shared memory of teams of blocks, one row after the other."""

from __future__ import annotations

from onepass.codegen.cuda import CudaPrinter
from onepass.codegen.cuda_row_cluster import ClusterPrinter
from onepass.ir.kernel import Kernel
from onepass.plan.schedules.row_cluster import held
from onepass.plan.schedules.row_grid import GridSchedule


class GridPrinter(ClusterPrinter):
    """As a cluster's, in a loop over the rows of a team."""

    def __init__(self, kernel: Kernel, name: str, schedule: GridSchedule) -> None:
        CudaPrinter.__init__(self, kernel, name, (("zero", "i64"), ("words", "unsigned long long*")))
        self.cluster = schedule  # type: ignore[assignment]
        self.schedule = schedule  # type: ignore[assignment]
        self.grid = schedule
        self.held = held(kernel)
        self.loaded: set[str] = set()
        self.reduced = ""
        self.copying = False
        self.used: set[str] = set()
        self.inside = 0  # of a loop: how much deeper lines stand

    @property
    def own(self) -> tuple[str, ...]:
        return (*super().own, "ptx_grid", "grid")

    def head(self, threads: str) -> None:
        CudaPrinter.head(self, threads)

    def put(self, depth: int, line: str) -> None:
        super().put(depth + self.inside, line)

    def print(self) -> None:
        s = self.grid
        self.head(f"{s.threads}, {s.min_blocks}")
        self.put(
            1,
            f"constexpr int C = {s.parts}, B = {s.threads}, T = C * B, K = {s.steps}, H = {s.in_registers}, "
            f"E = {s.width}, cols = {s.cols};",
        )
        self.put(1, f"__shared__ float scratch[{2 * s.threads // 32 + 2}];")
        self.put(1, "grid_groups<C, B> group(scratch, a.words);")
        self.places()
        self.put(1, "const int lane = blockIdx.x % C * B + threadIdx.x;")
        self.put(1, "const bool live = true;")
        self.put(1, "for (i64 row = blockIdx.x / C; row < a.rows; row += gridDim.x / C) {")
        self.inside = 1
        self.decode(1, "row")
        self.pointers(1)
        self.fetch()
        for stage in self.kernel.stages:
            self.stage(stage)
        self.inside = 0
        self.put(1, "}")
        self.put(0, "}")
