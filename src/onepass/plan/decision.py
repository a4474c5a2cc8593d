"""What the planner considered, and why it did or did not do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Every reason a decision may carry. Reports explain each; a new one is added here first.
REASONS: dict[str, str] = {
    "fused": "both in one kernel",
    "bias": "the kernel that reads a matmul's result adds the bias, which the matmul would copy there first",
    "recomputed": "computed again inside its reader, which is cheaper than reading it",
    "compute_bound": "the neighbour is bound by arithmetic and stays with PyTorch",
    "opaque": "the neighbour stays with PyTorch",
    "space_mismatch": "the two walk the data in ways one pass cannot follow",
    "cycle": "something between the two needs one and feeds the other",
    "no_gain": "fusing saves no time by the time model",
    "too_large": "the kernel would hold more than registers or the argument list allow",
    "device": "the two run on different devices",
    "fuel": "the merge limit set by the user is reached",
}


@dataclass(frozen=True)
class Decision:
    """One pair the planner looked at. Units: bytes and µs that fusing saves (estimates).

    ``source`` and ``target`` say what the two are made of, ``between`` which items they were, by name.
    """

    source: str
    target: str
    verdict: Literal["fused", "kept"]
    reason: str
    detail: str
    bytes_saved: int
    us_saved: float
    between: tuple[str, str] = ("", "")
