"""GELU + Add + LayerNorm: references and bounds are those of the LayerNorm ladder's fused rung."""

from torch import Tensor
from torch.nn import functional as F

from onepass.ladder.layer_norm.reference import (
    EPS,
    check_gelu_add_layer_norm,
    check_layer_norm,
    gelu_add_layer_norm,
    gelu_add_layer_norm_allowed,
)

__all__ = [
    "check_add",
    "check_gelu",
    "check_gelu_add_layer_norm",
    "check_gelu_then_add",
    "check_layer_norm",
    "check_with_sums",
    "gelu_add_layer_norm",
    "gelu_add_layer_norm_allowed",
    "generate_gelu_add_layer_norm",
]


def generate_gelu_add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What the generated rung is made from."""
    return F.layer_norm(F.gelu(x, approximate="tanh") + residual, x.shape[-1:], weight, bias, EPS)


def check_with_sums(x_g: Tensor, residual_g: Tensor, weight_g: Tensor, bias_g: Tensor) -> dict[str, Tensor]:
    """The sums are what is left in the memory it works in; nobody asks for them."""
    return {"y_g": gelu_add_layer_norm(x_g, residual_g, weight_g, bias_g)}


def check_gelu(x_g: Tensor) -> Tensor:
    return F.gelu(x_g, approximate="tanh")


def check_add(gelu_g: Tensor, residual_g: Tensor) -> Tensor:
    return gelu_g + residual_g


def check_gelu_then_add(x_g: Tensor, residual_g: Tensor) -> Tensor:
    return check_gelu(x_g) + residual_g
