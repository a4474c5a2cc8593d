"""Kernel IR → CUDA C++: a row over lanes, its elements in registers."""

from __future__ import annotations

from typing import Any

from onepass.codegen.arguments import Field, fields, iotas, kinds, spell_size, statements, struct
from onepass.codegen.cpu import float_literal
from onepass.codegen.cuda_prelude import cuda_prelude, reduce_scratch_bytes
from onepass.ir.kernel import (
    Access,
    Accumulate,
    Choose,
    ColumnLoop,
    Compute,
    IotaValue,
    Keep,
    Kept,
    Kernel,
    LoadValue,
    ReduceRow,
    RowBlock,
    Statement,
    StoreValue,
)
from onepass.ir.symbol import Poly
from onepass.ops.table import OPS, REDUCE
from onepass.plan.schedules.flat import FlatSchedule
from onepass.plan.schedules.row import RowSchedule
from onepass.plan.schedules.row_stream import StreamSchedule
from onepass.plan.schedules.row_strided import StridedSchedule

TYPE = {"float": "float", "int": "i64", "bool": "bool"}
IDENTITY = {"sum": "0.0f", "max": "-__int_as_float(0x7f800000)", "min": "__int_as_float(0x7f800000)"}


CudaSchedule = FlatSchedule | RowSchedule | StreamSchedule | StridedSchedule


def emit(kernel: Kernel, name: str, schedule: CudaSchedule) -> tuple[tuple[Field, ...], str]:
    """The argument block and the text of a kernel."""
    if isinstance(schedule, RowSchedule):
        printer: _Printer = _RowPrinter(kernel, name, schedule)
    elif isinstance(schedule, FlatSchedule):
        printer = _FlatPrinter(kernel, name, schedule)
    elif isinstance(schedule, StreamSchedule):
        printer = _StreamPrinter(kernel, name, schedule)
    else:
        printer = _StridedPrinter(kernel, name, schedule)
    printer.print()
    body = "\n".join(printer.lines)
    return printer.block, f"{cuda_prelude()}\n{struct(printer.block)}\n{body}\n"


class _Printer:
    """What all CUDA schedules share: values, operands, addresses of a row."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.block = fields(kernel)
        self.kinds = kinds(kernel)
        self.rank = len(kernel.outer)
        self.lines: list[str] = []
        self.tabled: set[str] = set()
        self.written = {
            f.tensor for f in self.block if f.kind == "pointer" and not f.ctype.startswith("const")
        }

    def print(self) -> None:
        raise NotImplementedError

    def head(self, threads: str) -> None:
        self.put(
            0,
            f'extern "C" __global__ void __launch_bounds__({threads}) {self.name}'
            "(const __grid_constant__ Args a) {",
        )

    def put(self, depth: int, line: str) -> None:
        self.lines.append("  " * depth + line if not line.startswith("#") else line)

    def decode(self, depth: int, row: str) -> None:
        """Coordinates i0 … of a row."""
        rest = row
        for k in range(self.rank - 1, 0, -1):
            self.put(depth, f"i64 i{k}, r{k};")
            self.put(depth, f"divide({rest}, a.n{k}, r{k}, i{k});")
            rest = f"r{k}"
        if self.rank:
            self.put(depth, f"const i64 i0 = {rest};")

    def pointers(self, depth: int) -> None:
        for a in self.kernel.accesses:
            if not a.index:
                self.put(depth, f"{self.pointer_type(a)} {a.name}_g = {self.start(a)};")
        for i in iotas(self.kernel):
            terms = "".join(f" + i{k} * a.{i.name}_o{k}" for k in range(self.rank))
            self.put(depth, f"const i64 {i.name}_b = a.{i.name}_start{terms};")

    def start(self, a: Access) -> str:
        """Where a row begins; in a table, how far into the row that the index chooses."""
        return f"a.{a.name}" + "".join(f" + i{k} * a.{a.name}_o{k}" for k in range(self.rank))

    def pointer_type(self, a: Access) -> str:
        return next(f.ctype for f in self.block if f.name == a.name)

    def hint(self, a: Access) -> str:
        if a.tensor in self.written:
            return "plain"
        shared = a.column != "zero" and all(s == 0 for s in a.outer)
        return "cached" if shared or a.index else "stream"

    def table_row(self, depth: int, a: Access) -> None:
        """The pointer of a gathered row, set once."""
        if a.name in self.tabled:
            return
        self.tabled.add(a.name)
        self.put(depth, f"check_index({a.index}, a.{a.name}_n);")
        self.put(depth, f"{self.pointer_type(a)} {a.name}_g = {self.start(a)} + {a.index} * a.{a.name}_t;")

    def one(self, s: LoadValue) -> str:
        """A value that is the same along the row."""
        a = self.kernel.access(s.access)
        got = f"load<{'plain' if a.tensor in self.written else 'cached'}, 1>({a.name}_g).get(0)"
        return {"float": f"to_float({got})", "int": f"stored_int({got})", "bool": f"stored_bool({got})"}[
            s.kind
        ]

    def element(self, s: LoadValue, vector: str, e: str) -> str:
        return {
            "float": f"element({vector}, {e})",
            "int": f"stored_int({vector}.get({e}))",
            "bool": f"stored_bool({vector}.get({e}))",
        }[s.kind]

    def compute(self, s: Statement, column: str) -> str:
        """The declaration of a value that needs no memory."""
        if isinstance(s, IotaValue):
            return f"const i64 {s.name} = {s.name}_b + ({column}) * a.{s.name}_step;"
        if isinstance(s, Choose):
            text = self.operand(s.operands[-1], s.kind)
            for o, bound in reversed(list(zip(s.operands, s.bounds, strict=True))[:-1]):
                text = f"({column}) < {bound} ? {self.operand(o, s.kind)} : {text}"
            return f"const {TYPE[s.kind]} {s.name} = {text};"
        assert isinstance(s, Compute)
        return f"const {TYPE[s.kind]} {s.name} = {self.expression(s)};"

    def expression(self, s: Compute) -> str:
        row = OPS[s.op]
        text = row.expr_half if self.kernel.half and row.expr_half else row.expr
        numbers = (
            row.operands
            if row.operands in ("float", "bool")
            else s.kind
            if row.result == "same"
            else next((self.kinds[o] for o in s.operands if isinstance(o, str)), s.kind)
        )
        return text.format(
            *(
                self.operand(o, "bool" if row.operands == "condition" and i == 0 else numbers)
                for i, o in enumerate(s.operands)
            )
        )

    def operand(self, o: Any, kind: str) -> str:
        if isinstance(o, str):
            return o
        if isinstance(o, Poly):
            return f"({TYPE[kind]}){spell_size(self.kernel, o, 'a.')}"
        if kind == "float":
            text = float_literal(float(o)).replace("__builtin_inff()", "__int_as_float(0x7f800000)")
            return text.replace('__builtin_nanf("")', "__int_as_float(0x7fc00000)")
        return f"(i64){int(o)}ll" if kind == "int" else ("true" if o else "false")


class _RowPrinter(_Printer):
    shared = False  # computed values lie in shared memory between phases

    def __init__(self, kernel: Kernel, name: str, schedule: RowSchedule) -> None:
        super().__init__(kernel, name)
        self.schedule = schedule
        self.block = fields(kernel, (("zero", "i64"),))
        self.shared = schedule.shared_bytes > 0
        self.loaded: set[str] = set()
        self.reduced = ""  # the last value that a reduction gave

    def print(self) -> None:
        s = self.schedule
        self.head(f"{s.threads}" + (f", {s.min_blocks}" if s.min_blocks else ""))
        self.put(
            1, f"constexpr int T = {s.lanes}, R = {s.groups}, K = {s.steps}, E = {s.width}, cols = {s.cols};"
        )
        if scratch := reduce_scratch_bytes(s.lanes, s.groups):
            self.put(1, f"__shared__ float scratch[{scratch // 4}];")
        if self.kernel.reduces:
            self.put(1, f"groups<T, R> group({'scratch' if scratch else 'nullptr'});")
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

    # Loads

    def fetch(self) -> None:
        """Everything the first loop reads, and what later loops read, in flight before anything is used."""
        for a in self.kernel.accesses:
            shared = all(s == 0 for s in a.outer)
            if (
                self.streams(a)
                and not a.index
                and self.reads(a)
                and (a.resident or (self.schedule.early and shared))
            ):
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
            self.put(1, f"const float {stage.name} = group.{REDUCE[stage.op].group}({stage.name}_a);")
            self.reduced = stage.name

    def row_statement(self, s: Statement) -> None:
        if isinstance(s, StoreValue):
            a = self.kernel.access(s.access)
            self.put(1, f"if (live && lane == 0) *{a.name}_g = from_value<{a.dtype.ctype}>::of({s.value});")
        elif isinstance(s, LoadValue):
            a = self.kernel.access(s.access)
            if a.index:
                self.table_row(1, a)
            self.put(1, f"const {TYPE[s.kind]} {s.name} = {self.one(s)};")
        else:
            self.put(1, self.compute(s, "0"))

    def column_loop(self, loop: ColumnLoop) -> None:
        for s in loop.body:
            if isinstance(s, LoadValue):
                a = self.kernel.access(s.access)
                if a.index and a.name not in self.loaded:
                    self.table_row(1, a)
                    if a.resident:
                        self.load_vectors(1, a)
            if isinstance(s, Accumulate):
                self.put(1, f"float {s.name}_a = {IDENTITY[s.op]};")
            if isinstance(s, Keep) and not self.shared:
                self.put(1, f"float {s.value}_r[K * E];")
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
        stores = [s for s in loop.body if isinstance(s, StoreValue)]
        for s in stores:
            a = self.kernel.access(s.access)
            kind = "float" if a.dtype.kind == "float" else f"vec<{a.dtype.ctype}, E>"
            self.put(depth, f"{kind} {a.name}_t{'[E]' if kind == 'float' else ''};")
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
            self.lane_statement(s, vectors, depth + 1, ragged)
        self.put(depth, "}")
        for s in loop.body:
            if isinstance(s, Keep) and self.shared:
                self.put(depth, f"shared_store<E>({s.value}_s + k * T * R * E, {s.value}_q);")
        for s in stores:
            self.put_store(s, depth)

    def lane_statement(self, s: Statement, vectors: dict[str, str], depth: int, ragged: bool) -> None:
        if isinstance(s, LoadValue):
            self.put(depth, f"const {TYPE[s.kind]} {s.name} = {self.element(s, vectors[s.name], 'e')};")
        elif isinstance(s, Accumulate):
            value = self.operand(s.value, "float")
            if ragged:
                value = f"(c + e < cols ? {value} : {IDENTITY[s.op]})"
            self.put(depth, f"{s.name}_a = {REDUCE[s.op].combine.format(f'{s.name}_a', value)};")
        elif isinstance(s, Keep):
            self.put(
                depth,
                f"{s.value}_q[e] = {s.value};" if self.shared else f"{s.value}_r[k * E + e] = {s.value};",
            )
        elif isinstance(s, Kept):
            held = f"element({s.name}_q, e)" if self.shared else f"{s.name}_r[k * E + e]"
            self.put(depth, f"const float {s.name} = {held};")
        elif isinstance(s, StoreValue):
            a = self.kernel.access(s.access)
            if a.dtype.kind == "float":
                self.put(depth, f"{a.name}_t[e] = {s.value};")
            else:
                self.put(depth, f"{a.name}_t.set(e, from_value<{a.dtype.ctype}>::of({s.value}));")
        else:
            self.put(depth, self.compute(s, "c + e"))

    def put_store(self, s: StoreValue, depth: int) -> None:
        a = self.kernel.access(s.access)
        packed = f"pack<{a.dtype.ctype}, E>({a.name}_t)" if a.dtype.kind == "float" else f"{a.name}_t"
        w = self.width(a)
        if a.column == "strided":
            place = f"{a.name}_g + (i64)c * a.{a.name}_c, a.{a.name}_c"
            text = f"store_strided<stream, E>({place}, {packed}, {self.left('c')});"
        elif self.schedule.exact and w == self.schedule.width:
            text = f"store<stream, E>({a.name}_g + c, {packed});"
        else:
            text = f"store_part<stream, E, {w}>({a.name}_g + c, {packed}, {self.left('c')});"
        self.put(depth, f"if (live) {text}")


class _FlatPrinter(_Printer):
    """One path for vectors and one for single elements, chosen at run time: a new shape never needs a new kernel."""

    def __init__(self, kernel: Kernel, name: str, schedule: FlatSchedule) -> None:
        super().__init__(kernel, name)
        self.schedule = schedule
        self.block = fields(kernel, (("vectors", "i64"), ("wide", "i64")))

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
        stores = [s for s in loop.body if isinstance(s, StoreValue)]
        for s in stores:
            a = self.kernel.access(s.access)
            kind = "float" if a.dtype.kind == "float" else f"vec<{a.dtype.ctype}, E>"
            self.put(1, f"{kind} {a.name}_t{'[E]' if kind == 'float' else ''};")
        self.put(1, "#pragma unroll")
        self.put(1, "for (int e = 0; e < E; ++e) {")
        for s in loop.body:
            self.lane_statement(s, vectors, 2)
        self.put(1, "}")
        for s in stores:
            a = self.kernel.access(s.access)
            packed = f"pack<{a.dtype.ctype}, E>({a.name}_t)" if a.dtype.kind == "float" else f"{a.name}_t"
            text = (
                f"store_strided<stream, E>({a.name}_g + c * a.{a.name}_c, a.{a.name}_c, {packed}, E);"
                if a.column == "strided"
                else f"store<stream, E>({a.name}_g + c, {packed});"
            )
            self.put(1, text)

    def row_statement(self, s: Statement) -> None:
        if isinstance(s, LoadValue):
            a = self.kernel.access(s.access)
            if a.index:
                self.table_row(1, a)
            self.put(1, f"const {TYPE[s.kind]} {s.name} = {self.one(s)};")
        else:
            self.put(1, self.compute(s, "0"))

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

    def lane_statement(self, s: Statement, vectors: dict[str, str], depth: int) -> None:
        if isinstance(s, LoadValue):
            self.put(depth, f"const {TYPE[s.kind]} {s.name} = {self.element(s, vectors[s.name], 'e')};")
        elif isinstance(s, StoreValue):
            a = self.kernel.access(s.access)
            if a.dtype.kind == "float":
                self.put(depth, f"{a.name}_t[e] = {s.value};")
            else:
                self.put(depth, f"{a.name}_t.set(e, from_value<{a.dtype.ctype}>::of({s.value}));")
        else:
            self.put(depth, self.compute(s, "c + e"))


class _StreamPrinter(_RowPrinter):
    """The columns in a loop whose length is an argument; accesses are vectors, or elements where alignment asks it."""

    def __init__(self, kernel: Kernel, name: str, schedule: StreamSchedule) -> None:
        _Printer.__init__(self, kernel, name)
        self.stream = schedule
        self.block = fields(kernel, (("wide", "i64"),))
        self.loaded: set[str] = set()

    def print(self) -> None:
        s = self.stream
        self.put(0, "template <int A> __device__ __forceinline__ void walk(const Args& a, float* scratch) {")
        self.put(1, f"constexpr int T = {s.lanes}, E = {s.width};")
        self.put(1, "groups<T, 1> group(scratch);")
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
        self.put(1, f"__shared__ float scratch[{max(1, reduce_scratch_bytes(s.lanes, 1) // 4)}];")
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
            if isinstance(s, Accumulate):
                self.put(1, f"float {s.name}_a = {IDENTITY[s.op]};")
        self.put(1, "#pragma unroll 2")
        self.put(1, "for (i64 c = (i64)lane * E; c < cols; c += T * E) {")
        self.step(loop, 2, ragged=True)
        self.put(1, "}")

    def put_store(self, s: StoreValue, depth: int) -> None:
        a = self.kernel.access(s.access)
        packed = f"pack<{a.dtype.ctype}, E>({a.name}_t)" if a.dtype.kind == "float" else f"{a.name}_t"
        if a.column == "strided":
            self.put(
                depth,
                f"store_strided<stream, E>({a.name}_g + c * a.{a.name}_c, a.{a.name}_c, {packed}, {self.left('c')});",
            )
        else:
            self.put(depth, f"store_part<stream, E, A>({a.name}_g + c, {packed}, {self.left('c')});")


class _StridedPrinter(_Printer):
    """One thread walks the reduced dimension of one inner element."""

    def __init__(self, kernel: Kernel, name: str, schedule: StridedSchedule) -> None:
        super().__init__(kernel, name)
        self.schedule = schedule

    def print(self) -> None:
        self.head(f"{self.schedule.threads}")
        self.put(1, f"const i64 position = (i64)blockIdx.x * {self.schedule.threads} + threadIdx.x;")
        self.put(1, "if (position >= a.rows * a.inner) return;")
        self.put(1, "i64 row, c;")
        self.put(1, "divide(position, a.inner, row, c);")
        self.decode(1, "row")
        self.pointers(1)
        for stage in self.kernel.stages:
            if isinstance(stage, RowBlock):
                for s in stage.body:
                    self.statement(s, 1, "")
            elif isinstance(stage, ColumnLoop):
                self.loop(stage)
            else:
                self.put(1, f"const float {stage.name} = {stage.name}_a;")
        self.put(0, "}")

    def loop(self, loop: ColumnLoop) -> None:
        for s in loop.body:
            if isinstance(s, Accumulate):
                self.put(1, f"float {s.name}_a = {IDENTITY[s.op]};")
        self.put(1, "#pragma unroll 4")
        self.put(1, "for (i64 r = 0; r < a.cols; ++r) {")
        for s in loop.body:
            self.statement(s, 2, "r")
        self.put(1, "}")

    def statement(self, s: Statement, depth: int, r: str) -> None:
        if isinstance(s, LoadValue):
            a = self.kernel.access(s.access)
            self.put(
                depth,
                f"const {TYPE[s.kind]} {s.name} = "
                f"{self.element(s, f'load<{self.hint(a)}, 1>({self.place(a, r)})', '0')};",
            )
        elif isinstance(s, StoreValue):
            a = self.kernel.access(s.access)
            self.put(depth, f"*({self.place(a, r)}) = from_value<{a.dtype.ctype}>::of({s.value});")
        elif isinstance(s, Accumulate):
            value = self.operand(s.value, "float")
            self.put(depth, f"{s.name}_a = {REDUCE[s.op].combine.format(f'{s.name}_a', value)};")
        elif isinstance(s, IotaValue):
            self.put(depth, f"const i64 {s.name} = {s.name}_b + {r or '0'} * a.{s.name}_step;")
        else:
            self.put(depth, self.compute(s, r or "0"))

    def place(self, a: Access, r: str) -> str:
        along = {"zero": "", "unit": " + c", "strided": f" + c * a.{a.name}_c"}[a.column]
        return f"{a.name}_g{along}" + (f" + r * a.{a.name}_r" if r else "")
