"""Kernel IR → CUDA C++: a thread walks the reduced dimension of one inner element, of any class."""

from __future__ import annotations

from onepass.codegen.cuda import TYPE, CudaPrinter
from onepass.ir.kernel import (
    Access,
    Accumulate,
    ColumnLoop,
    IotaValue,
    Kernel,
    LoadValue,
    RowBlock,
    ScanValue,
    Statement,
    StoreValue,
)
from onepass.ops.table import REDUCE
from onepass.plan.schedules.row_serial import SerialSchedule


class SerialPrinter(CudaPrinter):
    """One thread walks the reduced dimension of one inner element."""

    def __init__(self, kernel: Kernel, name: str, schedule: SerialSchedule) -> None:
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
                self.put(1, f"const {TYPE[stage.kind]} {stage.name} = {stage.name}_a;")
        self.put(0, "}")

    def loop(self, loop: ColumnLoop) -> None:
        def body(depth: int) -> None:
            self.decode_column(depth, "r")
            for s in loop.body:
                self.statement(s, depth, "r")

        self.totals(1, loop)
        self.serial(1, loop, body)

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
            self.accumulate(s, depth)
        elif isinstance(s, ScanValue):
            combined = REDUCE[s.op].combine.format(f"{s.name}_t", s.value)
            self.put(depth, f"const {TYPE[s.kind]} {s.name} = {s.name}_t = {combined};")
        elif isinstance(s, IotaValue):
            self.put(depth, f"const i64 {s.name} = {s.name}_b + c * a.{s.name}_step{self.down(s, r)};")
        else:
            self.put(depth, self.compute(s, r or "0"))

    def place(self, a: Access, r: str) -> str:
        along = {"zero": "", "unit": " + c", "strided": f" + c * a.{a.name}_c"}[a.column]
        return f"{a.name}_g{along}{self.down(a, r)}"
