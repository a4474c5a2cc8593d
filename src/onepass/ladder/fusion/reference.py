"""GELU + Add + LayerNorm in float64, how far fp32 may be from it, and the PyTorch function."""

import torch
from torch import Tensor
from torch.nn import functional as F

EPS = 1e-5
ROUNDING = 2.0**-24
# GELU in fp32: the exponential and the quotient are good to a few units in the last place, and the exponent's own
# rounding counts as often as the exponent is large.
GELU_ROUNDINGS = 24


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each row less its mean, over its deviation. Shapes: [rows, cols], [cols], [cols]."""
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + EPS) * weight + bias


def gelu_add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LayerNorm of gelu(x) + residual, GELU in its tanh form."""
    return layer_norm(_gelu(x) + residual, weight, bias)


def gelu_add_layer_norm_allowed(
    chain: float, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """How far fp32 may be from it, with a centred variance and a longest chain of additions `chain` long.

    The mean is off by chain roundings of the mean magnitude; that shifts every element alike and enters the variance
    squared. The variance is off by chain roundings of itself; half of that is rstd's error. Before that the elements are
    off by GELU's and the addition's roundings.
    """
    gelu = _gelu(x)
    h = gelu + residual
    return _allowed(chain, h, weight, bias, ROUNDING * (GELU_ROUNDINGS * gelu.abs() + h.abs()))


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _allowed(chain: float, x: Tensor, weight: Tensor, bias: Tensor, off: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    deviation = torch.sqrt((centred * centred).mean(-1, keepdim=True) + EPS)
    mean_off = (chain + 3) * ROUNDING * x.abs().mean(-1, keepdim=True) + off.mean(-1, keepdim=True)
    each_off = mean_off + off + ROUNDING * (x.abs() + centred.abs())
    # Each centred element is off by at most `each_off`; 2 E[|d| off] + E[off^2] is what that does to the variance.
    variance_off = (2 * centred.abs() * (off + ROUNDING * centred.abs()) + each_off**2).mean(-1, keepdim=True)
    relative = variance_off / deviation**2 + (chain + 6) * ROUNDING
    normal = (centred / deviation).abs()
    return weight.abs() * (each_off / deviation + normal * (relative / 2 + 4 * ROUNDING)) + ROUNDING * (
        2 * bias.abs() + 2 * (weight * normal).abs()
    )


def generate_gelu_add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What the generated rung is made from."""
    return F.layer_norm(F.gelu(x, approximate="tanh") + residual, x.shape[-1:], weight, bias, EPS)


# For `onepass check`, which hands over a kernel's parameters by their names.


def check_layer_norm(x_g: Tensor, weight_g: Tensor, bias_g: Tensor) -> Tensor:
    return layer_norm(x_g, weight_g, bias_g)


def check_gelu_add_layer_norm(x_g: Tensor, residual_g: Tensor, weight_g: Tensor, bias_g: Tensor) -> Tensor:
    return gelu_add_layer_norm(x_g, residual_g, weight_g, bias_g)


def check_with_sums(x_g: Tensor, residual_g: Tensor, weight_g: Tensor, bias_g: Tensor) -> dict[str, Tensor]:
    """The sums are what is left in the memory it works in; nobody asks for them."""
    return {"y_g": gelu_add_layer_norm(x_g, residual_g, weight_g, bias_g)}
