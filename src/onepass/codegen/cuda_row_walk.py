"""Kernel IR → CUDA C++: a block walks a row in a loop, once for each phase."""

from __future__ import annotations

from onepass.codegen.arguments import iotas
from onepass.codegen.cuda import CudaPrinter
from onepass.codegen.cuda_row import RowPrinter
from onepass.ir.kernel import Access, ColumnLoop, IotaValue, Kernel, LoadValue, Statement, StoreValue
from onepass.plan.schedules.row_walk import WalkSchedule


class WalkPrinter(RowPrinter):
    """The columns in a loop whose length is an argument; accesses are vectors, or elements where alignment asks it."""

    def __init__(self, kernel: Kernel, name: str, schedule: WalkSchedule) -> None:
        CudaPrinter.__init__(self, kernel, name, (("wide", "i64"),))
        self.walked = schedule
        self.inside_block = False  # the text being printed uses a block's pointers, not the row's
        self.loaded: set[str] = set()

    def print(self) -> None:
        s = self.walked
        self.put(0, "template <int A> __device__ __forceinline__ void walk(const Args& a, float* scratch) {")
        self.put(1, f"constexpr int T = {s.lanes}, E = {s.width};")
        self.put(1, f"groups<T, 1{', 1, 2' if self.wide else ''}> group(scratch);")
        self.put(1, "const int lane = threadIdx.x;")
        self.put(1, "const i64 cols = a.cols, row = blockIdx.x;")
        self.put(1, "const bool live = true;")
        if self.kernel.blocks:
            self.put(1, "const i64 vectors = (a.run + E - 1) / E, all = cols / a.run * vectors;")
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

    @property
    def own(self) -> tuple[str, ...]:
        return ()

    def load_text(self, a: Access, c: str) -> str:
        hint = self.hint(a)
        if a.column == "zero":
            return f"load_same<{hint}, E>({self.row_of(a)})"
        if a.column == "strided":
            return f"load_strided<{hint}, E>({self.row_of(a)} + ({c}) * a.{a.name}_c, a.{a.name}_c, {self.left(c)})"
        return f"load_part<{hint}, E, A>({self.row_of(a)} + ({c}), {self.left(c)})"

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
        if not self.kernel.blocks:
            self.put(1, "#pragma unroll 2")
            self.put(1, "for (i64 c = (i64)lane * E; c < cols; c += T * E) {")
            self.step(loop, 2, ragged=True)
            self.put(1, "}")
            return
        # Vectors one after the other, of which none goes over the end of what one stride passes.
        self.put(1, "for (i64 v = lane; v < all; v += T) {")
        self.put(2, "i64 block, place;")
        self.put(2, "divide(v, vectors, block, place);")
        self.block_coordinates(2)
        self.put(2, "const i64 cols = a.run, c = place * E;")
        for a in self.kernel.accesses:
            if a.blocks:
                terms = "".join(f" + b{k} * a.{a.name}_b{k}" for k in range(len(a.blocks)))
                self.put(2, f"const auto {a.name}_p = {a.name}_g{terms};")
        for i in iotas(self.kernel):
            terms = "".join(f" + b{k} * a.{i.name}_b{k}" for k in range(len(i.blocks)))
            self.put(2, f"const i64 {i.name}_p = {i.name}_b{terms};")
        self.inside_block = True
        self.step(loop, 2, ragged=True)
        self.inside_block = False
        self.put(1, "}")

    def block_coordinates(self, depth: int) -> None:
        rest = "block"
        for k in range(len(self.kernel.blocks) - 1, 0, -1):
            self.put(depth, f"i64 b{k}, g{k};")
            self.put(depth, f"divide({rest}, a.m{k}, g{k}, b{k});")
            rest = f"g{k}"
        self.put(depth, f"const i64 b0 = {rest};")

    def compute(self, s: Statement, column: str) -> str:
        if isinstance(s, IotaValue) and s.blocks:
            first = f"{s.name}_{'p' if self.inside_block else 'b'}"
            return f"const i64 {s.name} = {first} + ({column}) * a.{s.name}_step;"
        return super().compute(s, column)

    def row_of(self, a: Access) -> str:
        return f"{a.name}_{'p' if self.inside_block and a.blocks else 'g'}"

    def put_store(self, s: StoreValue, depth: int) -> None:
        a = self.kernel.access(s.access)
        packed = self.packed(a)
        if a.column == "strided":
            self.put(
                depth,
                f"store_strided<stream, E>({self.row_of(a)} + c * a.{a.name}_c, a.{a.name}_c, {packed}, {self.left('c')});",
            )
        else:
            self.put(depth, f"store_part<stream, E, A>({self.row_of(a)} + c, {packed}, {self.left('c')});")
