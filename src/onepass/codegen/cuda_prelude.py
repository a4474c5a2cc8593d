"""The texts that every CUDA kernel starts with."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "prelude"
# Each uses only what stands before it.
_FILES = (
    "ptx.cuh",
    "types.cuh",
    "math.cuh",
    "library.cuh",
    "library.inc",
    "vectors.cuh",
    "reduce.cuh",
    "convert.cuh",
    "held.cuh",
)


@lru_cache
def cuda_prelude() -> str:
    """One text without any #include, to stand before `struct Args`."""
    return "\n".join((_FOLDER / name).read_text() for name in _FILES)


@lru_cache
def own_prelude(name: str) -> str:
    """What only the kernels of one schedule need; it stands after the text that all start with."""
    return (_FOLDER / f"{name}.cuh").read_text()


def reduce_scratch_bytes(lanes: int, groups: int, values: int = 1) -> int:
    """Shared memory in bytes that `groups<lanes, groups, values>` of reduce.cuh needs.

    `values` is 2 if the kernel calls `sum2`, else 1. 0 means that no array is needed: pass a null pointer.
    """
    return 0 if lanes <= 32 else 2 * values * groups * (lanes // 32) * 4


def lanes_scratch_bytes(lanes: int, across: int, groups: int, width: int) -> int:
    """Shared memory in bytes that `lanes_of<lanes, across, groups>` of lanes.cuh needs for `width` values a thread."""
    whole = 32 % across == 0 and lanes * across * groups % 32 == 0
    far = lanes // min(lanes, 32 // across) if whole else lanes
    return (far + 1) * groups * across * width * 4 if far > 1 else 0
