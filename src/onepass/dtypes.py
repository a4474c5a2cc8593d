"""The dtype table: bytes, names in PyTorch, in kernels and in reports, unit roundoff, compute class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What a kernel computes with: fp32, float64, 64-bit integers, truth values.
Class = Literal["float", "double", "int", "bool"]


@dataclass(frozen=True)
class DType:
    """One element type.

    Units: ``nbytes`` in bytes; ``unit_roundoff`` is half the spacing at 1 (0 for exact types).
    """

    name: str  # as PyTorch spells it, without "torch."
    short: str  # as reports and benchmark rows spell it
    ctype: str  # storage type in generated kernels
    nbytes: int
    kind: Class  # what a kernel computes with
    unit_roundoff: float = 0.0

    def __str__(self) -> str:
        return self.short


FLOAT32 = DType("float32", "fp32", "float", 4, "float", 2.0**-24)
BFLOAT16 = DType("bfloat16", "bf16", "bf16", 2, "float", 2.0**-8)
FLOAT16 = DType("float16", "fp16", "f16", 2, "float", 2.0**-11)
FLOAT64 = DType("float64", "fp64", "double", 8, "double", 2.0**-53)
FLOAT8_E4M3 = DType("float8_e4m3fn", "e4m3", "e4m3", 1, "float", 2.0**-4)
FLOAT8_E5M2 = DType("float8_e5m2", "e5m2", "e5m2", 1, "float", 2.0**-3)
INT64 = DType("int64", "i64", "i64", 8, "int")
INT32 = DType("int32", "i32", "i32", 4, "int")
INT16 = DType("int16", "i16", "i16", 2, "int")
INT8 = DType("int8", "i8", "i8", 1, "int")
UINT8 = DType("uint8", "u8", "u8", 1, "int")
BOOL = DType("bool", "bool", "b8", 1, "bool")

# What a kernel can load, compute with and store. Everything else stays with PyTorch.
DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        FLOAT64,
        FLOAT32,
        BFLOAT16,
        FLOAT16,
        FLOAT8_E4M3,
        FLOAT8_E5M2,
        INT64,
        INT32,
        INT16,
        INT8,
        UINT8,
        BOOL,
    )
}


def from_torch(dtype: object) -> DType | None:
    """The row for a ``torch.dtype``, or None when kernels do not handle it."""
    return DTYPES.get(str(dtype).removeprefix("torch."))
