"""Kernel IR → CUDA C++: reductions along a dimension with others inside it, a vector of inner elements a thread."""

from __future__ import annotations

from onepass.codegen.arguments import struct
from onepass.codegen.cuda import OPERATOR, TYPE, CudaPrinter
from onepass.codegen.cuda_prelude import cuda_prelude, lanes_scratch_bytes, own_prelude
from onepass.codegen.printer import stores
from onepass.ir.kernel import (
    Access,
    Accumulate,
    ColumnLoop,
    Compute,
    IotaValue,
    Keep,
    Kept,
    Kernel,
    LoadValue,
    ReduceRow,
    RowBlock,
    Stage,
    Statement,
    StoreValue,
)
from onepass.ops.table import REDUCE
from onepass.plan.schedules.row_strided import BLOCK_TERMS, StridedSchedule, launches, moves

LEVELS = "abcd"


class StridedPrinter(CudaPrinter):
    """A value of the row is an array of one vector's elements; one of the reduced dimension alone is a scalar.

    Where rows are divided, launches come one after the other: each puts the parts of those before together, walks
    its own part in the next loop, and leaves what it got in `partials`. The last one stores.
    """

    def __init__(self, kernel: Kernel, name: str, schedule: StridedSchedule) -> None:
        divided = (("partials", "float*"), ("parts", "i64"), ("part", "i64"), ("launch", "i64"))
        super().__init__(kernel, name, (("tiles", "i64"), *(divided if schedule.parts != 1 else ())))
        self.schedule = schedule
        self.arrays: set[str] = set()  # values with an element for each of the vector's
        self.loaded: set[str] = set()  # accesses whose vectors registers hold

    def text(self) -> str:
        self.print()
        body = "\n".join(self.lines)
        return f"{cuda_prelude()}\n{own_prelude('lanes')}\n{struct(self.block)}\n{body}\n"

    def print(self) -> None:
        s = self.schedule
        self.head(f"{s.threads}" + (f", {s.min_blocks}" if s.min_blocks else ""))
        self.place()
        if s.parts == 1:
            if not s.held:
                self.put(1, "const i64 begin = 0, end = cols;")
            self.fetch()
            for stage in self.kernel.stages:
                self.stage(stage, 1)
        else:
            self.put(
                1, "const i64 begin = at_part * a.part, end = begin + a.part < cols ? begin + a.part : cols;"
            )
            for launch in range(launches(self.kernel)):
                self.launch(launch)
        self.put(0, "}")

    def place(self) -> None:
        """Which row, which vector of it and which lane a thread is."""
        s = self.schedule
        self.put(
            1,
            f"constexpr int L = {s.lanes}, X = {s.across}, G = {s.groups}, K = {s.steps}, E = {s.width};",
        )
        if scratch := lanes_scratch_bytes(s.lanes, s.across, s.groups, s.width):
            self.put(1, f"__shared__ u32x4 scratch_s[{-(-scratch // 16)}];")
        self.put(1, f"const lanes_of<L, X, G> lanes{{{'(float*)scratch_s' if scratch else 'nullptr'}}};")
        cols = self.kernel.cols
        self.put(
            1,
            f"constexpr int cols = {cols};"
            if s.held
            else f"const i64 cols = {cols if isinstance(cols, int) else 'a.cols'};",
        )
        self.put(1, "const int lane = threadIdx.x / X % L;")
        self.put(1, "i64 tile, at;")
        self.put(1, "divide(blockIdx.x, a.tiles, at, tile);")
        if s.parts != 1:
            self.put(1, "i64 at_part = 0;")
            self.put(1, f"if (a.launch < {self.divided_launches()}) divide(at, a.parts, at, at_part);")
        self.put(1, "at = at * G + threadIdx.x / (X * L);")
        self.put(1, "const i64 first = (tile * X + threadIdx.x % X) * E;")
        self.put(1, "const bool live = at < a.rows && first < a.inner;")
        self.put(1, "// An idle thread repeats the last row or vector: barriers need it.")
        self.put(
            1, "const i64 row = at < a.rows ? at : a.rows - 1, c = first < a.inner ? first : a.inner - E;"
        )
        self.decode(1, "row")
        self.pointers(1)
        for a in self.kernel.accesses:
            if a.column != "zero":
                self.put(1, f"{a.name}_g += c{'' if a.column == 'unit' else f' * a.{a.name}_c'};")
            if a.reduced != 0:
                self.put(
                    1,
                    f"const i64 {a.name}_q = L * a.{a.name}_r;  // from one of a lane's elements to the next",
                )
                if s.held:
                    self.put(1, f"{a.name}_g += lane * a.{a.name}_r;")

    # Rows that are divided among blocks

    def divided_launches(self) -> int:
        """Launches whose blocks have a part of a row each; where the last one only puts parts together, it has none."""
        return len(self.kernel.loops)

    def launch(self, number: int) -> None:
        """What one launch does: rows up to its loop, then the loop, then its part of the reductions after it."""
        self.arrays.clear()
        self.put(1, f"if (a.launch == {number}) {{")
        last = number == launches(self.kernel) - 1
        loop = -1
        for stage in self.kernel.stages:
            if isinstance(stage, ColumnLoop):
                loop += 1
                if loop == number:
                    self.column_loop(stage, 2)
            elif isinstance(stage, ReduceRow):
                if loop == number:
                    self.leave(stage)
                elif loop < number:
                    self.gather(stage)
            elif loop < number:
                self.row_block(stage, 2, "live && lane == 0 && at_part == 0" if last else "false")
        self.put(1, "}")

    def slot(self, stage: ReduceRow) -> str:
        """Where the parts of one reduction begin: of each row, one after the other."""
        index = [s.name for s in self.kernel.stages if isinstance(s, ReduceRow)].index(stage.name)
        return f"a.partials + ({index} * a.rows + row) * a.parts * a.inner + c"

    def leave(self, stage: ReduceRow) -> None:
        self.put(2, f"lanes.reduce<{OPERATOR[REDUCE[stage.op].group]}>({stage.name}_a);")
        self.put(2, "if (live && lane == 0)")
        self.put(
            3,
            f"store<plain, E>({self.slot(stage)} + at_part * a.inner, pack<float, E>({stage.name}_a));",
        )

    def gather(self, stage: ReduceRow) -> None:
        reduction = REDUCE[stage.op]
        self.declare(2, f"{stage.name}_a", reduction.identity)
        self.put(2, "#pragma unroll 4")
        self.put(2, "for (i64 part = lane; part < a.parts; part += L) {")
        self.put(3, f"const vec<float, E> q = load<plain, E>({self.slot(stage)} + part * a.inner);")
        combined = reduction.combine.format(f"{stage.name}_a[e]", "q.get(e)")
        self.each(3, f"{stage.name}_a[e] = {combined};")
        self.put(2, "}")
        self.reduce(stage, 2)

    # Loads

    def fetch(self) -> None:
        """What registers hold of a row, in flight before anything is used."""
        if not self.schedule.held:
            return
        if not self.exact:
            self.put(1, "const int left = cols - lane;")
        first = {s.access for s in self.kernel.loops[0].body if isinstance(s, LoadValue)}
        single = len(self.kernel.loops) == 1
        for a in self.kernel.accesses:
            if moves(a) and a.name in first and (a.resident or single):
                self.load_vectors(1, a)
                self.loaded.add(a.name)

    def load_vectors(self, depth: int, a: Access) -> None:
        self.put(depth, f"vec<{a.dtype.ctype}, E> {a.name}_r[K];")
        self.put(depth, "#pragma unroll")
        there = "" if self.exact else "if (k * L < left) "
        self.put(depth, f"for (int k = 0; k < K; ++k) {there}{a.name}_r[k] = {self.vector(a)};")

    @property
    def exact(self) -> bool:
        """Whether every lane always has all its vectors."""
        s = self.schedule
        return s.held and s.lanes * s.steps == self.kernel.cols

    def hint(self, a: Access) -> str:
        """What does not change along the reduced dimension or inside it is read by many threads."""
        if a.tensor in self.written:
            return "plain"
        return "stream" if moves(a) and not a.shared else "cached"

    def vector(self, a: Access) -> str:
        """The vector of an access, lane's k-th along the reduced dimension."""
        place = self.at(a)
        if a.column == "strided":
            return f"load_strided<{self.hint(a)}, E>({place}, a.{a.name}_c, E)"
        return f"load<{self.hint(a)}, {'1' if a.column == 'zero' else 'E'}>({place})"

    def at(self, a: Access) -> str:
        if a.reduced == 0:
            return f"{a.name}_g"
        return f"{a.name}_{'g' if self.schedule.held else 'w'} + k * {a.name}_q"

    # Stages

    def stage(self, stage: Stage, depth: int) -> None:
        if isinstance(stage, RowBlock):
            self.row_block(stage, depth, "live && lane == 0")
        elif isinstance(stage, ColumnLoop):
            self.column_loop(stage, depth)
        else:
            self.reduce(stage, depth)

    def reduce(self, stage: ReduceRow, depth: int) -> None:
        self.put(depth, f"lanes.reduce<{OPERATOR[REDUCE[stage.op].group]}>({stage.name}_a);")
        self.put(depth, f"const float (&{stage.name})[E] = {stage.name}_a;")
        self.arrays.add(stage.name)

    def row_block(self, block: RowBlock, depth: int, stored: str) -> None:
        for s in block.body:
            if isinstance(s, StoreValue):
                if stored != "false":
                    self.store_row(s, depth, stored)
            elif isinstance(s, LoadValue):
                a = self.kernel.access(s.access)
                text = self.element(s, f"{s.name}_v", "e" if a.column != "zero" else "0")
                width = "E" if a.column != "zero" else "1"
                self.put(depth, f"const vec<{a.dtype.ctype}, {width}> {s.name}_v = {self.vector(a)};")
                self.define(s.name, s.kind, text, depth, a.column != "zero")
            else:
                assert isinstance(s, Compute)
                wide = any(isinstance(o, str) and o in self.arrays for o in s.operands)
                self.define(s.name, s.kind, self.expression(s), depth, wide)

    def define(self, name: str, kind: str, text: str, depth: int, wide: bool) -> None:
        if not wide:
            self.put(depth, f"const {TYPE[kind]} {name} = {text};")
            return
        self.put(depth, f"{TYPE[kind]} {name}[E];")
        self.each(depth, f"{name}[e] = {text};")
        self.arrays.add(name)

    def column_loop(self, loop: ColumnLoop, depth: int) -> None:
        s = self.schedule
        sums = [x for x in loop.body if isinstance(x, Accumulate)]
        for x in sums:
            self.declare(depth, f"{x.name}_a", REDUCE[x.op].identity)
        for kept in loop.body:
            if isinstance(kept, Keep):
                self.put(depth, f"float {kept.value}_r[K * E];")
        if s.held:
            self.vectors(loop, depth)
            return
        rounded = [x.name for x in sums if REDUCE[x.op].rounds]
        levels = s.levels if rounded else 1
        for name in rounded:
            for level in LEVELS[1:levels]:
                self.declare(depth, f"{name}_{level}", "0.0f")
        inside = depth + (levels > 1)
        if levels > 1:
            span = f"{BLOCK_TERMS} * L"
            self.put(depth, f"for (i64 from = begin, block = 1; from < end; from += {span}, ++block) {{")
            self.put(inside, f"const i64 to = from + {span} < end ? from + {span} : end;")
        start, end = ("from", "to") if levels > 1 else ("begin", "end")
        self.put(inside, "#pragma unroll 1")
        self.put(inside, f"for (i64 r0 = {start} + lane; r0 < {end}; r0 += K * L) {{")
        self.put(inside + 1, f"const int left = {end} - r0 < K * L ? (int)({end} - r0) : K * L;")
        for a in self.touched(loop):
            self.put(inside + 1, f"{self.pointer_type(a)} {a.name}_w = {a.name}_g + r0 * a.{a.name}_r;")
        self.vectors(loop, inside + 1)
        self.put(inside, "}")
        if levels > 1:
            self.carries(rounded, inside, levels)
            self.put(depth, "}")
            for name in rounded:
                parts = " + (".join(f"{name}_{x}[e]" for x in reversed(LEVELS[1:levels]))
                self.each(depth, f"{name}_a[e] = {parts}{')' * (levels - 2)};")

    def carries(self, names: list[str], depth: int, levels: int) -> None:
        """What stood in a full level joins the next."""
        for i in range(levels - 1):
            low, high = LEVELS[i], LEVELS[i + 1]
            if i:
                self.put(depth, f"if ((block & {BLOCK_TERMS**i - 1}) == 0) {{")
            for name in names:
                self.each(
                    depth + (i > 0),
                    f"{name}_{high}[e] = {name}_{high}[e] + {name}_{low}[e]; {name}_{low}[e] = 0.0f;",
                )
            if i:
                self.put(depth, "}")

    def touched(self, loop: ColumnLoop) -> list[Access]:
        """What a loop reads or writes at a place that moves along the reduced dimension."""
        names = dict.fromkeys(s.access for s in loop.body if isinstance(s, (LoadValue, StoreValue)))
        return [a for n in names if (a := self.kernel.access(n)).reduced != 0]

    def vectors(self, loop: ColumnLoop, depth: int) -> None:
        """K vectors: loaded together where a walk passes them, used one after the other."""
        held = self.schedule.held
        walked = {} if held else self.moving(loop)
        for a in walked.values():
            self.load_vectors(depth, a)
        self.put(depth, "#pragma unroll")
        self.put(depth, "for (int k = 0; k < K; ++k) {")
        if not self.exact:
            self.put(depth + 1, "if (k * L < left) {")
        self.step(loop, depth + (1 if self.exact else 2), set(walked))
        if not self.exact:
            self.put(depth + 1, "}")
        self.put(depth, "}")

    def moving(self, loop: ColumnLoop) -> dict[str, Access]:
        names = dict.fromkeys(s.access for s in loop.body if isinstance(s, LoadValue))
        return {n: a for n in names if moves(a := self.kernel.access(n))}

    def step(self, loop: ColumnLoop, depth: int, walked: set[str]) -> None:
        vectors: dict[str, str] = {}
        for s in loop.body:
            if isinstance(s, LoadValue):
                a = self.kernel.access(s.access)
                if a.name in self.loaded or a.name in walked:
                    vectors[s.name] = f"{a.name}_r[k]"
                else:
                    width = "1" if a.column == "zero" else "E"
                    self.put(depth, f"const vec<{a.dtype.ctype}, {width}> {s.name}_v = {self.vector(a)};")
                    vectors[s.name] = f"{s.name}_v"
        self.results(depth, loop)
        self.put(depth, "#pragma unroll")
        self.put(depth, "for (int e = 0; e < E; ++e) {")
        for s in loop.body:
            self.statement(s, vectors, depth + 1)
        self.put(depth, "}")
        for store in stores(loop.body):
            a = self.kernel.access(store.access)
            self.put(depth, f"if (live) {self.store_text(a, self.at(a), self.packed(a))}")

    def statement(self, s: Statement, vectors: dict[str, str], depth: int) -> None:
        if isinstance(s, LoadValue):
            along = self.kernel.access(s.access).column != "zero"
            text = self.element(s, vectors[s.name], "e" if along else "0")
            self.put(depth, f"const {TYPE[s.kind]} {s.name} = {text};")
        elif isinstance(s, Accumulate):
            value = self.operand(s.value, "float")
            self.put(depth, f"{s.name}_a[e] = {REDUCE[s.op].combine.format(f'{s.name}_a[e]', value)};")
        elif isinstance(s, Keep):
            self.put(depth, f"{s.value}_r[k * E + e] = {s.value};")
        elif isinstance(s, Kept):
            self.put(depth, f"const float {s.name} = {s.name}_r[k * E + e];")
        elif isinstance(s, StoreValue):
            self.put(depth, self.set(self.kernel.access(s.access), s.value))
        else:
            assert not isinstance(s, IotaValue), "row_serial has positions"
            self.put(depth, self.compute(s, "0"))

    # Values and stores

    def operand(self, o: object, kind: str) -> str:
        return f"{o}[e]" if isinstance(o, str) and o in self.arrays else super().operand(o, kind)

    def set(self, a: Access, value: str) -> str:
        """One element of a vector that is stored."""
        text = self.operand(value, "")
        if a.dtype.kind == "float":
            return f"{a.name}_t[e] = {text};"
        return f"{a.name}_t.set(e, from_value<{a.dtype.ctype}>::of({text}));"

    def store_row(self, s: StoreValue, depth: int, where: str) -> None:
        a = self.kernel.access(s.access)
        if a.column == "zero":  # an inner dimension of one element
            self.put(
                depth, f"if ({where}) *{a.name}_g = from_value<{a.dtype.ctype}>::of({self.first(s.value)});"
            )
            return
        is_float = a.dtype.kind == "float"
        self.put(depth, f"float {a.name}_t[E];" if is_float else f"vec<{a.dtype.ctype}, E> {a.name}_t;")
        self.each(depth, self.set(a, s.value))
        self.put(depth, f"if ({where}) {self.store_text(a, f'{a.name}_g', self.packed(a))}")

    def first(self, value: str) -> str:
        return f"{value}[0]" if value in self.arrays else value

    def store_text(self, a: Access, place: str, packed: str) -> str:
        if a.column == "strided":
            return f"store_strided<stream, E>({place}, a.{a.name}_c, {packed}, E);"
        return f"store<stream, E>({place}, {packed});"

    def declare(self, depth: int, name: str, value: str) -> None:
        self.put(depth, f"float {name}[E];")
        self.each(depth, f"{name}[e] = {value};")

    def each(self, depth: int, text: str) -> None:
        self.put(depth, "#pragma unroll")
        self.put(depth, f"for (int e = 0; e < E; ++e) {{ {text} }}")
