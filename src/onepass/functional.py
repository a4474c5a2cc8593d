"""Fused ops as functions: a few lines of PyTorch each, run as one kernel.

All take tensors of any rank, of fp32, bf16 or fp16, on the CPU or on CUDA, and compute in fp32 inside. Called in eager
mode they launch their kernel without Dynamo; inside ``torch.compile(…, backend="onepass")`` they fuse with their
neighbours. Where gradients are needed they run as PyTorch's own ops.

Raises: CannotFuse for dtypes and devices that have no kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.capture.direct import direct

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "bias_gelu",
    "geglu",
    "gelu",
    "gelu_add_layer_norm",
    "layer_norm",
    "log_softmax",
    "rms_norm",
    "rotary",
    "silu",
    "softmax",
    "swiglu",
]


@direct
def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x − mean) · rstd · weight + bias over the last dimensions.

    Shapes: x (…, *normalized_shape); weight and bias normalized_shape.
    Numerics: the variance is the centred sum, in fp32.

    Example:
        >>> import torch, onepass.functional as OF
        >>> x = torch.randn(4, 64)
        >>> torch.allclose(OF.layer_norm(x, (64,)), torch.nn.functional.layer_norm(x, (64,)), atol=1e-6)
        True
    """
    return F.layer_norm(x, normalized_shape, weight, bias, eps)


@direct
def rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x · rstd · weight over the last dimensions, rstd = 1 / √(mean(x²) + eps).

    Shapes: x (…, *normalized_shape); weight normalized_shape.
    Numerics: the mean square in fp32; eps, unless given, is the machine epsilon of the dtype that PyTorch computes in:
    fp32's for fp32, bf16 and fp16.

    Example:
        >>> import torch, onepass.functional as OF
        >>> OF.rms_norm(torch.full((2, 8), 3.0), (8,), eps=0.0)[0, 0].item()
        1.0
    """
    return F.rms_norm(x, normalized_shape, weight, eps)


@direct
def softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """exp(x − max) ÷ its sum along a dimension.

    Shapes: any; the result has x's. ``dtype`` converts x first.
    Numerics: exponentials and their sum in fp32; a row of −∞ gives NaN, as in PyTorch.

    Example:
        >>> import torch, onepass.functional as OF
        >>> OF.softmax(torch.zeros(1, 4))
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    return F.softmax(x, dim, dtype=dtype)


@direct
def log_softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """x − max − log Σ exp(x − max) along a dimension.

    Shapes: any; the result has x's. ``dtype`` converts x first.
    Numerics: exponentials and their sum in fp32.

    Example:
        >>> import torch, onepass.functional as OF
        >>> round(OF.log_softmax(torch.zeros(1, 4))[0, 0].item(), 4)
        -1.3863
    """
    return F.log_softmax(x, dim, dtype=dtype)


@direct
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x · Φ(x); with ``approximate="tanh"`` the tanh form.

    Shapes: any.
    Numerics: relative error held in the negative tail.

    Example:
        >>> import torch, onepass.functional as OF
        >>> round(OF.gelu(torch.ones(1)).item(), 4)
        0.8413
    """
    return F.gelu(x, approximate=approximate)


@direct
def silu(x: Tensor) -> Tensor:
    """x · σ(x).

    Shapes: any.

    Example:
        >>> import torch, onepass.functional as OF
        >>> round(OF.silu(torch.ones(1)).item(), 4)
        0.7311
    """
    return F.silu(x)


@direct
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up.

    Shapes: gate and up broadcast against each other.

    Example:
        >>> import torch, onepass.functional as OF
        >>> OF.swiglu(torch.zeros(2, 4), torch.ones(2, 4)).sum().item()
        0.0
    """
    return F.silu(gate) * up


@direct
def geglu(gate: Tensor, up: Tensor, approximate: str = "none") -> Tensor:
    """gelu(gate) · up.

    Shapes: gate and up broadcast against each other.

    Example:
        >>> import torch, onepass.functional as OF
        >>> OF.geglu(torch.zeros(2, 4), torch.ones(2, 4)).sum().item()
        0.0
    """
    return F.gelu(gate, approximate=approximate) * up


@direct
def bias_gelu(x: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    """gelu(x + bias).

    Shapes: x (…, cols); bias (cols,).

    Example:
        >>> import torch, onepass.functional as OF
        >>> OF.bias_gelu(torch.zeros(2, 4), torch.zeros(4)).sum().item()
        0.0
    """
    return F.gelu(x + bias, approximate=approximate)


@direct
def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """The LayerNorm of x + residual over the last dimension, and the sum: the next residual.

    Shapes: x and residual (…, cols); weight and bias (cols,); both results (…, cols).
    Numerics: the norm is of the sum before it is rounded to the result's dtype.

    Example:
        >>> import torch, onepass.functional as OF
        >>> y, total = OF.add_layer_norm(torch.ones(2, 4), torch.ones(2, 4))
        >>> y.sum().item(), total.sum().item()
        (0.0, 16.0)
    """
    total = x + residual
    return F.layer_norm(total, total.shape[-1:], weight, bias, eps), total


@direct
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float | None = None
) -> tuple[Tensor, Tensor]:
    """The RMSNorm of x + residual over the last dimension, and the sum: the next residual.

    Shapes: x and residual (…, cols); weight (cols,); both results (…, cols).
    Numerics: the norm is of the sum before it is rounded to the result's dtype.

    Example:
        >>> import torch, onepass.functional as OF
        >>> y, total = OF.add_rms_norm(torch.ones(2, 4), torch.ones(2, 4), eps=0.0)
        >>> y.sum().item(), total.sum().item()
        (8.0, 16.0)
    """
    total = x + residual
    return F.rms_norm(total, total.shape[-1:], weight, eps), total


@direct
def gelu_add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    approximate: str = "none",
) -> Tensor:
    """The LayerNorm of gelu(x) + residual over the last dimension.

    Shapes: x and residual (…, cols); weight and bias (cols,).

    Example:
        >>> import torch, onepass.functional as OF
        >>> OF.gelu_add_layer_norm(torch.zeros(2, 4), torch.ones(2, 4)).sum().item()
        0.0
    """
    y = F.gelu(x, approximate=approximate) + residual
    return F.layer_norm(y, y.shape[-1:], weight, bias, eps)


@direct
def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding with the halves of a head as pairs: x · cos + [−x₂, x₁] · sin.

    Shapes: x (…, length, head size); cos and sin broadcast against it.
    Source: arXiv:2104.09864.

    Example:
        >>> import torch, onepass.functional as OF
        >>> x = torch.randn(2, 3, 5, 8)
        >>> torch.equal(OF.rotary(x, torch.ones(5, 8), torch.zeros(5, 8)), x)
        True
    """
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
