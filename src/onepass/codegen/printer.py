"""What the printers of both targets share: lines, values, the addresses of a row."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from typing import Any

from onepass.codegen.arguments import Field, fields, iotas, kinds, spell_size
from onepass.dtypes import Class
from onepass.ir.kernel import (
    Access,
    Accumulate,
    ColumnLoop,
    Compute,
    IotaValue,
    Kernel,
    ReduceBlock,
    ScanValue,
    Statement,
    StoreBlock,
    StoreValue,
)
from onepass.ir.symbol import Poly
from onepass.ops.table import OPS, REDUCE


class Printer:
    """A kernel as text. ``args`` is how the argument block is spelled before a field: ``a.`` or ``a->``."""

    args = ""

    def __init__(self, kernel: Kernel, name: str, extra: tuple[tuple[str, str], ...] = ()) -> None:
        self.kernel = kernel
        self.name = name
        self.block: tuple[Field, ...] = fields(kernel, extra)
        self.kinds = kinds(kernel)
        self.rank = len(kernel.outer)
        self.lines: list[str] = []
        self.tabled: set[str] = set()  # gathered rows whose pointer is set
        self.running: set[str] = set()  # running totals that are declared

    def put(self, depth: int, line: str) -> None:
        self.lines.append("  " * depth + line)

    # Addresses

    def pointers(self, depth: int) -> None:
        """Where this row begins in each tensor, and the first value of each index."""
        for a in self.kernel.accesses:
            if not a.index:
                self.put(depth, f"{self.pointer_type(a)} {a.name}_g = {self.start(a)};")
        for i in iotas(self.kernel):
            terms = "".join(f" + i{k} * {self.args}{i.name}_o{k}" for k in range(self.rank))
            self.put(depth, f"const i64 {i.name}_b = {self.args}{i.name}_start{terms};")

    def start(self, a: Access) -> str:
        """Where a row begins; in a table, how far into the row that the index chooses."""
        terms = "".join(f" + i{k} * {self.args}{a.name}_o{k}" for k in range(self.rank))
        return f"{self.args}{a.name}{terms}"

    def pointer_type(self, a: Access) -> str:
        return next(f.ctype for f in self.block if f.name == a.name)

    # Loops

    def decode_column(self, depth: int, r: str) -> None:
        """Coordinates b0 … and ``rest`` of a column, where accesses do not pass columns in one stride."""
        if not self.kernel.blocks:
            return
        self.put(depth, f"const i64 rest = {r} % {self.args}run, block_of = {r} / {self.args}run;")
        left = "block_of"
        for k in range(len(self.kernel.blocks) - 1, 0, -1):
            self.put(depth, f"const i64 b{k} = {left} % {self.args}m{k}, g{k} = {left} / {self.args}m{k};")
            left = f"g{k}"
        self.put(depth, f"const i64 b0 = {left};")

    def serial(self, depth: int, loop: ColumnLoop, body: Callable[[int], None]) -> None:
        """One thread or vector walks the reduced dimension, r; ``body`` prints what it does at a depth.

        Sums are taken in blocks of 32, of 32 blocks, of 32 of those: added one by one, a million terms of a like size
        would be off by 1e-5, and past 2^24 of them the sum would stand still.
        """
        sums = {
            s.name: self.ctype(s.kind)
            for s in loop.body
            if isinstance(s, Accumulate) and REDUCE[s.op].rounds and s.kind != "int"
        }
        for s in loop.body:
            if isinstance(s, Accumulate):
                self.put(depth, f"{self.ctype(s.kind)} {s.name}_a = {self.identity(s)};")
        if not sums:
            self.walk(depth, f"for (i64 r = 0; r < {self.args}cols; ++r) {{")
            body(depth + 1)
            self.put(depth, "}")
            return
        for ctype in dict.fromkeys(sums.values()):
            names = [f"{n}_{level} = {ctype}(0.0f)" for n, c in sums.items() if c == ctype for level in "bcd"]
            self.put(depth, f"{ctype} {', '.join(names)};")
        self.put(depth, f"for (i64 first = 0, block = 1; first < {self.args}cols; first += 32, ++block) {{")
        self.put(depth + 1, f"const i64 last = first + 32 < {self.args}cols ? first + 32 : {self.args}cols;")
        self.walk(depth + 1, "for (i64 r = first; r < last; ++r) {")
        body(depth + 2)
        self.put(depth + 1, "}")
        self.carry(depth + 1, sums, "a", "b")
        for mask, low, high in ((31, "b", "c"), (1023, "c", "d")):
            self.put(depth + 1, f"if ((block & {mask}) == 0) {{")
            self.carry(depth + 2, sums, low, high)
            self.put(depth + 1, "}")
        self.put(depth, "}")
        for n in sums:
            self.put(depth, f"{n}_a = {n}_d + ({n}_c + {n}_b);")

    def walk(self, depth: int, line: str) -> None:
        """The head of a loop whose loads should be in flight together."""
        self.put(depth, line)

    def carry(self, depth: int, sums: dict[str, str], low: str, high: str) -> None:
        for n, ctype in sums.items():
            self.put(depth, f"{n}_{high} = {n}_{high} + {n}_{low}; {n}_{low} = {ctype}(0.0f);")

    def down(self, a: Access | IotaValue, along: str) -> str:
        """How far an access is down the reduced dimension."""
        if not along:
            return ""
        if not a.blocks:
            return f" + {along} * {self.args}{a.name}_r"
        return (
            "".join(f" + b{k} * {self.args}{a.name}_b{k}" for k in range(len(a.blocks)))
            + f" + rest * {self.args}{a.name}_r"
        )

    # Values

    def expression(self, s: Compute) -> str:
        row = OPS[s.op]
        numbers = (
            s.kind
            if row.result == "same" or row.operands == "condition"
            else next((self.kinds[o] for o in s.operands if isinstance(o, str)), s.kind)
        )
        short = self.kernel.half and row.expr_half and numbers == "float"
        text = row.expr_half if short and row.expr_half else row.expr
        return text.format(
            *(
                self.operand(o, "bool" if row.operands == "condition" and i == 0 else numbers)
                for i, o in enumerate(s.operands)
            )
        )

    def operand(self, o: Any, kind: str) -> str:
        """A value by its name, a size or a number, as one of ``kind``."""
        if isinstance(o, str):
            return o
        if isinstance(o, Poly):
            return self.sized(spell_size(self.kernel, o, self.args), kind)
        return self.literal(o, kind)

    def ctype(self, kind: Class) -> str:
        """The type of a value of a compute class."""
        raise NotImplementedError

    def identity(self, s: Accumulate | ReduceBlock | ScanValue) -> str:
        """What a reduction starts from."""
        row = REDUCE[s.op]
        return f"{self.ctype(s.kind)}({row.identity_int if s.kind == 'int' else row.identity})"

    def totals(self, depth: int, loop: ColumnLoop) -> None:
        """What stands before the first column, of what a loop scans."""
        for s in loop.body:
            if isinstance(s, ScanValue):
                first = REDUCE[s.op].identity_int if s.kind == "int" else REDUCE[s.op].identity
                ctype = self.total_type(s.kind)
                self.put(
                    depth, f"{'' if s.name in self.running else f'{ctype} '}{s.name}_t = {ctype}({first});"
                )
                self.running.add(s.name)

    def total_type(self, kind: Class) -> str:
        """The type of a running total."""
        return self.ctype(kind)

    def sized(self, text: str, kind: str) -> str:
        raise NotImplementedError

    def literal(self, value: Any, kind: str) -> str:
        raise NotImplementedError


def split_rounds(body: Iterable[Statement]) -> list[tuple[bool, list[Statement]]]:
    """A loop's statements in rounds, by turns what is done for each column and what is done once for several of them."""
    rounds: list[tuple[bool, list[Statement]]] = [(False, [])]
    for s in body:
        once = isinstance(s, (ReduceBlock, StoreBlock, ScanValue)) or (isinstance(s, Compute) and s.per_block)
        late = rounds[-1][0] and not all(isinstance(r, ReduceBlock) for r in rounds[-1][1])
        if isinstance(s, ReduceBlock) and late:
            rounds.append((False, []))  # its terms are gathered in the round before
        if once != rounds[-1][0]:
            rounds.append((once, []))
        rounds[-1][1].append(s)
    return [r for i, r in enumerate(rounds) if r[1] or i + 1 < len(rounds)]


def values_used(body: Iterable[Statement]) -> set[str]:
    """Names of the values that statements take."""
    taken = (o for s in body for o in (*getattr(s, "operands", ()), getattr(s, "value", None)))
    return {o for o in taken if isinstance(o, str)}


def stores(body: Iterable[Any]) -> list[StoreValue]:
    return [s for s in body if isinstance(s, StoreValue)]


def double_literal(value: float) -> str:
    """A float64, exactly."""
    if math.isnan(value):
        return "(double)NAN_F"
    if math.isinf(value):
        return "(double)-INFINITY_F" if value < 0 else "(double)INFINITY_F"
    return value.hex()


def float_literal(value: float) -> str:
    """The nearest float, exactly, as both preludes spell it."""
    if math.isnan(value):
        return "NAN_F"
    try:
        rounded = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        rounded = math.copysign(math.inf, value)
    if math.isinf(rounded):
        return "-INFINITY_F" if rounded < 0 else "INFINITY_F"
    return f"{float(rounded).hex()}f"
