"""Kernel IR → CUDA C++: a block walks a row in a loop, once for each phase."""

from __future__ import annotations

from onepass.codegen.cuda import CudaPrinter
from onepass.codegen.cuda_row import RowPrinter
from onepass.ir.kernel import Access, ColumnLoop, Kernel, LoadValue, StoreValue
from onepass.plan.schedules.row_stream import StreamSchedule


class StreamPrinter(RowPrinter):
    """The columns in a loop whose length is an argument; accesses are vectors, or elements where alignment asks it."""

    def __init__(self, kernel: Kernel, name: str, schedule: StreamSchedule) -> None:
        CudaPrinter.__init__(self, kernel, name, (("wide", "i64"),))
        self.stream = schedule
        self.loaded: set[str] = set()

    def print(self) -> None:
        s = self.stream
        self.put(0, "template <int A> __device__ __forceinline__ void walk(const Args& a, float* scratch) {")
        self.put(1, f"constexpr int T = {s.lanes}, E = {s.width};")
        self.put(1, f"groups<T, 1{', 1, 2' if self.wide else ''}> group(scratch);")
        self.put(1, "const int lane = threadIdx.x;")
        self.put(1, "const i64 cols = a.cols, row = blockIdx.x;")
        self.put(1, "const bool live = true;")
        self.decode(1, "row")
        self.pointers(1)
        for stage in self.kernel.stages:
            self.stage(stage)
        self.put(0, "}")
        self.put(0, "")
        self.head(f"{s.threads}")
        self.scratch(s.lanes, 1)
        self.put(1, f"if (a.wide) walk<{s.width}>(a, scratch); else walk<1>(a, scratch);")
        self.put(0, "}")

    def load_text(self, a: Access, c: str) -> str:
        hint = self.hint(a)
        if a.column == "strided":
            return f"load_strided<{hint}, E>({a.name}_g + ({c}) * a.{a.name}_c, a.{a.name}_c, {self.left(c)})"
        return f"load_part<{hint}, E, A>({a.name}_g + ({c}), {self.left(c)})"

    def left(self, c: str) -> str:
        return f"(cols - ({c}) < E ? (int)(cols - ({c})) : E)"

    def column_loop(self, loop: ColumnLoop) -> None:
        for s in loop.body:
            if (
                isinstance(s, LoadValue)
                and (a := self.kernel.access(s.access)).index
                and a.name not in self.loaded
            ):
                self.table_row(1, a)
        self.accumulators(loop)
        self.put(1, "#pragma unroll 2")
        self.put(1, "for (i64 c = (i64)lane * E; c < cols; c += T * E) {")
        self.step(loop, 2, ragged=True)
        self.put(1, "}")

    def put_store(self, s: StoreValue, depth: int) -> None:
        a = self.kernel.access(s.access)
        packed = self.packed(a)
        if a.column == "strided":
            self.put(
                depth,
                f"store_strided<stream, E>({a.name}_g + c * a.{a.name}_c, a.{a.name}_c, {packed}, {self.left('c')});",
            )
        else:
            self.put(depth, f"store_part<stream, E, A>({a.name}_g + c, {packed}, {self.left('c')});")
