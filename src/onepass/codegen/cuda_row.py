"""Kernel IR → CUDA C++: a row over lanes, its elements in registers or shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from onepass.codegen.arguments import statements
from onepass.codegen.cuda import OPERATOR, TYPE, CudaPrinter
from onepass.codegen.cuda_prelude import reduce_scratch_bytes
from onepass.codegen.printer import split_rounds, stores, values_used
from onepass.ir.kernel import (
    Access,
    Accumulate,
    ColumnLoop,
    Keep,
    Kept,
    Kernel,
    LoadValue,
    ReduceBlock,
    ReduceRow,
    RowBlock,
    ScanValue,
    Statement,
    StoreBlock,
    StoreValue,
)
from onepass.ops.table import REDUCE
from onepass.plan.schedules.row import RowSchedule, vector_width
from onepass.plan.schedules.staging import Place

# Registers of a thread for what is read of staged rows: half of those of 1024 resident threads, and a few.
STAGED_REGISTERS = 36


class RowPrinter(CudaPrinter):
    shared = False  # computed values lie in shared memory between phases
    staged: Mapping[str, Place] = MappingProxyType({})  # tensors whose rows go through shared memory
    # Many small accesses a lane: their places are constants past its first one's, which the compiler finds only if it
    # has a pointer to that.
    fine = False

    def __init__(self, kernel: Kernel, name: str, schedule: RowSchedule) -> None:
        super().__init__(kernel, name, (("zero", "i64"),))
        self.schedule = schedule
        self.shared = schedule.kept_bytes > 0
        self.staged = {
            a.name: p for a, p in zip(kernel.accesses, schedule.staged, strict=False) if p is not None
        }
        self.fine = schedule.width < vector_width(kernel)
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
            self.block_group()
        if s.shared_bytes:
            self.put(1, "extern __shared__ u32x4 held_s[];")
        if self.shared:
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
        self.stage_in()
        for a in self.kernel.accesses:
            self.first_unit(a)
        self.fetch()
        for stage in self.kernel.stages:
            self.stage(stage)
        self.put(0, "}")

    @property
    def own(self) -> tuple[str, ...]:
        return ("blocks",) if self.kernel.blocks else ()

    def scratch(self, lanes: int, groups: int) -> None:
        """Shared memory for reductions, of 8-byte values where one of them has these."""
        if scratch := reduce_scratch_bytes(lanes, groups):
            words = scratch // 4 * (2 if self.wide else 1)
            self.put(1, f"__shared__ {'__align__(8) ' if self.wide else ''}float scratch[{words}];")

    @property
    def wide(self) -> bool:
        scans = [s.kind for loop in self.kernel.loops for s in loop.body if isinstance(s, ScanValue)]
        reductions = [s.kind for s in self.kernel.stages if isinstance(s, ReduceRow)]
        return any(kind != "float" for kind in (*scans, *reductions))

    def block_group(self) -> None:
        """The lanes that share a block of columns: neighbours in a warp."""
        if self.kernel.block:
            reduced = (s for loop in self.kernel.loops for s in loop.body if isinstance(s, ReduceBlock))
            words = ", 1, 2" if any(s.kind != "float" for s in reduced) else ""
            self.put(1, f"groups<{self.kernel.block} / E, 1{words}> block_group(nullptr);")

    # Rows that go through shared memory

    def stage_in(self) -> None:
        if not self.staged:
            return
        self.put(1, "unsigned char* const rows_s = (unsigned char*)held_s;")
        for name, place in self.staged.items():
            t = self.kernel.access(name).dtype.ctype
            at = f"rows_s + {place.at_bytes} + threadIdx.x / T * {place.row_bytes}"
            self.put(1, f"{t}* const {name}_s = staged_place<{t}>({at}, {name}_g);")
        for a in self.kernel.accesses:
            if a.name in self.staged and self.reads(a):
                self.put(1, f"stage_in<{self.hint(a)}, T, cols>({a.name}_s, {a.name}_g, lane);")
        self.put(1, "ptx_copies_wait();")
        self.put(1, "group_barrier<T>();")

    def stage_out(self, loop: ColumnLoop) -> None:
        results = [s.access for s in stores(loop.body) if s.access in self.staged]
        for name in results:
            if self.paired(self.kernel.access(name)):
                self.put(1, f"{name}_l.store_all<T, cols>({name}_r, lane);")
        if results:
            self.put(1, "group_barrier<T>();")
        for name in results:
            self.put(1, f"if (live) stage_out<T, cols>({name}_g, {name}_s, lane);")

    def paired(self, a: Access) -> bool:
        """Whether its rows are staged and read as pairs of 16 bits that lie anywhere."""
        return (
            a.name in self.staged and a.dtype.nbytes == 2 and self.schedule.width == 2 and self.width(a) == 1
        )

    def early_pairs(self) -> bool:
        """Whether registers hold what the first loop reads of them, so that each row's words come in one branch."""
        read = [a for a in self.kernel.accesses if self.paired(a) and self.reads(a)]
        taken = self.schedule.steps * self.schedule.width
        return (len(read) // 2 + len(self.kernel.kept)) * taken <= STAGED_REGISTERS

    def held_as_floats(self) -> bool:
        """Whether registers hold rows of 16 bits, which each phase reads, as floats."""
        read = [a for a in self.kernel.accesses if a.name in self.staged and a.resident]
        return (
            len(read) + len(self.kernel.kept)
        ) * self.schedule.steps * self.schedule.width <= STAGED_REGISTERS

    # Loads

    def first_unit(self, a: Access) -> None:
        """A pointer to the first elements of this lane, once the row's is set."""
        if a.name in self.staged:
            t = f"staged_row<{a.dtype.ctype}, E, {self.width(a)}>"
            self.put(1, f"const {t} {a.name}_l({a.name}_s, lane);")
        elif self.by_lane(a) and (not a.index or a.name in self.tabled):
            self.put(1, f"{self.pointer_type(a)} {a.name}_l = {a.name}_g + lane * E;")

    def table_row(self, depth: int, a: Access) -> None:
        first = a.name not in self.tabled
        super().table_row(depth, a)
        if first:
            self.first_unit(a)

    def by_lane(self, a: Access) -> bool:
        """Whether each lane has a pointer of its own."""
        return self.fine and a.column == "unit" and not a.blocks

    def pointer(self, a: Access) -> str:
        """What loads of a row begin from."""
        return f"{a.name}_l" if self.by_lane(a) else f"{a.name}_g"

    def place(self, a: Access, c: str) -> str:
        """Where the elements of step k are, whose first is column ``c``."""
        if a.blocks:
            return f"{a.name}_g + ({self.in_blocks(a, c)})"
        return f"{a.name}_l + k * (T * E)" if self.by_lane(a) else f"{a.name}_g + ({c})"

    def in_blocks(self, a: Access, c: str) -> str:
        """How far column ``c`` is where no one stride passes the columns: lengths are constants, and so are divisors."""
        assert isinstance(self.kernel.run, int) and isinstance(self.kernel.cols, int)
        column = f"{'(unsigned)' if self.kernel.cols < 1 << 31 else ''}({c})"
        terms, block = [], f"{column} / {self.kernel.run}"
        for k in range(len(a.blocks) - 1, 0, -1):
            terms.append(f"{block} % {self.kernel.blocks[k]} * a.{a.name}_b{k}")
            block = f"{block} / {self.kernel.blocks[k]}"
        terms.append(f"{block} * a.{a.name}_b0")
        along = {"zero": "", "unit": " + {}", "strided": " + {} * a." + f"{a.name}_c"}[a.column]
        return " + ".join(terms) + along.format(f"{column} % {self.kernel.run}")

    def fetch(self) -> None:
        """Everything the first loop reads, and what later loops read, in flight before anything is used."""
        for a in self.kernel.accesses:
            wanted = (
                a.resident or (self.schedule.early and a.shared) or (self.paired(a) and self.early_pairs())
            )
            if self.streams(a) and not a.index and self.reads(a) and wanted:
                self.load_vectors(1, a)

    def reads(self, a: Access) -> bool:
        return any(isinstance(s, LoadValue) and s.access == a.name for s in statements(self.kernel))

    def streams(self, a: Access) -> bool:
        return a.column != "zero" or a.window is not None

    def load_vectors(self, depth: int, a: Access) -> None:
        self.loaded.add(a.name)
        if a.name in self.staged:
            wide = a.dtype.kind == "float" and self.held_as_floats()
            self.put(depth, f"vec<{'float' if wide else a.dtype.ctype}, E> {a.name}_r[K];")
            self.put(depth, f"{a.name}_l.load_all<T, cols>({a.name}_r, lane);")
            return
        self.put(depth, f"vec<{a.dtype.ctype}, E> {a.name}_r[K];")
        self.put(depth, "#pragma unroll")
        self.put(
            depth, f"for (int k = 0; k < K; ++k) {a.name}_r[k] = {self.load_text(a, '(k * T + lane) * E')};"
        )

    def load_text(self, a: Access, c: str) -> str:
        w = self.width(a)
        if a.name in self.staged:
            return f"{a.name}_l.load(k * (T * E), {self.left(c)})"
        hint = self.row_hint(a)
        if a.blocks and a.column == "zero":  # many vectors have the same value
            return f"load_same_if<cached, E>({self.place(a, c)}, {self.left(c)})"
        if a.blocks and a.column == "strided":
            return f"load_strided<{hint}, E>({self.place(a, c)}, a.{a.name}_c, {self.left(c)})"
        lo, hi = a.window or (0, 0)
        there = f"{hi} - ({c})" + (f", {lo} - ({c})" if lo else "") if a.window else self.left(c)
        if a.column == "strided":
            return f"load_strided<{hint}, E>({a.name}_g + (i64)({c}) * a.{a.name}_c, a.{a.name}_c, {there})"
        if a.window is None and self.schedule.exact and w == self.schedule.width:
            return f"load<{hint}, E>({self.place(a, c)})"
        if self.schedule.cols % w:
            return f"load_ragged<{hint}, E>({self.place(a, c)}, {there})"
        return f"load_row<{hint}, E, {w}>({self.place(a, c)}, {there})"

    def row_hint(self, a: Access) -> str:
        """Accesses that end inside a sector leave the rest of it for their neighbours'."""
        hint = self.hint(a)
        inside = self.schedule.cols * a.dtype.nbytes % 16 or self.width(a) < self.schedule.width
        return "nearby" if hint == "stream" and inside and a.column == "unit" else hint

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
        for s in stores(loop.body):
            if self.paired(a := self.kernel.access(s.access)):
                self.put(1, f"vec<{a.dtype.ctype}, E> {a.name}_r[K];")
        self.accumulators(loop)
        self.totals(1, loop)
        fresh = [a for a in self.fresh(loop) if not a.index and a.name not in self.staged]
        if (
            self.schedule.lanes <= 32
            and self.reduced
            and any(s.access in self.staged for s in stores(loop.body))
        ):
            self.put(1, "group_barrier<T>();  // results may lie where a row lay that other lanes read")
        if self.reduced and not self.schedule.early:
            for a in fresh:
                p = self.pointer(a)
                self.put(1, f"{p} = after({p}, {self.reduced}, a.zero);")
        # Nothing is indexed by k when values lie in shared memory: the loop may stay one, which bounds what it loads.
        rolled = self.shared and not any(
            isinstance(s, LoadValue) and s.access in self.loaded for s in loop.body
        )
        self.put(1, f"#pragma unroll {self.schedule.depth}" if rolled else "#pragma unroll")
        self.put(1, "for (int k = 0; k < K; ++k) {")
        sums = [s.name for s in loop.body if isinstance(s, Accumulate)]
        if self.schedule.depth and sums and not rolled:
            for a in fresh:
                p = self.pointer(a)
                self.put(
                    2, f"if (k % {self.schedule.depth} == 0 && k > 0) {p} = after({p}, {sums[0]}_a, a.zero);"
                )
        self.put(2, "const int c = (k * T + lane) * E;")
        if reduces_blocks(loop):
            self.step(loop, 2, not self.schedule.exact)  # lanes past the end take part in shuffles
        else:
            ragged_end = self.schedule.cols % self.schedule.width != 0
            self.step(loop, 2, ragged_end, "" if self.schedule.exact else "c < cols")
        self.put(1, "}")
        self.stage_out(loop)

    def fresh(self, loop: ColumnLoop) -> list[Access]:
        """What a loop loads as it goes."""
        names = dict.fromkeys(s.access for s in loop.body if isinstance(s, LoadValue))
        return [self.kernel.access(n) for n in names if n not in self.loaded]

    def step(self, loop: ColumnLoop, depth: int, ragged: bool, guard: str = "") -> None:
        """What a lane does with a vector. Under a ``guard`` its loads come before it, in flight with those of others."""
        vectors: dict[str, str] = {}
        for s in loop.body:
            if isinstance(s, LoadValue):
                a = self.kernel.access(s.access)
                if a.name in self.loaded:
                    vectors[s.name] = f"{a.name}_r[k]"
                else:
                    self.put(depth, f"const vec<{a.dtype.ctype}, E> {a.name}_v = {self.load_text(a, 'c')};")
                    vectors[s.name] = f"{a.name}_v"
        if guard:
            self.put(depth, f"if ({guard}) {{")
            self.work(loop, vectors, depth + 1, ragged)
            self.put(depth, "}")
        else:
            self.work(loop, vectors, depth, ragged)

    def work(self, loop: ColumnLoop, vectors: dict[str, str], depth: int, ragged: bool) -> None:
        self.results(depth, loop)
        if self.shared:
            for s in loop.body:
                if isinstance(s, Keep):
                    self.put(depth, f"float {s.value}_q[E];")
                elif isinstance(s, Kept):
                    got = self.held_vector(loop, "float", f"shared_load<E>({s.name}_s + k * T * R * E)")
                    self.put(depth, f"const vec<float, E> {s.name}_q = {got};")
        self.elements(loop, vectors, depth, ragged)
        for s in loop.body:
            if isinstance(s, Keep) and self.shared:
                self.put(depth, f"shared_store<E>({s.value}_s + k * T * R * E, {s.value}_q);")
        for s in stores(loop.body):
            self.put_store(s, depth)

    def held_vector(self, loop: ColumnLoop, ctype: str, got: str) -> str:
        """What shared memory holds: nothing for lanes past the end, which are here for the shuffles alone."""
        beyond = reduces_blocks(loop) and not self.schedule.exact
        return f"c < cols ? {got} : vec<{ctype}, E>{{}}" if beyond else got

    def elements(self, loop: ColumnLoop, vectors: dict[str, str], depth: int, ragged: bool) -> None:
        """The elements of a vector one by one; where blocks of columns are reduced, in as many rounds as that takes."""
        rounds = split_rounds(loop.body)
        for i, (once, body) in enumerate(rounds):
            if once:
                for s in body:
                    self.block_statement(s, depth)
                continue
            after = rounds[i + 1][1] if i + 1 < len(rounds) else []
            sums = [s for s in after if isinstance(s, ReduceBlock)]
            for s in sums:
                self.put(depth, f"{TYPE[s.kind]} {s.name}_a = {self.identity(s)};")
            used = [values_used(rest) for _, rest in rounds[i:]]
            made = {s.name for s in body if not isinstance(s, (Accumulate, StoreValue, Keep))}  # type: ignore[union-attr]
            scanned = {s.value for s in after if isinstance(s, ScanValue)}
            held = sorted(made & scanned.union(*used[2:]))
            for name in held:
                self.put(depth, f"{TYPE[self.kinds[name]]} {name}_e[E];")
            self.put(depth, "#pragma unroll")
            self.put(depth, "for (int e = 0; e < E; ++e) {")
            before = {
                s.name
                for once, past in rounds[:i]
                for s in past
                if isinstance(s, ScanValue) or (not once and hasattr(s, "name"))
            }
            for name in sorted(before & used[0] - made):
                self.put(depth + 1, f"const {TYPE[self.kinds[name]]} {name} = {name}_e[e];")
            for s in body:
                self.statement(s, vectors, depth + 1, ragged)
            for name in held:
                self.put(depth + 1, f"{name}_e[e] = {name};")
            for s in sums:
                self.accumulate(s, depth + 1)
            self.put(depth, "}")

    def block_statement(self, s: Statement, depth: int) -> None:
        """What is done once for the columns of a block, in each of its lanes."""
        if isinstance(s, ReduceBlock):
            got = f"block_group.{REDUCE[s.op].group}({s.name}_a)"
            self.put(depth, f"const {TYPE[s.kind]} {s.name} = {got};")
        elif isinstance(s, StoreBlock):
            a, block = self.kernel.access(s.access), self.kernel.block
            there = "live" if self.schedule.exact else "live && c < cols"
            at = f"{a.name}_g[(i64)(c / {block}) * a.{a.name}_block]"
            value = f"from_value<{a.dtype.ctype}>::of({s.value})"
            self.put(depth, f"if ({there} && c % {block} == 0) {at} = {value};")
        elif isinstance(s, ScanValue):
            self.scan(s, depth)
        else:
            self.put(depth, self.compute(s, "c"))

    def scan(self, s: ScanValue, depth: int) -> None:
        """In this lane, over the lanes before it, and both. What lies past the end of the row comes last."""
        reduction = REDUCE[s.op]
        inside = reduction.combine.format(f"{s.name}_e[e - 1]", f"{s.value}_e[e]")
        self.put(depth, f"{TYPE[s.kind]} {s.name}_e[E];")
        self.put(depth, "#pragma unroll")
        self.put(depth, f"for (int e = 0; e < E; ++e) {s.name}_e[e] = e ? {inside} : {s.value}_e[e];")
        before = f"group.before<{OPERATOR[reduction.group]}>({s.name}_e[E - 1], {s.name}_t)"
        self.put(depth, f"const {TYPE[s.kind]} {s.name}_b = {before};")
        after = reduction.combine.format(f"{s.name}_b", f"{s.name}_e[e]")
        self.put(depth, "#pragma unroll")
        self.put(depth, f"for (int e = 0; e < E; ++e) {s.name}_e[e] = {after};")

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
        packed, left = self.packed(a), self.left("c")
        w = self.width(a)
        if self.paired(a):
            self.put(depth, f"{a.name}_r[k] = {packed};")
            return
        if a.name in self.staged:
            self.put(depth, f"{a.name}_l.store(k * (T * E), {packed}, {left});")
            return
        place = self.place(a, "c") if self.by_lane(a) or a.blocks else f"{a.name}_g + c"
        if a.column == "strided":
            step = f"a.{a.name}_c"
            there = place if a.blocks else f"{a.name}_g + (i64)c * {step}"
            text = f"store_strided<stream, E>({there}, {step}, {packed}, {left});"
        elif self.schedule.exact and w == self.schedule.width:
            text = f"store<stream, E>({place}, {packed});"
        elif self.schedule.cols % w:
            text = f"store_ragged<stream, E>({place}, {packed}, {left});"
        else:
            text = f"store_part<stream, E, {w}>({place}, {packed}, {left});"
        self.put(depth, f"if (live) {text}")


def reduces_blocks(loop: ColumnLoop) -> bool:
    """Whether lanes need those beside them at each step."""
    return any(isinstance(s, (ReduceBlock, ScanValue)) for s in loop.body)
