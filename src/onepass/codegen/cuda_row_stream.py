"""Kernel IR → CUDA C++: a row in parts, by one block, or by many in a launch a walk."""

from __future__ import annotations

from onepass.codegen.cuda import CudaPrinter
from onepass.codegen.cuda_prelude import reduce_scratch_bytes
from onepass.codegen.cuda_row import RowPrinter
from onepass.ir.kernel import (
    Access,
    Accumulate,
    ColumnLoop,
    Keep,
    Kept,
    Kernel,
    LoadValue,
    ReduceRow,
    Statement,
    StoreValue,
)
from onepass.ops.table import REDUCE
from onepass.plan.schedules.row_stream import StreamSchedule, Walk, walks

# `only` is the walk that this launch does, or -1: all of them. `blocks` share a row, `each` is the parts of one.
# `partial` has every part's results, in the order of the kernel's reductions.
EXTRA = (("partial", "float*"), ("only", "i64"), ("blocks", "i64"), ("each", "i64"), ("wide", "i64"))


class StreamPrinter(RowPrinter):
    """The columns in a loop whose length is an argument; accesses are vectors, or elements where alignment asks it."""

    def __init__(self, kernel: Kernel, name: str, schedule: StreamSchedule) -> None:
        CudaPrinter.__init__(self, kernel, name, EXTRA)
        self.stream = schedule
        self.loaded: set[str] = set()
        self.whole = True  # the part that is printed has all its columns
        self.names = [s.name for s in kernel.stages if isinstance(s, ReduceRow)]

    def print(self) -> None:
        s = self.stream
        self.put(0, "template <int A> __device__ __forceinline__ void walk(const Args& a, float* scratch) {")
        self.put(1, f"constexpr int T = {s.lanes}, K = {s.steps}, E = {s.width}, S = T * K * E;")
        self.put(1, "groups<T, 1> group(scratch);")
        self.put(1, "const int lane = threadIdx.x;")
        self.put(1, "const i64 cols = a.cols, parts = (cols + S - 1) / S;")
        self.put(1, "i64 row, block;")
        self.put(1, "divide(blockIdx.x, a.blocks, row, block);")
        self.put(
            1, "const i64 begin = block * a.each, end = begin + a.each < parts ? begin + a.each : parts;"
        )
        self.put(1, "const bool live = block == 0;  // writes what is one value a row")
        self.decode(1, "row")
        self.pointers(1)
        for number, walk in enumerate(walks(self.kernel)):
            self.walk_row(number, walk)
        self.put(0, "}")
        self.put(0, "")
        self.head(f"{s.threads}" + (f", {s.min_blocks}" if s.min_blocks else ""))
        self.put(1, f"__shared__ float scratch[{reduce_scratch_bytes(s.lanes, 1) // 4}];")
        self.put(1, f"if (a.wide) walk<{s.width}>(a, scratch); else walk<1>(a, scratch);")
        self.put(0, "}")

    # Walks

    def walk_row(self, number: int, walk: Walk) -> None:
        for s in walk.before:
            self.row_statement(s)
        for s in walk.loop:
            if isinstance(s, LoadValue) and self.kernel.access(s.access).index:
                self.table_row(1, self.kernel.access(s.access))
        if not walk.reduces:
            if walk.loop:
                # What was read last is in the cache still.
                self.put(1, "for (i64 p = end - 1; p >= begin; --p) {")
                self.part(walk.loop)
                self.put(1, "}")
            return
        self.begin(walk)
        self.put(1, f"if (a.only < 0 || a.only == {number}) {{")
        self.put(1, "for (i64 p = begin; p < end; ++p) {")
        self.part(walk.loop, walk.pair.value if walk.pair else "")
        own = [self.reduce(r, f"{r.name}_p") for r in walk.reduces]
        if walk.pair:
            self.second(walk)
            own.append(f"{walk.pair.reduce.name}_p")
        self.put(2, "if (a.only < 0) {")
        self.merge(3, walk, own)
        self.put(2, "} else if (lane == 0) {")
        for name in own:
            self.put(3, f"{self.waiting(name.removesuffix('_p'), 'p')} = {name};")
        self.put(2, "}")
        self.put(1, "}")
        self.put(1, "}")
        self.put(1, f"if (a.only == {number}) return;")
        self.put(1, f"if (a.only > {number}) for (i64 p = 0; p < parts; ++p) {{")
        self.merge(2, walk, [self.waiting(name.removesuffix("_p"), "p") for name in own])
        self.put(1, "}")
        self.end(walk)

    def begin(self, walk: Walk) -> None:
        if walk.pair:
            self.put(1, f"{walk.pair.rule.merge} {walk.pair.reduce.name}_m = {walk.pair.rule.merge}::none();")
            return
        for r in walk.reduces:
            self.put(1, f"float {r.name}_m = {REDUCE[r.op].identity};")

    def merge(self, depth: int, walk: Walk, own: list[str]) -> None:
        """A part's results into those of the parts before it."""
        if walk.pair:
            count = "(float)(cols - p * S < S ? cols - p * S : S)"
            self.put(depth, f"{walk.pair.reduce.name}_m.add({', '.join(own)}, {count});")
            return
        for r, value in zip(walk.reduces, own, strict=True):
            self.put(depth, f"{r.name}_m = {REDUCE[r.op].combine.format(f'{r.name}_m', value)};")

    def end(self, walk: Walk) -> None:
        if not walk.pair:
            for r in walk.reduces:
                self.put(1, f"const float {r.name} = {r.name}_m;")
            return
        merged = f"{walk.pair.reduce.name}_m"
        self.put(1, f"const float {walk.reduces[0].name} = {merged}.first();")
        for s in walk.then:
            self.row_statement(s)
        self.put(1, f"const float {walk.pair.reduce.name} = {merged}.second();")

    def waiting(self, name: str, part: str) -> str:
        """Where a part's result of a reduction waits for the next launch."""
        return f"a.partial[(row * parts + {part}) * {len(self.names)} + {self.names.index(name)}]"

    # A part

    def part(self, body: tuple[Statement, ...], keep: str = "") -> None:
        """A part's columns; ``keep`` is the value that stays in registers."""
        self.put(2, "const i64 first = p * S;")
        if keep:
            self.put(2, f"float {keep}_r[K * E];")
            body = (*body, Keep(keep))
        self.columns(ColumnLoop(body))

    def second(self, walk: Walk) -> None:
        """The second reduction of a pair, of what is in registers."""
        pair = walk.pair
        assert pair
        self.put(2, f"float {pair.reduce.name}_p;")
        self.put(2, "{")
        count = "(float)(cols - first < S ? cols - first : S)"
        self.put(
            2, f"const float {pair.shift} = {pair.rule.merge}::shift({walk.reduces[0].name}_p, {count});"
        )
        self.columns(ColumnLoop((Kept(pair.value, "float"), *pair.loop)))
        self.put(
            2,
            f"{pair.reduce.name}_p = group.{REDUCE[pair.reduce.op].group}({pair.reduce.name}_a);",
        )
        self.put(2, "}")

    def reduce(self, r: ReduceRow, name: str) -> str:
        self.put(2, f"const float {name} = group.{REDUCE[r.op].group}({r.name}_a);")
        return name

    def columns(self, loop: ColumnLoop) -> None:
        """Once for a part with all its columns, and once with a look at each."""
        for s in loop.body:
            if isinstance(s, Accumulate):
                self.put(2, f"float {s.name}_a = {REDUCE[s.op].identity};")
        for condition, whole in (("if (first + S <= cols) {", True), ("} else {", False)):
            self.whole = whole
            self.put(2, condition)
            # Where nothing is indexed by k the loop may stay one, which bounds what it loads.
            held = any(isinstance(s, (Keep, Kept)) for s in loop.body)
            self.put(3, "#pragma unroll" if held else f"#pragma unroll {self.stream.depth if whole else 1}")
            self.put(3, "for (int k = 0; k < K; ++k) {")
            self.put(4, "const i64 c = first + (k * T + lane) * E;")
            if not whole:
                self.put(4, "if (c < cols) {")
            self.step(loop, 4 if whole else 5, ragged=not whole)
            if not whole:
                self.put(4, "}")
            self.put(3, "}")
        self.put(2, "}")

    def load_text(self, a: Access, c: str) -> str:
        hint = self.hint(a)
        if a.blocks and a.column == "zero":
            return f"load_same_if<cached, E>({self.place(a, c)}, {self.left(c)})"
        if a.column == "strided":
            there = self.place(a, c) if a.blocks else f"{a.name}_g + ({c}) * a.{a.name}_c"
            return f"load_strided<{hint}, E>({there}, a.{a.name}_c, {self.left(c)})"
        return f"load_part<{hint}, E, A>({self.place(a, c)}, {self.left(c)})"

    def left(self, c: str) -> str:
        return "E" if self.whole else f"(cols - ({c}) < E ? (int)(cols - ({c})) : E)"

    def put_store(self, s: StoreValue, depth: int) -> None:
        a = self.kernel.access(s.access)
        packed = self.packed(a)
        if a.column == "strided":
            there = self.place(a, "c") if a.blocks else f"{a.name}_g + c * a.{a.name}_c"
            self.put(depth, f"store_strided<stream, E>({there}, a.{a.name}_c, {packed}, {self.left('c')});")
        else:
            there = self.place(a, "c") if a.blocks else f"{a.name}_g + c"
            self.put(depth, f"store_part<stream, E, A>({there}, {packed}, {self.left('c')});")
