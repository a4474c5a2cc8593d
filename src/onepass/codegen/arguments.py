"""The argument block of a kernel: one list that both the printed struct and the packed call come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onepass.dtypes import Class
from onepass.ir.kernel import (
    Choose,
    Compute,
    IotaValue,
    Kept,
    Kernel,
    LoadValue,
    ReduceBlock,
    ReduceRow,
    ScanValue,
    Statement,
)
from onepass.ir.symbol import Poly, Size, name, product


@dataclass(frozen=True)
class Field:
    """Eight bytes of the block: a tensor's address plus an offset in bytes, or a size."""

    name: str
    ctype: str
    kind: Literal["pointer", "size", "extra"]
    tensor: str = ""
    size: Size = 0  # the offset in bytes of a pointer, or the value


def statements(kernel: Kernel) -> list[Statement]:
    return [s for stage in kernel.stages if hasattr(stage, "body") for s in stage.body]


def kinds(kernel: Kernel) -> dict[str, Class]:
    """The compute class of every value."""
    found: dict[str, Class] = {s.name: s.kind for s in kernel.stages if isinstance(s, ReduceRow)}
    for s in statements(kernel):
        if isinstance(s, (LoadValue, IotaValue, Compute, Choose, Kept, ReduceBlock, ScanValue)):
            found[s.name] = s.kind
    return found


def iotas(kernel: Kernel) -> list[IotaValue]:
    return list({s.name: s for s in statements(kernel) if isinstance(s, IotaValue)}.values())


def fields(kernel: Kernel, extra: tuple[tuple[str, str], ...] = ()) -> tuple[Field, ...]:
    """The block of a kernel; ``extra`` fields (name, C type) are filled in by the launcher."""
    rank = len(kernel.outer)
    block: list[Field] = []
    written = {s.access for s in statements(kernel) if hasattr(s, "access") and hasattr(s, "value")}
    for a in kernel.accesses:
        const = "" if a.name in written else "const "
        block.append(
            Field(a.name, f"{const}{a.dtype.ctype}*", "pointer", a.tensor, a.offset * a.dtype.nbytes)
        )
        block.extend(Field(f"{a.name}_o{k}", "i64", "size", size=a.outer[k]) for k in range(rank))
        if a.column == "strided":
            block.append(Field(f"{a.name}_c", "i64", "size", size=a.step))
        if a.per_block != 0:
            block.append(Field(f"{a.name}_block", "i64", "size", size=a.per_block))
        if kernel.axis == "inner":
            block.append(Field(f"{a.name}_r", "i64", "size", size=a.reduced))
        block.extend(Field(f"{a.name}_b{k}", "i64", "size", size=s) for k, s in enumerate(a.blocks))
        if a.table is not None:
            block.append(Field(f"{a.name}_n", "i64", "size", size=a.table[0]))
            block.append(Field(f"{a.name}_t", "i64", "size", size=a.table[1]))
    for i in iotas(kernel):
        block.append(Field(f"{i.name}_start", "i64", "size", size=i.start))
        block.extend(Field(f"{i.name}_o{k}", "i64", "size", size=i.outer[k]) for k in range(rank))
        block.append(Field(f"{i.name}_step", "i64", "size", size=i.step))
        if kernel.axis == "inner":
            block.append(Field(f"{i.name}_r", "i64", "size", size=i.reduced))
        block.extend(Field(f"{i.name}_b{k}", "i64", "size", size=s) for k, s in enumerate(i.blocks))
    block.extend(Field(f"n{k}", "i64", "size", size=size) for k, size in enumerate(kernel.outer))
    block.append(Field("rows", "i64", "size", size=product(kernel.outer)))
    block.append(Field("cols", "i64", "size", size=kernel.cols))
    if kernel.axis == "inner":
        block.append(Field("inner", "i64", "size", size=kernel.inner))
    block.extend(Field(f"m{k}", "i64", "size", size=size) for k, size in enumerate(kernel.blocks))
    if kernel.blocks:
        block.append(Field("run", "i64", "size", size=kernel.run))
    block.extend(Field(f"s{k}", "i64", "size", size=name(symbol)) for k, symbol in enumerate(kernel.symbols))
    block.extend(Field(n, ctype, "extra") for n, ctype in extra)
    return tuple(block)


def struct(block: tuple[Field, ...]) -> str:
    lines = "".join(f"  {f.ctype} {f.name};\n" for f in block)
    return f"struct Args {{\n{lines}}};\n"


def spell_size(kernel: Kernel, size: Size, prefix: str) -> str:
    """A size used as a number inside a kernel."""
    if not isinstance(size, Poly):
        return str(size)
    return size.text(lambda symbol: f"{prefix}s{kernel.symbols.index(symbol)}")
