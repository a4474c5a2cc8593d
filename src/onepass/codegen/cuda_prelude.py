"""The texts that every CUDA kernel starts with."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "prelude"
_FILES = (
    "ptx",
    "types",
    "math",
    "vectors",
    "reduce",
    "convert",
    "staging",
)  # each uses only what stands before it


@lru_cache
def cuda_prelude() -> str:
    """One text without any #include, to stand before `struct Args`."""
    return "\n".join((_FOLDER / f"{name}.cuh").read_text() for name in _FILES)


def reduce_scratch_bytes(lanes: int, groups: int, values: int = 1) -> int:
    """Shared memory in bytes that `groups<lanes, groups, values>` of reduce.cuh needs.

    `values` is 2 if the kernel calls `sum2`, else 1. 0 means that no array is needed: pass a null pointer.
    """
    return 0 if lanes <= 32 else 2 * values * groups * (lanes // 32) * 4
