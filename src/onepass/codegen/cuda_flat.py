"""Kernel IR → CUDA C++: element-wise, a thread a few vectors."""

from __future__ import annotations

from onepass.codegen.arguments import iotas
from onepass.codegen.cuda import CudaPrinter
from onepass.codegen.printer import stores
from onepass.ir.kernel import Access, ColumnLoop, IotaValue, Kernel, LoadValue, RowBlock
from onepass.plan.schedules.flat import FlatSchedule


class FlatPrinter(CudaPrinter):
    """One path for vectors and one for single elements, chosen at run time: a new shape never needs a new kernel."""

    def __init__(self, kernel: Kernel, name: str, schedule: FlatSchedule) -> None:
        extra = (("wide", "i64"),) if schedule.level else (("vectors", "i64"), ("wide", "i64"))
        super().__init__(kernel, name, extra)
        self.schedule = schedule

    def print(self) -> None:
        if self.schedule.level:
            self.print_level()
        else:
            self.print_rows()

    # Across the ends of rows

    def print_level(self) -> None:
        s = self.schedule
        self.put(0, "template <int E, int K, bool Full>")
        self.put(0, "__device__ __forceinline__ void walk(const Args& a, i64 first, i64 left) {")
        self.put(1, f"constexpr int T = {s.threads};")
        for a in self.kernel.accesses:
            along = " + first" if self.whole(a) else ""
            self.put(1, f"{self.pointer_type(a)} {a.name}_g = a.{a.name}{along};")
        turns = bool(self.kernel.outer) and (
            bool(iotas(self.kernel))
            or any(a.column == "unit" and not self.whole(a) for a in self.kernel.accesses)
        )
        if turns:
            self.put(
                1,
                f"const int cols = {self.kernel.cols if isinstance(self.kernel.cols, int) else '(int)a.cols'};",
            )
            self.put(1, "const int hop_rows = T * E / cols, hop = T * E % cols;")
            self.put(1, "i64 row, c0;")
            self.put(1, "divide(first, cols, row, c0);")
            self.put(1, "int c = (int)c0;")
        loop = next((s for s in self.kernel.stages if isinstance(s, ColumnLoop)), ColumnLoop(()))
        before = [s for stage in self.kernel.stages if isinstance(stage, RowBlock) for s in stage.body]
        for statement in before:
            if isinstance(statement, LoadValue):
                self.row_statement(statement)
        of_elements = [s for s in before if not isinstance(s, LoadValue)]
        self.level_body(ColumnLoop((*of_elements, *loop.body)), turns)
        self.put(0, "}")
        self.put(0, "")
        self.head(f"{s.threads}")
        per_thread, width = s.steps * s.width, s.width
        self.put(1, f"const i64 block = (i64)blockIdx.x * {s.threads * per_thread}, total = a.rows * a.cols;")
        self.put(1, f"const i64 first = block + threadIdx.x * {width};")
        self.put(1, "if (!a.wide)")
        self.put(2, f"walk<1, {per_thread}, false>(a, block + threadIdx.x, total - block - threadIdx.x);")
        self.put(1, f"else if (block + {s.threads * per_thread} <= total)")
        self.put(2, f"walk<{width}, {s.steps}, true>(a, first, total - first);")
        self.put(1, f"else walk<{width}, {s.steps}, false>(a, first, total - first);")
        self.put(0, "}")

    def whole(self, a: Access) -> bool:
        """Whether it has an element for each of the kernel's."""
        return a.column == "unit" and (not self.kernel.outer or any(s != 0 for s in a.outer))

    def level_body(self, loop: ColumnLoop, turns: bool) -> None:
        """All loads of whole tensors, in flight together; then each vector's work."""
        vectors: dict[str, str] = {}
        reads = {s.access: s for s in loop.body if isinstance(s, LoadValue)}
        for s in reads.values():
            a = self.kernel.access(s.access)
            if self.whole(a):
                place, hint = f"{a.name}_g + k * (T * E)", self.hint(a)
                self.put(1, f"vec<{a.dtype.ctype}, E> {a.name}_r[K];")
                self.put(1, "#pragma unroll")
                self.put(1, "for (int k = 0; k < K; ++k)")
                self.put(2, f"{a.name}_r[k] = load_level<Full, {hint}, E>({place}, left - k * (T * E));")
        self.put(1, "#pragma unroll")
        self.put(1, "for (int k = 0; k < K; ++k) {")
        for read in loop.body:
            if isinstance(read, LoadValue):
                a = self.kernel.access(read.access)
                vectors[read.name] = f"{a.name}_r[k]" if self.whole(a) else f"{a.name}_v"
        for a in (self.kernel.access(name) for name in reads):
            if not self.whole(a):
                text = f"load_turning<{self.hint(a)}, E>({a.name}_g, c, cols)"
                self.put(2, f"const vec<{a.dtype.ctype}, E> {a.name}_v = {text};")
        self.results(2, loop)
        for i in iotas(self.kernel):
            self.put(2, f"const i64 {i.name}_v = {self.first_position(i)};")
        self.put(2, "#pragma unroll")
        self.put(2, "for (int e = 0; e < E; ++e) {")
        for statement in loop.body:
            if isinstance(statement, IotaValue):
                self.put(3, f"const i64 {statement.name} = {self.position(statement)};")
            else:
                self.lane_statement(statement, vectors, 3)
        self.put(2, "}")
        for store in stores(loop.body):
            a = self.kernel.access(store.access)
            place = f"{a.name}_g + k * (T * E)"
            self.put(2, f"store_level<Full, stream, E>({place}, {self.packed(a)}, left - k * (T * E));")
        if turns:
            self.put(2, "row += hop_rows + (c + hop >= cols);")
            self.put(2, "c = c + hop < cols ? c + hop : c + hop - cols;")
        self.put(1, "}")

    def first_position(self, s: IotaValue) -> str:
        """Of a vector's first element."""
        if not self.kernel.outer:
            return f"a.{s.name}_start{self.along(s, '(first + k * (T * E))')}"
        return f"a.{s.name}_start + row * {self.a_row(s)}{self.along(s, 'c')}"

    def position(self, s: IotaValue) -> str:
        """Of element e, which may lie in the next row."""
        within = f"{s.name}_v{self.along(s, 'e')}"
        if not self.kernel.outer:
            return within
        back = self.along(s, "(i64)cols").replace(" + ", " - ", 1)
        return f"{within} + (c + e >= cols ? {self.a_row(s)}{back} : 0)"

    def a_row(self, s: IotaValue) -> str:
        """What a row adds to a position."""
        step = s.outer[0]
        return f"{step}ll" if isinstance(step, int) else f"a.{s.name}_o0"

    # Row by row

    def print_rows(self) -> None:
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
        for s in loop.body:
            if isinstance(s, IotaValue):
                self.put(1, f"const i64 {s.name}_v = {s.name}_b{self.along(s, 'c')};")
        self.put(1, "#pragma unroll")
        self.put(1, "for (int e = 0; e < E; ++e) {")
        for s in loop.body:
            if isinstance(s, IotaValue):
                self.put(2, f"const i64 {s.name} = {s.name}_v{self.along(s, 'e')};")
            else:
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

    def along(self, s: IotaValue, columns: str) -> str:
        """What so many columns add to a position. A product of 64 bits is many instructions: one a vector will do."""
        if isinstance(s.step, int):
            return "" if s.step == 0 else f" + {columns}" if s.step == 1 else f" + {columns} * {s.step}ll"
        return f" + {columns} * a.{s.name}_step"

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
