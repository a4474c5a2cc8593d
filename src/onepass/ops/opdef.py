"""The rows of the vocabulary: what one op is, for the capture, the printers, the analysis and the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol

Reference = Callable[..., Any]


class Value(Protocol):
    """A tensor inside an expansion."""

    @property
    def shape(self) -> tuple[Any, ...]: ...

    @property
    def kind(self) -> str:
        """Compute class: float, double, int or bool."""

    @property
    def torch_dtype(self) -> Any:
        """The dtype of an operand in memory."""


class Builder(Protocol):
    """What an expansion may do; the capture and the tests each bring one."""

    def map(self, op: str, *operands: Value | Any) -> Value:
        """An element-wise op over broadcast operands; numbers are taken as they are."""

    def reduce(self, op: str, x: Value, dims: list[int], keepdim: bool) -> Value:
        """A reduction along ``dims``."""

    def scan(self, op: str, x: Value, dim: int) -> Value:
        """What a reduction along ``dim`` gives of each element and all before it."""

    def squeeze(self, x: Value, dims: list[int]) -> Value:
        """x without its dimensions of size one at ``dims``."""

    def count(self, x: Value, dims: list[int]) -> Any:
        """The number of elements along ``dims``, maybe symbolic."""

    def cast(self, x: Value, dtype: Any) -> Value:
        """x as ``dtype`` (a ``torch.dtype``)."""

    def constant(self, shape: Any, value: Any, dtype: Any) -> Value:
        """A tensor with one value everywhere."""

    def iota(self, size: Any, start: Any, step: Any) -> Value:
        """start, start + step, …"""

    def position(self, x: Value, dims: list[int]) -> Value:
        """Where each element is along ``dims``, row-major."""

    def floating(self, x: Value | Any) -> Any:
        """Integers and booleans as the floats that the op computes in."""

    def view(self, x: Value, shape: list[Any]) -> Value:
        """x with another shape, the same elements in the same order."""

    def unsqueeze(self, x: Value, dim: int) -> Value:
        """x with a dimension of size one."""

    def work_in(self, shape: list[Any]) -> None:
        """The shape that the op is expanded in, with as many elements as its first operand; before anything else."""

    def halves(self, x: Value, dim: int) -> tuple[Value, Value]:
        """The two halves along a dimension."""

    def reverse(self, x: Value, dims: list[int]) -> Value:
        """x read backwards along ``dims``."""

    def gather(self, table: Value, index: Value) -> Value:
        """Rows of a two-dimensional table."""

    def concatenate(self, pieces: list[Value], dim: int) -> Value:
        """Pieces one after the other along ``dim``."""

    def refuse(self, reason: str) -> NoReturn:
        """Leaves the op to PyTorch, with the reason."""


@dataclass(frozen=True)
class OpDef:
    """One element-wise op.

    ``args`` names the operands by their names in the ATen schema, in order; an operand may be a tensor or a
    scalar. ``expr`` is the C expression both targets print, with ``{0}``, ``{1}`` for the operands; ``expr_half``
    replaces it where the result is only needed at 16-bit precision. ``result`` is the compute class of the value:
    a class by name, or ``same`` (that of the operands). ``operands`` restricts the operands: ``float`` converts
    integers and booleans first and takes either width, ``int`` converts booleans, ``bool`` anything; ``any`` takes the
    widest class among them, ``number`` too, booleans as integers. ``chooses`` says that the value is one of the
    operands (or zero, where there is one of each sign): integers of any width need no wrapping then. ``divides`` says that
    PyTorch raises on the CPU where the second operand is zero, and a kernel there reports it.

    Units: ``flops`` are the operations counted for arithmetic intensity; ``cost`` is issued instructions and
    ``special`` special-function instructions an element at fp32 on NVIDIA GPUs, ``cost_half`` what ``expr_half``
    issues. Measured: codegen/prelude/costs.toml.
    """

    name: str
    args: tuple[str, ...]
    aten: tuple[str, ...]
    expr: str
    reference: Reference
    doc: str
    source: str
    expr_half: str | None = None
    result: Literal["same", "float", "double", "bool", "int"] = "same"
    operands: Literal["any", "number", "float", "int", "bool", "condition"] = "any"
    chooses: bool = False
    divides: bool = False
    flops: int = 1
    cost: int = 1
    special: int = 0
    cost_half: int | None = None
    domain: tuple[float, float] = (-4.0, 4.0)


@dataclass(frozen=True)
class ReductionDef:
    """One reduction: ``identity`` to start from (``identity_int`` of integers), ``combine`` as a C expression of ``{0}``
    and ``{1}``.

    ``empty`` is what no elements give, None where PyTorch raises. ``group`` names the prelude function that combines the
    partial values of the lanes that share a row. ``rounds`` says that combining rounds, so that many terms one by one lose
    digits. ``rounded_once`` maps an element-wise op to the expression that combines its result with one rounding, of the
    total ``{0}`` and the op's operands: for targets whose compiler may not contract.
    """

    name: str
    identity: str
    combine: str
    group: str
    reference: Reference
    doc: str
    source: str
    flops: int = 1
    cost: int = 1
    identity_int: str = "0"
    empty: int | None = None
    rounds: bool = False
    rounded_once: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class OnlineDef:
    """Two reductions of one value, the second of what ``steps`` make of the value and a shift, that merge over parts.

    The shift is the result of ``first``, or where ``over`` names an op, what that gives of the result and the number of
    columns. A part's second reduction is shifted by the part's own first; the prelude's struct ``merge`` combines both.
    """

    first: str
    over: str
    steps: tuple[str, ...]
    second: str
    merge: str
    source: str


@dataclass(frozen=True)
class CompositeDef:
    """An op made of others: ``expand(builder, **arguments by schema name)`` gives its value or values.

    ``identity`` says that the value is the first operand's, in memory of its own and maybe cast: without a cast, and where
    nobody can tell the memories apart, no copy is made. ``pieces`` says that the value is the operands one after the
    other, ``stacks`` along a new dimension: each may be written to its place by itself. ``narrows`` says that its result
    is smaller than its first operand though nothing reduces.
    """

    name: str
    aten: tuple[str, ...]
    expand: Callable[..., Any]
    doc: str
    source: str
    identity: bool = False
    pieces: bool = False
    stacks: bool = False
    narrows: bool = False
