"""Kernel IR → CUDA C++: element-wise, a thread a few vectors."""

from __future__ import annotations

from onepass.codegen.cuda import CudaPrinter
from onepass.codegen.printer import stores
from onepass.ir.kernel import Access, ColumnLoop, Kernel, LoadValue, RowBlock
from onepass.plan.schedules.flat import FlatSchedule


class FlatPrinter(CudaPrinter):
    """One path for vectors and one for single elements, chosen at run time: a new shape never needs a new kernel."""

    def __init__(self, kernel: Kernel, name: str, schedule: FlatSchedule) -> None:
        super().__init__(kernel, name, (("vectors", "i64"), ("wide", "i64")))
        self.schedule = schedule

    def print(self) -> None:
        s = self.schedule
        self.put(
            0, "template <int E> __device__ __forceinline__ void vector_of(const Args& a, i64 position) {"
        )
        self.put(1, "i64 row, c;")
        if self.rank:
            self.put(1, "divide(position, a.vectors, row, c);")
        else:
            self.put(1, "row = 0; c = position;")
        self.put(1, "c *= E;")
        self.decode(1, "row")
        self.pointers(1)
        self.body()
        self.put(0, "}")
        self.put(0, "")
        self.head(f"{s.threads}")
        self.put(
            1,
            f"const i64 total = a.rows * a.vectors, first = (i64)blockIdx.x * {s.threads * s.steps} + threadIdx.x;",
        )
        for condition, width in (("a.wide", s.width), ("!a.wide", 1)):
            self.put(1, f"if ({condition}) {{")
            self.put(2, "#pragma unroll")
            self.put(2, f"for (int k = 0; k < {s.steps}; ++k)")
            self.put(
                3, f"if (first + k * {s.threads} < total) vector_of<{width}>(a, first + k * {s.threads});"
            )
            self.put(1, "}")
        self.put(0, "}")

    def body(self) -> None:
        vectors: dict[str, str] = {}
        for stage in self.kernel.stages:
            if isinstance(stage, RowBlock):
                for s in stage.body:
                    self.row_statement(s)
        loop = next((s for s in self.kernel.stages if isinstance(s, ColumnLoop)), ColumnLoop(()))
        for s in loop.body:
            if isinstance(s, LoadValue):
                a = self.kernel.access(s.access)
                if a.index:
                    self.table_row(1, a)
                self.put(1, f"const vec<{a.dtype.ctype}, E> {a.name}_v = {self.load_text(a)};")
                vectors[s.name] = f"{a.name}_v"
        self.results(1, loop)
        self.put(1, "#pragma unroll")
        self.put(1, "for (int e = 0; e < E; ++e) {")
        for s in loop.body:
            self.lane_statement(s, vectors, 2)
        self.put(1, "}")
        for s in stores(loop.body):
            a = self.kernel.access(s.access)
            packed = self.packed(a)
            text = (
                f"store_strided<stream, E>({a.name}_g + c * a.{a.name}_c, a.{a.name}_c, {packed}, E);"
                if a.column == "strided"
                else f"store<stream, E>({a.name}_g + c, {packed});"
            )
            self.put(1, text)

    def load_text(self, a: Access) -> str:
        hint = self.hint(a)
        if a.column == "strided":
            left = "E" if a.window is None else f"(int)({a.window[1]} - c)"
            text = f"load_strided<{hint}, E>({a.name}_g + c * a.{a.name}_c, a.{a.name}_c, {left})"
        elif a.window is None:
            return f"load<{hint}, E>({a.name}_g + c)"
        else:
            text = f"load_part<{hint}, E, E>({a.name}_g + c, (int)({a.window[1]} - c))"
        if a.window is None or a.window[0] == 0:
            return text
        return f"c < {a.window[0]} ? vec<{a.dtype.ctype}, E>{{}} : {text}"
