"""Whether a result is its float64 reference up to rounding: one rule for everything that compares the two.

An element may be off by a share of its own and of the typical magnitude of all elements: sums of terms that cancel are
as inexact as their terms, which an element alone does not show.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Elements that a typical magnitude is taken from: more say the same, and a median sorts them.
SAMPLE = 1 << 20


def typical(exact: Tensor, dtype: torch.dtype) -> float:
    """Twice the median magnitude of the elements that are numbers; 0 where there is none.

    A median, for a mean is turned into anything by one outlier. Twice, for a mean is larger: 1.2 times the median of a
    normal distribution, 1.8 of a product of two, which a scaled row is. Zeros do not count (a mask or ReLU makes them),
    nor what lies in the upper half of ``dtype``'s range: it stands for minus infinity, however often it is there.
    """
    step = max(1, exact.numel() // SAMPLE) | 1  # odd: never the same few columns
    sizes = exact.reshape(-1)[::step].abs()
    sizes = sizes[(sizes > 0) & (sizes < torch.finfo(dtype).max / 2)]
    return 2 * float(sizes.median()) if sizes.numel() else 0.0


def floor(dtype: torch.dtype) -> float:
    """What any element of a type may be off by: a few of fp16's smallest numbers; fp32's, which devices flush to zero."""
    return (
        4 * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        if dtype == torch.float16
        else 2.0**-126
    )


def allowed(exact: Tensor, dtype: torch.dtype, share: float) -> Tensor:
    """What each element of a result of type ``dtype`` may be off by. ``exact`` is float64, or as good."""
    return share * (exact.abs() + typical(exact, dtype)) + floor(dtype)


def too_far(result: Tensor, exact: Tensor, share: float) -> Tensor:
    """Where a floating-point result is wrong. Where the exact one is no number, or infinite, both must be the same.

    Shapes: both alike; the answer is of theirs, bool.
    """
    wide, exact = result.double(), exact.double()
    near = exact.isfinite() & ((wide - exact).abs() <= allowed(exact, result.dtype, share))
    return ~(near | (wide == exact) | (wide.isnan() & exact.isnan()))


def close_to(result: Tensor, exact: Tensor, share: float) -> str:
    """Empty where a result is the exact one, else which element is furthest from it and how many are off.

    The text goes on after the result's name: "[7] is 1, not 2; …". ``share`` is of magnitudes, of a floating-point
    result; whole numbers must be equal. Shapes: as many elements each.
    """
    if result.numel() != exact.numel():
        return f" has {result.numel()} elements and its reference {exact.numel()}"
    got, want = result.reshape(-1), exact.reshape(-1)
    bad = too_far(got, want, share) if result.is_floating_point() else got != want
    if not bool(bad.any()):
        return ""
    error = (got.double() - want.double()).abs().nan_to_num(float("inf"))
    worst = int(torch.where(bad, error, -1.0).argmax())
    return f"[{worst}] is {got[worst]:.6g}, not {want[worst]:.6g}; {int(bad.sum())} of {bad.numel()} elements are off"
