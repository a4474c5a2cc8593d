"""Kernel IR → CUDA C++: what the printers of all schedules share."""

from __future__ import annotations

from typing import Any

from onepass.codegen.arguments import struct
from onepass.codegen.cuda_prelude import cuda_prelude, own_prelude
from onepass.codegen.printer import Printer, double_literal, float_literal, stores
from onepass.dtypes import Class
from onepass.ir.kernel import (
    Access,
    Accumulate,
    Choose,
    ColumnLoop,
    Compute,
    IotaValue,
    Kernel,
    LoadValue,
    ReduceBlock,
    ScanValue,
    Statement,
    StoreValue,
)
from onepass.ops.table import REDUCE

TYPE = {"float": "float", "double": "double", "int": "i64", "bool": "bool"}
# Combining two values, by the function of a group of lanes that combines theirs.
OPERATOR = {"sum": "add_op", "prod": "mul_op", "max": "max_op", "min": "min_op"}
ONE = {"float": "to_float", "double": "to_d", "int": "stored_int", "bool": "stored_bool"}


class CudaPrinter(Printer):
    """What all CUDA schedules share."""

    args = "a."

    def __init__(self, kernel: Kernel, name: str, extra: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(kernel, name, extra)
        self.written = {
            f.tensor for f in self.block if f.kind == "pointer" and not f.ctype.startswith("const")
        }

    def text(self) -> str:
        self.print()
        body = "\n".join(self.lines)
        own = "".join(f"{own_prelude(name)}\n" for name in self.own)
        return f"{cuda_prelude()}\n{own}{struct(self.block)}\n{body}\n"

    @property
    def own(self) -> tuple[str, ...]:
        """Texts of the prelude that not all kernels begin with."""
        return ()

    def print(self) -> None:
        raise NotImplementedError

    def head(self, threads: str) -> None:
        self.put(
            0,
            f'extern "C" __global__ void __launch_bounds__({threads}) {self.name}'
            "(const __grid_constant__ Args a) {",
        )
        self.put(1, "ptx_wait_for_grid_before();")

    def decode(self, depth: int, row: str) -> None:
        """Coordinates i0 … of a row."""
        rest = row
        for k in range(self.rank - 1, 0, -1):
            self.put(depth, f"i64 i{k}, r{k};")
            self.put(depth, f"divide({rest}, a.n{k}, r{k}, i{k});")
            rest = f"r{k}"
        if self.rank:
            self.put(depth, f"const i64 i0 = {rest};")

    def hint(self, a: Access) -> str:
        if a.tensor in self.written:
            return "plain"
        return "cached" if a.shared else "stream"

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
        return f"{ONE[s.kind]}({got})"

    def element(self, s: LoadValue, vector: str, e: str) -> str:
        return {
            "float": f"element({vector}, {e})",
            "double": f"{vector}.get({e})",
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

    def walk(self, depth: int, line: str) -> None:
        self.put(depth, "#pragma unroll 4")
        self.put(depth, line)

    def ctype(self, kind: Class) -> str:
        return TYPE[kind]

    def identity(self, s: Accumulate | ReduceBlock | ScanValue) -> str:
        row = REDUCE[s.op]
        return row.identity_int if s.kind == "int" else row.identity

    def sized(self, text: str, kind: str) -> str:
        return f"({TYPE[kind]}){text}"

    def literal(self, value: Any, kind: str) -> str:
        if kind == "float":
            return float_literal(float(value))
        if kind == "double":
            return double_literal(float(value))
        return f"(i64){int(value)}ll" if kind == "int" else ("true" if value else "false")

    # Statements that look the same under every schedule

    def row_statement(self, s: Statement) -> None:
        """A value that is the same along the row, or reading one."""
        if isinstance(s, LoadValue):
            a = self.kernel.access(s.access)
            if a.index:
                self.table_row(1, a)
            self.put(1, f"const {TYPE[s.kind]} {s.name} = {self.one(s)};")
        else:
            self.put(1, self.compute(s, "0"))

    def lane_statement(self, s: Statement, vectors: dict[str, str], depth: int) -> None:
        """One statement of a column loop for element e of a vector that begins at column c."""
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

    def results(self, depth: int, loop: ColumnLoop) -> None:
        """Where the elements of a vector gather before it is stored."""
        for s in stores(loop.body):
            a = self.kernel.access(s.access)
            is_float = a.dtype.kind == "float"
            self.put(depth, f"float {a.name}_t[E];" if is_float else f"vec<{a.dtype.ctype}, E> {a.name}_t;")

    def packed(self, a: Access) -> str:
        return f"pack<{a.dtype.ctype}, E>({a.name}_t)" if a.dtype.kind == "float" else f"{a.name}_t"

    def accumulators(self, loop: ColumnLoop) -> None:
        for s in loop.body:
            if isinstance(s, Accumulate):
                self.put(1, f"{TYPE[s.kind]} {s.name}_a = {self.identity(s)};")

    def accumulate(self, s: Accumulate | ReduceBlock, depth: int, where: str = "") -> None:
        """``where`` is the condition under which the element counts; empty: always."""
        value = self.operand(s.value, s.kind)
        if where:
            value = f"({where} ? {value} : {self.identity(s)})"
        self.put(depth, f"{s.name}_a = {REDUCE[s.op].combine.format(f'{s.name}_a', value)};")
