"""Softmax, alone and after a scale and a mask, in float64, how far fp32 may be from it, and the PyTorch function."""

import torch
from torch import Tensor

SCALE = 0.125
ROUNDING = 2.0**-24
# An exponential through 2^t: a few units in the last place.
EXP_ROUNDINGS = 4


def softmax(x: Tensor) -> Tensor:
    """exp(x) over its sum along each row. Shape: [rows, cols]."""
    return torch.softmax(x, -1)


def softmax_allowed(chain: float, x: Tensor) -> Tensor:
    """How far fp32 may be from it, with a longest chain of additions and rescalings `chain` long.

    The exponent, x less the largest, is rounded once, and once more on its way to a power of two: exp turns that into as
    many roundings as the exponent is large. The sum is off by its chain, each link with an exponential of its own.
    """
    return _allowed(chain, x, torch.zeros_like(x))


def scale_mask_softmax(x: Tensor, mask: Tensor) -> Tensor:
    """Softmax of x / 8 + mask. Shapes: [rows, cols] both."""
    return torch.softmax(SCALE * x + mask, -1)


def scale_mask_softmax_allowed(chain: float, x: Tensor, mask: Tensor) -> Tensor:
    """As `softmax_allowed`, of elements that a product and an addition have rounded."""
    z = SCALE * x + mask
    return _allowed(chain, z, ROUNDING * ((SCALE * x).abs() + z.abs()))


def _allowed(chain: float, z: Tensor, off: Tensor) -> Tensor:
    y = torch.softmax(z, -1)
    exponent = z.amax(-1, keepdim=True) - z
    spread = exponent.amax(-1, keepdim=True)
    each = 2 * ROUNDING * exponent + EXP_ROUNDINGS * ROUNDING + off + off.amax(-1, keepdim=True)
    # Links rescale by exp of a difference of two largest: in all no more than the spread of the row.
    total = (each * y).sum(-1, keepdim=True) + (chain * (EXP_ROUNDINGS + 2) + 2 * spread) * ROUNDING
    # What is below the smallest normal number may be flushed to zero.
    return y * (each + total + 4 * ROUNDING) + 2.0**-126


def generate_softmax(x: Tensor) -> Tensor:
    """What the generated rung is made from."""
    return torch.nn.functional.softmax(x, -1)


# For `onepass check`, which hands over a kernel's parameters by their names.


def check_softmax(x_g: Tensor) -> Tensor:
    return softmax(x_g)


def check_scale_mask_softmax(x_g: Tensor, mask_g: Tensor) -> Tensor:
    return scale_mask_softmax(x_g, mask_g)
