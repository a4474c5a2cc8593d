"""Rows in parts for the host (plan/schedules/cpu_parts.py): loops go over parts, reductions over what parts left."""

from __future__ import annotations

from onepass.codegen.cpu import SCALAR, VECTOR, CpuPrinter
from onepass.ir.kernel import Accumulate, ColumnLoop, LoadValue, ReduceRow, Statement, StoreValue
from onepass.ops.table import REDUCE
from onepass.plan.schedules.cpu_parts import PART, SUM_BYTES

# Values of parts are added in groups of so many: one by one, thirty thousand of them would lose three digits.
GROUP = 32


class PartsPrinter(CpuPrinter):
    """One text for both ways: `phase` is -1 where a row's parts are walked in turn, else the loop that all parts are at.

    A part finds a row's memory at `memory`: what is kept for a later loop, then for each reduction a value a part.
    """

    more = (("parts", "i64"), ("phase", "i64"), ("shared", "char*"), ("row_bytes", "i64"))

    def entry(self) -> None:
        coordinates = "".join(f", i{k}" for k in range(self.rank))
        past = ", past" if self.streamed else ""
        self.put(0, f'extern "C" void {self.name}(const Args* a, i64 begin, i64 end, void* scratch) {{')
        if self.streamed:
            self.put(1, f"const bool past = {self.past_caches()};")
        self.put(1, "if (a->phase < 0) {")
        self.put(2, "for (i64 row = begin; row < end; ++row) {")
        self.decode(3, "row")
        self.put(3, f"row_body(a{coordinates}, 0, a->parts, (char*)scratch{past});")
        self.put(2, "}")
        self.put(2, "return;")
        self.put(1, "}")
        self.put(1, f"const bool rows_only = a->phase == {len(self.kernel.loops)};")
        self.put(1, "for (i64 item = begin; item < end; ++item) {")
        self.put(2, "const i64 row = rows_only ? item : item / a->parts;")
        self.put(2, "const i64 part = rows_only ? 0 : item % a->parts;")
        self.decode(2, "row")
        memory = "a->shared + row * a->row_bytes"
        self.put(2, f"row_body(a{coordinates}, part, part + 1, {memory}{past});")
        self.put(1, "}")
        self.put(0, "}")

    def row_function(self) -> None:
        coordinates = "".join(f"i64 i{k}, " for k in range(self.rank))
        past = ", bool past" if self.streamed else ""
        self.put(
            0,
            f"static __attribute__((noinline)) void row_body(const Args* a, {coordinates}i64 from, i64 to, "
            f"char* memory{past}) {{",
        )
        self.pointers(1)
        self.put(1, "const i64 phase = a->phase;")
        self.put(1, "char* const scratch = memory;")
        self.kept_pointers(1)
        kept = f"{4 * len(self.kernel.kept)} * ((a->cols + 63) & ~63ll)"
        for j, s in enumerate(s for s in self.kernel.stages if isinstance(s, ReduceRow)):
            ctype = SCALAR[s.kind]
            self.put(
                1, f"{ctype}* const {s.name}_s = ({ctype}*)(memory + {kept} + {j * SUM_BYTES} * a->parts);"
            )
        for stage in self.kernel.stages:
            self.stage(stage)
        self.put(0, "}")

    def column_loop(self, loop: ColumnLoop) -> None:
        for s in loop.body:
            if isinstance(s, LoadValue):
                self.table_row(1, self.kernel.access(s.access))
        self.put(1, f"if (phase < 0 || phase == {self.kernel.loops.index(loop)})")
        self.put(1, "for (i64 part = from; part < to; ++part) {")
        self.put(1, f"const i64 lo = part * {PART}, hi = lo + {PART} < a->cols ? lo + {PART} : a->cols;")
        super().column_loop(loop)
        for s in loop.body:
            if isinstance(s, Accumulate):
                self.put(1, f"{s.name}_s[part] = h{s.op}({self.unrolled_total(s.name, s.op)});")
        self.put(1, "}")

    def reduce_row(self, stage: ReduceRow) -> None:
        n, vector, combine = stage.name, VECTOR[stage.kind], REDUCE[stage.op].combine
        at = next(
            k
            for k, loop in enumerate(self.kernel.loops)
            if any(isinstance(s, Accumulate) and s.name == n for s in loop.body)
        )
        self.put(1, f"{vector} {n} = {vector}({n}_s[from]);")
        self.put(1, f"if (phase < 0 || phase > {at})")
        self.put(1, f"for (i64 group = 0; group < a->parts; group += {GROUP}) {{")
        self.put(2, f"{vector} sum = {vector}({n}_s[group]);")
        self.put(2, f"for (i64 p = group + 1; p < a->parts && p < group + {GROUP}; ++p)")
        self.put(3, f"sum = {combine.format('sum', f'{vector}({n}_s[p])')};")
        self.put(2, f"{n} = group ? {combine.format(n, 'sum')} : sum;")
        self.put(1, "}")

    def row_statement(self, s: Statement) -> None:
        if isinstance(s, StoreValue):
            self.put(1, f"if (phase < 0 || phase == {len(self.kernel.loops)})")
        super().row_statement(s)
