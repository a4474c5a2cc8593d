"""Kernel IR: a cluster as a walk over rows. Near enough to C that a printer makes the source.

A kernel handles one row at a time: row statements, then a loop over the columns, then reductions across it, and again for
each phase. A row is one outer position; its columns are the reduced dimension. With ``axis="inner"`` the vector runs along
the inner dimension instead, the column loop is serial, and what is said of rows holds for each lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onepass.dtypes import Class, DType
from onepass.ir.symbol import Poly, Size

Column = Literal["zero", "unit", "strided"]
Operand = str | int | float | bool | Poly


@dataclass(frozen=True)
class Access:
    """A pointer argument and how it moves.

    Strides and offset are in elements. ``column`` says how it moves along the vector's dimension; in a kernel with
    ``axis="inner"``, ``reduced`` is its step along the serial loop.
    """

    name: str
    tensor: str
    dtype: DType
    outer: tuple[Size, ...]
    column: Column
    step: Size  # along the vector's dimension
    reduced: Size  # along the serial loop, when the vector runs along inner
    offset: Size
    window: tuple[int, int] | None = None
    index: str | None = None  # the value that chooses a row of a table
    table: tuple[Size, Size] | None = None  # rows of that table, elements from one to the next
    blocks: tuple[Size, ...] = ()  # strides along the slower dimensions of the columns
    resident: bool = False  # its values are needed in a later phase too
    per_block: Size = 0  # from one block of columns to the next, where it has one element a block

    @property
    def shared(self) -> bool:
        """Whether other rows touch the same elements: a row vector, or a table."""
        moves = self.column != "zero" or any(s != 0 for s in self.blocks)
        same = moves and self.outer != () and all(s == 0 for s in self.outer)
        return same or self.index is not None


@dataclass(frozen=True)
class LoadValue:
    name: str
    access: str
    kind: Class


@dataclass(frozen=True)
class IotaValue:
    """start + outer strides × outer position + step × column, and the strides of blocks as an access has them."""

    name: str
    start: Size
    outer: tuple[Size, ...]
    step: Size  # along the vector's dimension
    kind: Class
    reduced: Size = 0  # along the serial loop, when the vector runs along inner
    blocks: tuple[Size, ...] = ()


@dataclass(frozen=True)
class Compute:
    name: str
    op: str
    operands: tuple[Operand, ...]
    kind: Class
    per_block: bool = False  # there is one of it in a block of columns


@dataclass(frozen=True)
class Choose:
    """The operand whose range of columns holds the column."""

    name: str
    operands: tuple[Operand, ...]
    bounds: tuple[int, ...]
    kind: Class


@dataclass(frozen=True)
class Keep:
    """Holds a value for a later phase."""

    value: str


@dataclass(frozen=True)
class Kept:
    """A value held since an earlier phase."""

    name: str
    kind: Class


@dataclass(frozen=True)
class Accumulate:
    name: str
    op: str
    value: Operand
    kind: Class = "float"


@dataclass(frozen=True)
class StoreValue:
    access: str
    value: str


@dataclass(frozen=True)
class ReduceBlock:
    """Combines a value over the aligned block of columns around a column. All columns of a block get the same bits.

    What stands before it in a loop is done for all columns of the block, then what stands behind it.
    """

    name: str
    op: str
    value: str
    kind: Class = "float"


@dataclass(frozen=True)
class StoreBlock:
    """Stores, once a block, a value that all its columns agree on."""

    access: str
    value: str


@dataclass(frozen=True)
class ScanValue:
    """Combines a value of this column with those of all columns before it."""

    name: str
    op: str
    value: str
    kind: Class = "float"


Statement = (
    LoadValue
    | IotaValue
    | Compute
    | Choose
    | Keep
    | Kept
    | Accumulate
    | StoreValue
    | ReduceBlock
    | StoreBlock
    | ScanValue
)


@dataclass(frozen=True)
class RowBlock:
    """Statements done once a row."""

    body: tuple[Statement, ...]


@dataclass(frozen=True)
class ColumnLoop:
    """Statements done for each column."""

    body: tuple[Statement, ...]


@dataclass(frozen=True)
class ReduceRow:
    """Combines what the lanes accumulated under a name into one value of that name."""

    name: str
    op: str
    kind: Class = "float"


Stage = RowBlock | ColumnLoop | ReduceRow


@dataclass(frozen=True)
class Kernel:
    """One kernel without its binding to threads: that is the schedule's."""

    name: str
    accesses: tuple[Access, ...]
    stages: tuple[Stage, ...]
    outer: tuple[Size, ...]
    cols: Size  # the dimension that reductions run along
    inner: Size
    axis: Literal["reduced", "inner"]
    kept: tuple[str, ...]
    half: bool  # every float result is 16 bits wide: shorter math functions are enough
    symbols: tuple[str, ...]  # sizes that statements use as numbers
    blocks: tuple[
        Size, ...
    ] = ()  # slower dimensions of the columns, where accesses do not pass them in one stride
    run: Size = 0  # columns of the fastest dimension then
    block: int = 0  # columns that ReduceBlock combines: a divisor of the row

    def access(self, name: str) -> Access:
        return next(a for a in self.accesses if a.name == name)

    @property
    def loops(self) -> tuple[ColumnLoop, ...]:
        return tuple(s for s in self.stages if isinstance(s, ColumnLoop))

    @property
    def scans(self) -> bool:
        return any(isinstance(s, ScanValue) for loop in self.loops for s in loop.body)

    @property
    def reduces(self) -> bool:
        """Whether columns of a row depend on one another."""
        return self.block > 0 or self.scans or any(isinstance(s, ReduceRow) for s in self.stages)

    @property
    def bounds(self) -> tuple[int, ...]:
        """Columns at which a choice changes, without the last."""
        found = {b for loop in self.loops for s in loop.body if isinstance(s, Choose) for b in s.bounds}
        return tuple(sorted(found))[:-1] if found else ()
