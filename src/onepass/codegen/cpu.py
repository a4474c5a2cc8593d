"""Kernel IR → C++ for the host: rows over threads, columns along vectors of 16."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from onepass.codegen.arguments import iotas, statements, struct
from onepass.codegen.cpu_prelude import cpu_library, cpu_prelude
from onepass.codegen.printer import Printer, double_literal, float_literal, split_rounds, values_used
from onepass.dtypes import FLOAT32, Class
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
    ReduceBlock,
    ReduceRow,
    RowBlock,
    ScanValue,
    Statement,
    StoreBlock,
    StoreValue,
)
from onepass.ops.table import OPS, REDUCE
from onepass.plan.schedules.cpu import LANES, CpuSchedule

VECTOR = {"float": "vf", "double": "vd", "int": "vl", "bool": "vm"}
SCALAR = {"float": "float", "double": "double", "int": "i64", "bool": "i64"}


class CpuPrinter(Printer):
    args = "a->"
    more: tuple[tuple[str, str], ...] = ()  # fields after the error's

    def __init__(self, kernel: Kernel, name: str, schedule: CpuSchedule) -> None:
        reports = any(a.index for a in kernel.accesses) or any(map(_divides, statements(kernel)))
        error = (("error", "i64*"),) if reports or self.more else ()
        super().__init__(kernel, name, (("chunks", "i64"), ("chunk", "i64"), *error, *self.more))
        self.schedule = schedule
        self.unrolled: dict[str, int] = {}  # accumulators of a reduction, by its name
        self.streamed = _streamed(kernel)
        self.inside_block = False  # the text being printed uses a block's pointers, not the row's
        self.ahead = _only_input(kernel)
        self.last_loop = kernel.loops[-1] if kernel.loops else None
        read, written = (
            {kernel.access(s.access).tensor for s in statements(kernel) if isinstance(s, kind)}
            for kind in (LoadValue, StoreValue)
        )
        # Where the end of a row overlaps what was done, an element would be read after it was overwritten.
        self.in_place = bool(read & written)

    def text(self) -> str:
        self.row_function()
        self.entry()
        body = "\n".join(self.lines)
        library = cpu_library() if self.needs_library(body) else ""
        return f"{cpu_prelude()}{library}\n{struct(self.block)}\n{body}\n"

    def needs_library(self, body: str) -> bool:
        wide = any(isinstance(s, ReduceRow) and s.kind != "float" for s in self.kernel.stages)
        return wide or bool(re.search(r"\b(?:vd|lib_\w+|int_\w+|wrap_\w+)\b", body))

    # The walk over rows

    def entry(self) -> None:
        coordinates = ", ".join(f"i{k}" for k in range(self.rank))
        past = ", past" if self.streamed else ""
        call = f"row_body(a{', ' if coordinates else ''}{coordinates}, {{lo}}, {{hi}}, scratch{past});"
        extent = "a->inner" if self.kernel.axis == "inner" else "a->cols"
        self.put(0, f'extern "C" void {self.name}(const Args* a, i64 begin, i64 end, void* scratch) {{')
        if self.streamed:
            self.put(1, f"const bool past = {self.past_caches()};")
        self.put(1, "if (a->chunks == 1) {")
        self.put(2, "i64 row = begin;")
        self.put(2, "while (row < end) {")
        self.decode(3, "row")
        last = self.rank - 1
        if self.rank:
            self.put(3, f"i64 stop = row + (a->n{last} - i{last});")
            self.put(3, "if (stop > end) stop = end;")
            self.put(3, f"for (; row < stop; ++row, ++i{last}) {call.format(lo='0', hi=extent)}")
        else:
            self.put(3, f"{call.format(lo='0', hi=extent)} ++row;")
        self.put(2, "}")
        self.put(2, "return;")
        self.put(1, "}")
        self.put(1, "for (i64 item = begin; item < end; ++item) {")
        self.put(2, "const i64 row = item / a->chunks, lo = (item % a->chunks) * a->chunk;")
        self.put(2, f"const i64 hi = lo + a->chunk < {extent} ? lo + a->chunk : {extent};")
        self.decode(2, "row")
        self.put(2, call.format(lo="lo", hi="hi"))
        self.put(1, "}")
        self.put(0, "}")

    def past_caches(self) -> str:
        """Whether outputs are stored past the caches: they are large, and every vector of every row is aligned."""
        tests = [f"a->rows * a->cols >= {self.schedule.stream_bytes // 4}"]
        for a in self.streamed:
            strides = " | ".join(f"a->{a.name}_o{k}" for k in range(self.rank)) or "0"
            tests.append(f"can_stream(a->{a.name}, a->cols | {strides})")
        return " && ".join(tests)

    def decode(self, depth: int, row: str) -> None:
        for k in range(self.rank - 1, 0, -1):
            rest = row if k == self.rank - 1 else f"r{k}"
            self.put(
                depth, f"i64 i{k} = {rest} % a->n{k}; const i64 r{k - 1} = {rest} / a->n{k}; (void)r{k - 1};"
            )
        if self.rank:
            self.put(depth, f"i64 i0 = {row if self.rank == 1 else 'r0'};")

    def row_function(self) -> None:
        coordinates = "".join(f"i64 i{k}, " for k in range(self.rank))
        self.put(
            0,
            f"static __attribute__((noinline)) void row_body(const Args* a, {coordinates}i64 lo, i64 hi, "
            f"void* scratch{', bool past' if self.streamed else ''}) {{",
        )
        if self.kernel.axis == "inner":
            self.inner_body()
        else:
            self.pointers(1)
            self.kept_pointers(1)
            for stage in self.kernel.stages:
                self.stage(stage)
        self.put(0, "}")

    def kept_pointers(self, depth: int) -> None:
        for i, value in enumerate(self.kernel.kept):
            self.put(depth, f"float* {value}_k = (float*)scratch + {i} * ((a->cols + 63) & ~63ll);")

    # Stages with the vector along the columns

    def stage(self, stage: RowBlock | ColumnLoop | ReduceRow) -> None:
        if isinstance(stage, RowBlock):
            for s in stage.body:
                self.row_statement(s)
        elif isinstance(stage, ColumnLoop):
            self.column_loop(stage)
        else:
            self.reduce_row(stage)

    def reduce_row(self, stage: ReduceRow) -> None:
        vector, total = VECTOR[stage.kind], self.unrolled_total(stage.name, stage.op)
        self.put(1, f"const {vector} {stage.name} = {vector}(h{stage.op}({total}));")

    def unrolled_total(self, name: str, op: str) -> str:
        total = f"{name}_a0"
        for u in range(1, self.unrolled[name]):
            total = REDUCE[op].combine.format(total, f"{name}_a{u}")
        return total

    def row_statement(self, s: Statement) -> None:
        if isinstance(s, StoreValue):
            self.put(1, f"store_n({s.access}_g, {s.value}, 1);")
            return
        if isinstance(s, LoadValue):
            self.table_row(1, self.kernel.access(s.access))
        self.put(1, self.value(s, "0", None))

    def table_row(self, depth: int, a: Access) -> None:
        """The pointer of a gathered row, checked: an index outside the table is reported and reads row 0."""
        if not a.index or a.name in self.tabled:
            return
        self.tabled.add(a.name)
        self.put(depth, f"i64 {a.name}_i = lane({a.index}, 0);")
        self.put(
            depth,
            f"if ((unsigned long long){a.name}_i >= (unsigned long long)a->{a.name}_n) "
            f"{{ *a->error = 1; {a.name}_i = 0; }}",
        )
        self.put(depth, f"{self.pointer_type(a)} {a.name}_g = {self.start(a)} + {a.name}_i * a->{a.name}_t;")

    def column_loop(self, loop: ColumnLoop) -> None:
        for s in loop.body:
            if isinstance(s, LoadValue):
                self.table_row(1, self.kernel.access(s.access))
        blocks = any(isinstance(s, (ReduceBlock, StoreBlock)) for s in loop.body)
        scans = any(isinstance(s, ScanValue) for s in loop.body)
        self.totals(1, loop)
        unroll = 1 if blocks or scans else self.schedule.unroll_of(loop)
        for s in loop.body:
            if isinstance(s, Accumulate):
                self.unrolled[s.name] = unroll
                for u in range(unroll):
                    self.put(1, f"{VECTOR[s.kind]} {s.name}_a{u} = {self.identity(s)};")
        if blocks:
            self.reduced_blocks(loop)
            return
        if self.kernel.blocks:
            self.blocks_of_columns(loop, unroll)
            return
        bounds = self.kernel.bounds
        for low, high in zip((0, *bounds), (*bounds, None), strict=True):
            self.segment(loop, unroll, low, high, bool(bounds))

    def reduced_blocks(self, loop: ColumnLoop) -> None:
        """Block after block: a round of vectors for what a reduction takes, its value, a round for what takes that."""
        block = self.kernel.block
        self.put(1, f"for (i64 first = 0; first < a->cols; first += {block}) {{")
        rounds = split_rounds(loop.body)
        held: set[str] = set()
        for i, (once, body) in enumerate(rounds):
            if once:
                for s in body:
                    self.put(2, self.block_statement(s))
                continue
            sums = [s for _, after in rounds[i + 1 : i + 2] for s in after if isinstance(s, ReduceBlock)]
            later = values_used(s for _, rest in rounds[i + 2 :] for s in rest)
            mine = [s.name for s in body if hasattr(s, "name") and s.name in later]
            for s in sums:
                self.put(2, f"{VECTOR[s.kind]} {s.name}_a = {self.identity(s)};")
            for name in mine:
                self.put(2, f"{VECTOR[self.kinds[name]]} {name}_e[{block // LANES}];")
            self.put(2, f"for (i64 j = 0; j < {block // LANES}; ++j) {{")
            self.put(3, f"const i64 c = first + j * {LANES};")
            for name in sorted(held & values_used(body)):
                self.put(3, f"const {VECTOR[self.kinds[name]]} {name} = {name}_e[j];")
            self.vector(3, loop, body, "c", 0, ends=(mine, sums))
            self.put(2, "}")
            held.update(mine)
        self.put(1, "}")

    def block_statement(self, s: Statement) -> str:
        """What is done once a block of columns."""
        if isinstance(s, ReduceBlock):
            return f"const {VECTOR[s.kind]} {s.name} = {VECTOR[s.kind]}(h{s.op}({s.name}_a));"
        if isinstance(s, StoreBlock):
            return f"store_n({s.access}_g + first / {self.kernel.block} * a->{s.access}_block, {s.value}, 1);"
        return self.value(s, "first", None)

    def blocks_of_columns(self, loop: ColumnLoop, unroll: int) -> None:
        """The columns in the order of their slower dimensions, each with the pointers that begin there."""
        self.inside_block = True
        self.put(1, "for (i64 block = 0, at = 0; at < hi; ++block, at += a->run) {")
        rest = "block"
        for k in range(len(self.kernel.blocks) - 1, 0, -1):
            self.put(2, f"const i64 b{k} = {rest} % a->m{k}, g{k} = {rest} / a->m{k};")
            rest = f"g{k}"
        self.put(2, f"const i64 b0 = {rest};")
        for a in self.kernel.accesses:
            terms = "".join(f" + b{k} * a->{a.name}_b{k}" for k in range(len(a.blocks)))
            self.put(2, f"const auto {a.name}_p = {a.name}_g{terms}; (void){a.name}_p;")
        for i in iotas(self.kernel):
            terms = "".join(f" + b{k} * a->{i.name}_b{k}" for k in range(len(i.blocks)))
            self.put(2, f"const i64 {i.name}_p = {i.name}_b{terms}; (void){i.name}_p;")
        for value in self.kernel.kept:
            self.put(2, f"float* const {value}_q = {value}_k + at; (void){value}_q;")
        self.put(2, "const i64 lo = 0, hi = a->run;")
        self.segment(loop, unroll, 0, None, False)
        self.put(1, "}")
        self.inside_block = False

    def row_of(self, a: Access) -> str:
        return f"{a.name}_{'p' if self.inside_block else 'g'}"

    def kept_row(self, value: str) -> str:
        return f"{value}_{'q' if self.inside_block else 'k'}"

    def segment(self, loop: ColumnLoop, unroll: int, low: int, high: int | None, several: bool) -> None:
        """Whole trips, then single vectors, then the end: the last 16 columns again, those already seen masked."""
        body = _at(loop.body, low) if several else list(loop.body)
        end = "hi" if high is None else f"(hi < {high} ? hi : {high})"
        self.put(1, "{")
        self.put(2, f"const i64 end = {end}, first = {f'lo > {low} ? lo : {low}' if several else 'lo'};")
        self.put(2, "i64 c = first;")
        if unroll > 1:
            self.put(2, f"for (; c + {LANES * unroll} <= end; c += {LANES * unroll}) {{")
            for u in range(unroll):
                self.vector(3, loop, body, f"c + {LANES * u}" if u else "c", u)
            self.put(2, "}")
        self.put(2, f"for (; c + {LANES} <= end; c += {LANES}) {{")
        self.vector(3, loop, body, "c", 0)
        self.put(2, "}")
        if not (self.in_place or any(isinstance(s, ScanValue) for s in body)):
            self.put(2, f"if (c < end && end - first >= {LANES}) {{")
            self.put(3, f"const i64 t = end - {LANES};")
            if any(isinstance(s, Accumulate) for s in body):
                self.put(3, "const vm fresh = lane_index() >= vf((float)(c - t));")
            self.vector(3, loop, body, "t", 0, fresh="fresh")
            self.put(2, "} else if (c < end) {")
        else:
            self.put(2, "if (c < end) {")
        self.put(3, "const i64 n = end - c;")
        self.vector(3, loop, body, "c", 0, tail="n", fresh="lanes(n)")
        self.put(2, "}")
        self.put(1, "}")

    def vector(
        self,
        depth: int,
        loop: ColumnLoop,
        body: list[Statement],
        c: str,
        u: int,
        tail: str | None = None,
        fresh: str = "",
        ends: tuple[list[str], list[ReduceBlock]] = ([], []),
    ) -> None:
        """Statements for one vector of columns from ``c``: its first ``tail``; ``fresh`` marks those to reduce.

        ``ends``: values that a later round over the block takes, and reductions over the block.
        """
        self.put(depth, "{")
        if loop is self.last_loop and self.ahead and not fresh:
            # While this row's results are worked out and stored, nothing else would ask for memory.
            self.put(
                depth + 1, f"prefetch({self.ahead.name}_g + a->{self.ahead.name}_o{self.rank - 1} + {c});"
            )
        once = {} if fresh or self.kernel.block else _rounded_once(body)
        for s in body:
            if isinstance(s, Accumulate):
                self.put(depth + 1, self.accumulate(s, f"{s.name}_a{u}", fresh, once))
            elif isinstance(s, Compute) and s.name in once:
                continue
            elif isinstance(s, Keep):
                self.put(depth + 1, f"store({self.kept_row(s.value)} + {c}, {s.value});")
            elif isinstance(s, Kept):
                self.put(depth + 1, f"const vf {s.name} = load({self.kept_row(s.name)} + {c});")
            elif isinstance(s, StoreValue):
                self.put(depth + 1, self.store(s, c, tail))
            elif isinstance(s, ScanValue):
                running = f"running_{s.op}({s.value}, {s.name}_t)"
                self.put(depth + 1, f"const {VECTOR[s.kind]} {s.name} = {running};")
            else:
                self.put(depth + 1, self.value(s, c, tail))
        for name in ends[0]:
            self.put(depth + 1, f"{name}_e[j] = {name};")
        for r in ends[1]:
            combined = REDUCE[r.op].combine.format(f"{r.name}_a", self.operand(r.value, r.kind))
            self.put(depth + 1, f"{r.name}_a = {combined};")
        self.put(depth, "}")

    # One statement

    def accumulate(
        self, s: Accumulate, total: str, fresh: str, once: Mapping[str, tuple[str, Compute]]
    ) -> str:
        if isinstance(s.value, str) and s.value in once:
            expression, product = once[s.value]
            return f"{total} = {expression.format(total, *(self.operand(o, 'float') for o in product.operands))};"
        value = self.operand(s.value, s.kind)
        if fresh:
            value = f"op_where({fresh}, {value}, {self.identity(s)})"
        return f"{total} = {REDUCE[s.op].combine.format(total, value)};"

    def value(self, s: Statement, c: str, tail: str | None, along: str = "") -> str:
        """The declaration of a value; ``along`` is how far down the reduced dimension, where the vector is not along it."""
        if isinstance(s, LoadValue):
            return f"const {VECTOR[s.kind]} {s.name} = {self.load(s, c, tail, along)};"
        if isinstance(s, IotaValue):
            first = f"{s.name}_{'p' if self.inside_block else 'b'}" + self.down(s, along)
            return f"const vl {s.name} = iota({first} + ({c}) * a->{s.name}_step, a->{s.name}_step);"
        if isinstance(s, Compute):
            checked = self.no_zero(s, tail) if _divides(s) else ""
            return f"{checked}const {VECTOR[s.kind]} {s.name} = {self.expression(s)};"
        assert isinstance(s, Choose)
        return f"const {VECTOR[s.kind]} {s.name} = {self.operand(s.operands[0], s.kind)};"

    def no_zero(self, s: Compute, tail: str | None) -> str:
        """A divisor that is zero is reported; past a tail's end there are none, though zeros were loaded."""
        return f"for (i64 l = 0; l < {tail or LANES}; l++) if (lane({s.operands[1]}, l) == 0) *a->error = 2; "

    def load(self, s: LoadValue, c: str, tail: str | None, along: str) -> str:
        a = self.kernel.access(s.access)
        shape = {"float": "load", "double": "load_double", "int": "load_int", "bool": "load_mask"}[s.kind]
        row = f"{self.row_of(a)}{self.down(a, along)}"
        if a.column == "zero":
            return f"{shape}_1({row})"
        step = f", a->{a.name}_c" if a.column == "strided" else ""
        at = f"{row} + ({c})" + (f" * a->{a.name}_c" if step else "")
        suffix = {(False, False): "", (False, True): "_n", (True, False): "_s", (True, True): "_sn"}[
            bool(step), tail is not None
        ]
        return f"{shape}{suffix}({at}{step}{', ' + tail if tail else ''})"

    def store(self, s: StoreValue, c: str, tail: str | None, along: str = "") -> str:
        a = self.kernel.access(s.access)
        row = f"{self.row_of(a)}{self.down(a, along)}"
        if a.column == "strided":
            at = f"{row} + ({c}) * a->{a.name}_c, a->{a.name}_c, {s.value}"
            return f"store_sn({at}, {tail});" if tail else f"store_s({at});"
        at = f"{row} + {c}, {s.value}"
        if tail:
            return f"store_n({at}, {tail});"
        return f"store_or_stream({at}, past);" if a in self.streamed and c != "t" else f"store({at});"

    def sized(self, text: str, kind: str) -> str:
        return f"{VECTOR[kind]}(({SCALAR[kind]}){text})"

    def ctype(self, kind: Class) -> str:
        return VECTOR[kind]

    def total_type(self, kind: Class) -> str:
        return VECTOR[kind] if self.kernel.axis == "inner" else SCALAR[kind]

    def literal(self, value: Any, kind: str) -> str:
        if kind == "float":
            return f"vf({float_literal(float(value))})"
        if kind == "double":
            return f"vd({double_literal(float(value))})"
        if kind == "int":
            return f"vl((i64){int(value)}ll)"
        return f"mask_all({'true' if value else 'false'})"

    # Stages with the vector along the inner dimension

    def inner_body(self) -> None:
        self.pointers(1)
        self.put(1, f"for (i64 c = lo; c < hi; c += {LANES}) {{")
        self.put(2, f"const i64 n = hi - c < {LANES} ? hi - c : {LANES};")
        self.put(2, f"if (n == {LANES}) {{")
        self.lane_block(3, None)
        self.put(2, "} else {")
        self.lane_block(3, "n")
        self.put(2, "}")
        self.put(1, "}")

    def lane_block(self, depth: int, tail: str | None) -> None:
        self.running.clear()
        for i, value in enumerate(self.kernel.kept):
            self.put(depth, f"float* {value}_k = (float*)scratch + {i} * a->cols * {LANES};")
        for stage in self.kernel.stages:
            if isinstance(stage, RowBlock):
                for s in stage.body:
                    if isinstance(s, StoreValue):
                        self.put(depth, self.store(s, "c", tail))
                    else:
                        self.put(depth, self.value(s, "c", tail))
            elif isinstance(stage, ReduceRow):
                self.put(depth, f"const {VECTOR[stage.kind]} {stage.name} = {stage.name}_a;")
            else:
                self.serial_loop(depth, stage, tail)

    def serial_loop(self, depth: int, loop: ColumnLoop, tail: str | None) -> None:
        def body(inside: int) -> None:
            self.decode_column(inside, "r")
            for s in loop.body:
                if isinstance(s, Accumulate):
                    total, value = f"{s.name}_a", self.operand(s.value, s.kind)
                    self.put(inside, f"{total} = {REDUCE[s.op].combine.format(total, value)};")
                elif isinstance(s, Keep):
                    self.put(inside, f"store({s.value}_k + r * {LANES}, {s.value});")
                elif isinstance(s, Kept):
                    self.put(inside, f"const vf {s.name} = load({s.name}_k + r * {LANES});")
                elif isinstance(s, StoreValue):
                    self.put(inside, self.store(s, "c", tail, "r"))
                elif isinstance(s, ScanValue):
                    combined = REDUCE[s.op].combine.format(f"{s.name}_t", s.value)
                    self.put(inside, f"const {VECTOR[s.kind]} {s.name} = {s.name}_t = {combined};")
                else:
                    self.put(inside, self.value(s, "c", tail, "r"))

        self.totals(depth, loop)
        self.serial(depth, loop, body)


def _divides(s: Statement) -> bool:
    """Whether a statement is an integer division by values, of which one may be zero."""
    return isinstance(s, Compute) and OPS[s.op].divides and isinstance(s.operands[1], str)


def _rounded_once(body: Sequence[Statement]) -> dict[str, tuple[str, Compute]]:
    """Values that go into one reduction and nowhere else, and into it with one rounding: the expression that does it.

    The compiler may not contract (hostcc), so a fused multiply-add is printed. Measured: 6–8 % of bf16 LayerNorm.
    """
    uses = [o for s in body for o in (*getattr(s, "operands", ()), getattr(s, "value", None))]
    into = {s.value: s.op for s in body if isinstance(s, Accumulate) and uses.count(s.value) == 1}
    found = {}
    for s in body:
        if isinstance(s, Compute) and s.kind == "float" and s.name in into:
            expression = dict(REDUCE[into[s.name]].rounded_once).get(s.op)
            if expression:
                found[s.name] = (expression, s)
    return found


def _streamed(kernel: Kernel) -> tuple[Access, ...]:
    """Outputs that may be stored past the caches: whole rows of fp32, in one segment, not read by this kernel.

    Measured (Zen 3, 64 MiB, 2026-11-30) it makes fp32 LayerNorm 1.2–1.5 times as fast, softmax 1.1–1.25; 16-bit
    outputs 0.92–1.04, so they use plain stores.
    """
    if kernel.axis == "inner" or kernel.bounds or kernel.blocks:
        return ()
    stored = {s.access for loop in kernel.loops for s in loop.body if isinstance(s, StoreValue)}
    read = {kernel.access(s.access).tensor for s in statements(kernel) if isinstance(s, LoadValue)}
    return tuple(
        a
        for a in kernel.accesses
        if a.name in stored and a.tensor not in read and a.dtype is FLOAT32 and a.column == "unit"
    )


def _only_input(kernel: Kernel) -> Access | None:
    """The input of a reducing kernel that has one full-size input: its next row is asked for ahead of time.

    Measured (as above): fp32 LayerNorm 1.1–1.3, softmax 1.05–1.1; with two inputs 0.83–1.0.
    """
    if kernel.axis == "inner" or not kernel.reduces or kernel.bounds or kernel.blocks or not kernel.outer:
        return None
    loaded = {s.access for loop in kernel.loops for s in loop.body if isinstance(s, LoadValue)}
    full = [a for a in kernel.accesses if a.name in loaded and not a.index and any(o != 0 for o in a.outer)]
    return full[0] if len(full) == 1 and full[0].column == "unit" and full[0].outer[-1] != 0 else None


def _at(body: tuple[Statement, ...], column: int) -> list[Statement]:
    """The statements that matter for columns from ``column`` on: each choice is its operand there."""
    chosen = [replaced(s, column) for s in body]
    needed: set[str] = set()
    kept: list[Statement] = []
    for s in reversed(chosen):
        if isinstance(s, (StoreValue, Accumulate, Keep)) or getattr(s, "name", None) in needed:
            kept.append(s)
            needed.update(o for o in getattr(s, "operands", ()) if isinstance(o, str))
            if isinstance(s, (StoreValue, Accumulate, Keep)) and isinstance(s.value, str):
                needed.add(s.value)
    return list(reversed(kept))


def replaced(s: Statement, column: int) -> Statement:
    if not isinstance(s, Choose):
        return s
    i = next(i for i, bound in enumerate(s.bounds) if column < bound)
    return Choose(s.name, (s.operands[i],), (s.bounds[-1],), s.kind)
