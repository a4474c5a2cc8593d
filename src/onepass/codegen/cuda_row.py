"""Kernel IR → CUDA C++: a row over lanes, its elements in registers or shared memory."""

from __future__ import annotations

from onepass.codegen.arguments import statements
from onepass.codegen.cuda import TYPE, CudaPrinter
from onepass.codegen.cuda_prelude import reduce_scratch_bytes
from onepass.codegen.printer import stores
from onepass.ir.kernel import (
    Access,
    Accumulate,
    ColumnLoop,
    Keep,
    Kept,
    Kernel,
    LoadValue,
    ReduceRow,
    RowBlock,
    Statement,
    StoreValue,
)
from onepass.ops.table import REDUCE
from onepass.plan.schedules.row import RowSchedule


class RowPrinter(CudaPrinter):
    shared = False  # computed values lie in shared memory between phases

    def __init__(self, kernel: Kernel, name: str, schedule: RowSchedule) -> None:
        super().__init__(kernel, name, (("zero", "i64"),))
        self.schedule = schedule
        self.shared = schedule.shared_bytes > 0
        self.loaded: set[str] = set()
        self.reduced = ""  # the last value that a reduction gave

    def print(self) -> None:
        s = self.schedule
        self.head(f"{s.threads}" + (f", {s.min_blocks}" if s.min_blocks else ""))
        self.put(
            1, f"constexpr int T = {s.lanes}, R = {s.groups}, K = {s.steps}, E = {s.width}, cols = {s.cols};"
        )
        self.scratch(s.lanes, s.groups)
        if self.kernel.reduces:
            words = ", 1, 2" if self.wide else ""
            self.put(1, f"groups<T, R{words}> group({'scratch' if s.lanes > 32 else 'nullptr'});")
        if s.shared_bytes:
            self.put(1, "extern __shared__ u32x4 held_s[];")
            for i, value in enumerate(self.kernel.kept):
                self.put(1, f"float* const {value}_s = (float*)held_s + ({i} * K * T * R + threadIdx.x) * E;")
        self.put(1, "const int lane = threadIdx.x % T;")
        self.put(1, "const i64 at = (i64)blockIdx.x * R + threadIdx.x / T;")
        self.put(1, "const bool live = at < a.rows;")
        self.put(
            1,
            "const i64 row = live ? at : a.rows - 1;  // an idle group repeats the last row: barriers need it",
        )
        self.decode(1, "row")
        self.pointers(1)
        self.fetch()
        for stage in self.kernel.stages:
            self.stage(stage)
        self.put(0, "}")

    def scratch(self, lanes: int, groups: int) -> None:
        """Shared memory for reductions, of 8-byte values where one of them has these."""
        if scratch := reduce_scratch_bytes(lanes, groups):
            words = scratch // 4 * (2 if self.wide else 1)
            self.put(1, f"__shared__ {'__align__(8) ' if self.wide else ''}float scratch[{words}];")

    @property
    def wide(self) -> bool:
        return any(isinstance(s, ReduceRow) and s.kind != "float" for s in self.kernel.stages)

    # Loads

    def fetch(self) -> None:
        """Everything the first loop reads, and what later loops read, in flight before anything is used."""
        for a in self.kernel.accesses:
            wanted = a.resident or (self.schedule.early and a.shared)
            if self.streams(a) and not a.index and self.reads(a) and wanted:
                self.load_vectors(1, a)

    def reads(self, a: Access) -> bool:
        return any(isinstance(s, LoadValue) and s.access == a.name for s in statements(self.kernel))

    def streams(self, a: Access) -> bool:
        return a.column != "zero" or a.window is not None

    def load_vectors(self, depth: int, a: Access) -> None:
        self.loaded.add(a.name)
        self.put(depth, f"vec<{a.dtype.ctype}, E> {a.name}_r[K];")
        self.put(depth, "#pragma unroll")
        self.put(
            depth, f"for (int k = 0; k < K; ++k) {a.name}_r[k] = {self.load_text(a, '(k * T + lane) * E')};"
        )

    def load_text(self, a: Access, c: str) -> str:
        w = self.width(a)
        hint = self.hint(a)
        lo, hi = a.window or (0, 0)
        there = f"{hi} - ({c})" + (f", {lo} - ({c})" if lo else "") if a.window else self.left(c)
        if a.column == "strided":
            return f"load_strided<{hint}, E>({a.name}_g + (i64)({c}) * a.{a.name}_c, a.{a.name}_c, {there})"
        if a.window is not None:
            return f"load_part<{hint}, E, {w}>({a.name}_g + ({c}), {there})"
        if self.schedule.exact and w == self.schedule.width:
            return f"load<{hint}, E>({a.name}_g + ({c}))"
        return f"load_part<{hint}, E, {w}>({a.name}_g + ({c}), {self.left(c)})"

    def left(self, c: str) -> str:
        return "E" if self.schedule.exact else f"cols - ({c})"

    def width(self, a: Access) -> int:
        return self.schedule.accesses[self.kernel.accesses.index(a)]

    # Stages

    def stage(self, stage: RowBlock | ColumnLoop | ReduceRow) -> None:
        if isinstance(stage, RowBlock):
            for s in stage.body:
                self.row_statement(s)
        elif isinstance(stage, ColumnLoop):
            self.column_loop(stage)
        else:
            self.put(
                1, f"const {TYPE[stage.kind]} {stage.name} = group.{REDUCE[stage.op].group}({stage.name}_a);"
            )
            self.reduced = stage.name

    def row_statement(self, s: Statement) -> None:
        if isinstance(s, StoreValue):
            a = self.kernel.access(s.access)
            self.put(1, f"if (live && lane == 0) *{a.name}_g = from_value<{a.dtype.ctype}>::of({s.value});")
        else:
            super().row_statement(s)

    def column_loop(self, loop: ColumnLoop) -> None:
        for s in loop.body:
            if isinstance(s, LoadValue):
                a = self.kernel.access(s.access)
                if a.index and a.name not in self.loaded:
                    self.table_row(1, a)
                    if a.resident:
                        self.load_vectors(1, a)
            if isinstance(s, Keep) and not self.shared:
                self.put(1, f"float {s.value}_r[K * E];")
        self.accumulators(loop)
        fresh = [a for a in self.fresh(loop) if not a.index]
        if self.reduced and not self.schedule.early:
            for a in fresh:
                self.put(1, f"{a.name}_g = after({a.name}_g, {self.reduced}, a.zero);")
        # Nothing is indexed by k when values lie in shared memory: the loop may stay one, which bounds what it loads.
        rolled = self.shared and not any(
            isinstance(s, LoadValue) and s.access in self.loaded for s in loop.body
        )
        self.put(1, f"#pragma unroll {self.schedule.depth}" if rolled else "#pragma unroll")
        self.put(1, "for (int k = 0; k < K; ++k) {")
        sums = [s.name for s in loop.body if isinstance(s, Accumulate)]
        if self.schedule.depth and sums and not rolled:
            for a in fresh:
                self.put(
                    2,
                    f"if (k % {self.schedule.depth} == 0 && k > 0) "
                    f"{a.name}_g = after({a.name}_g, {sums[0]}_a, a.zero);",
                )
        self.put(2, "const int c = (k * T + lane) * E;")
        guard = not self.schedule.exact
        if guard:
            self.put(2, "if (c < cols) {")
        self.step(loop, 3 if guard else 2, guard and self.schedule.cols % self.schedule.width != 0)
        if guard:
            self.put(2, "}")
        self.put(1, "}")

    def fresh(self, loop: ColumnLoop) -> list[Access]:
        """What a loop loads as it goes."""
        names = dict.fromkeys(s.access for s in loop.body if isinstance(s, LoadValue))
        return [self.kernel.access(n) for n in names if n not in self.loaded]

    def step(self, loop: ColumnLoop, depth: int, ragged: bool) -> None:
        vectors: dict[str, str] = {}
        for s in loop.body:
            if isinstance(s, LoadValue):
                a = self.kernel.access(s.access)
                if a.name in self.loaded:
                    vectors[s.name] = f"{a.name}_r[k]"
                else:
                    self.put(depth, f"const vec<{a.dtype.ctype}, E> {a.name}_v = {self.load_text(a, 'c')};")
                    vectors[s.name] = f"{a.name}_v"
        self.results(depth, loop)
        if self.shared:
            for s in loop.body:
                if isinstance(s, Keep):
                    self.put(depth, f"float {s.value}_q[E];")
                elif isinstance(s, Kept):
                    self.put(
                        depth, f"const vec<float, E> {s.name}_q = shared_load<E>({s.name}_s + k * T * R * E);"
                    )
        self.put(depth, "#pragma unroll")
        self.put(depth, "for (int e = 0; e < E; ++e) {")
        for s in loop.body:
            self.statement(s, vectors, depth + 1, ragged)
        self.put(depth, "}")
        for s in loop.body:
            if isinstance(s, Keep) and self.shared:
                self.put(depth, f"shared_store<E>({s.value}_s + k * T * R * E, {s.value}_q);")
        for s in stores(loop.body):
            self.put_store(s, depth)

    def statement(self, s: Statement, vectors: dict[str, str], depth: int, ragged: bool) -> None:
        if isinstance(s, Accumulate):
            self.accumulate(s, depth, "c + e < cols" if ragged else "")
        elif isinstance(s, Keep):
            self.put(
                depth,
                f"{s.value}_q[e] = {s.value};" if self.shared else f"{s.value}_r[k * E + e] = {s.value};",
            )
        elif isinstance(s, Kept):
            held = f"element({s.name}_q, e)" if self.shared else f"{s.name}_r[k * E + e]"
            self.put(depth, f"const float {s.name} = {held};")
        else:
            self.lane_statement(s, vectors, depth)

    def put_store(self, s: StoreValue, depth: int) -> None:
        a = self.kernel.access(s.access)
        packed = self.packed(a)
        w = self.width(a)
        if a.column == "strided":
            place = f"{a.name}_g + (i64)c * a.{a.name}_c, a.{a.name}_c"
            text = f"store_strided<stream, E>({place}, {packed}, {self.left('c')});"
        elif self.schedule.exact and w == self.schedule.width:
            text = f"store<stream, E>({a.name}_g + c, {packed});"
        else:
            text = f"store_part<stream, E, {w}>({a.name}_g + c, {packed}, {self.left('c')});"
        self.put(depth, f"if (live) {text}")
