"""Fused ops as functions: a few lines of PyTorch each, run as one kernel.

All take floating-point tensors of any rank that PyTorch's own ops take, on the CPU or on CUDA, and compute in fp32 inside,
float64 in float64. Called in eager mode they launch their kernel without Dynamo; inside ``torch.compile(…,
backend="onepass")`` they fuse with their neighbours. Where gradients are needed they run as PyTorch's own ops.

Those whose name ends in ``_quantized``, and `quantize`, give 8-bit numbers and the scales to multiply them with, of a row,
of blocks of neighbouring columns, or one that is given.

Raises: CannotFuse for dtypes and devices that have no kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.capture.direct import direct
from onepass.errors import BadQuantization

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "add_rms_norm_quantized",
    "bias_gelu",
    "cross_entropy",
    "geglu",
    "gelu",
    "gelu_add_layer_norm",
    "group_norm",
    "layer_norm",
    "layer_norm_quantized",
    "log_softmax",
    "quantize",
    "rms_norm",
    "rms_norm_quantized",
    "rotary",
    "silu",
    "softmax",
    "swiglu",
    "swiglu_quantized",
]

Scale = Tensor | Literal["row", "block"]

# The largest number of each 8-bit dtype; int8 leaves -128 out, so that a number and its negative have the same size.
_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
# What the largest value of a row counts as at least: zeros have a scale that can be divided by.
_LEAST = 1e-12


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
def cross_entropy(
    x: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """−log of the softmax of x at the target class, as `torch.nn.functional.cross_entropy` without class weights.

    Shapes: x (rows, classes) and target (rows,) of class numbers; the result is one value, or (rows,) with
    ``reduction="none"``.
    Numerics: exponentials and sums in fp32. Rows whose target is ``ignore_index`` count neither in a sum nor in a mean;
    with all of them ignored the mean is NaN, as in PyTorch.

    Example:
        >>> import torch, onepass.functional as OF
        >>> round(OF.cross_entropy(torch.zeros(2, 4), torch.tensor([1, 3])).item(), 4)
        1.3863
    """
    return F.cross_entropy(
        x, target, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )


@direct
def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x − mean) · rstd · weight + bias, with the mean and rstd of each group of neighbouring channels of each sample.

    Shapes: x (batch, channels, …), the channels a multiple of ``num_groups``; weight and bias (channels,).
    Numerics: the variance is the centred sum, in fp32.
    Source: arXiv:1803.08494.

    Example:
        >>> import torch, onepass.functional as OF
        >>> x = torch.randn(2, 4, 8)
        >>> torch.allclose(OF.group_norm(x, 2), torch.nn.functional.group_norm(x, 2), atol=1e-5)
        True
    """
    if x.dim() > 1:
        int(x.shape[1])  # a kernel is made for the number of channels, not for any
    return F.group_norm(x, num_groups, weight, bias, eps)


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


@direct
def quantize(
    x: Tensor,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale: Scale = "row",
    block: int = 128,
    power_of_two: bool = False,
) -> tuple[Tensor, Tensor]:
    """x as 8-bit numbers q and their scales: x ≈ q · scale.

    ``scale="row"``: one a row, its largest |x| over the dtype's largest number. ``scale="block"``: one for each ``block``
    neighbouring columns, which must divide the row. A tensor: the scale itself, which broadcasts against x, and what lies
    outside the dtype's range becomes its largest number. ``power_of_two`` rounds computed scales up to powers of two, as
    formats with 8-bit exponents as scales (ue8m0) want them.

    Shapes: x (…, cols); q as x; scale (…, 1) of rows, (…, cols ÷ block) of blocks, fp32.
    Numerics: to the nearest number, ties to even; int8 takes -127 … 127. Of zeros the scale is that of 1e-12; a NaN or an
    infinity spoils its own row or block.
    Raises: BadQuantization for another dtype or kind of scale, or a block that does not divide the row.
    Source: arXiv:2209.05433 (fp8), arXiv:2412.19437 (blocks of 1 × 128).

    Example:
        >>> import torch, onepass.functional as OF
        >>> q, scale = OF.quantize(torch.tensor([[1.0, -2.0]]), torch.int8)
        >>> (q * scale).tolist()[0][1], q.tolist()
        (-2.0, [[64, -127]])
    """
    return _quantized(x, dtype, scale, block, power_of_two)


@direct
def rms_norm_quantized(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale: Scale = "row",
    block: int = 128,
    power_of_two: bool = False,
) -> tuple[Tensor, Tensor]:
    """`rms_norm`, then `quantize`, in one kernel: q and scale.

    Shapes: as those two's.
    Numerics: what is quantised is the norm in fp32, not rounded to x's dtype before.
    Raises: as `quantize`.

    Example:
        >>> import torch, onepass.functional as OF
        >>> q, scale = OF.rms_norm_quantized(torch.full((2, 8), 3.0), (8,), eps=0.0)
        >>> q.dtype, (q.float() * scale)[0, 0].item()
        (torch.float8_e4m3fn, 1.0)
    """
    y = F.rms_norm(x.float(), normalized_shape, _float(weight), eps)
    return _quantized(y, dtype, scale, block, power_of_two)


@direct
def layer_norm_quantized(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale: Scale = "row",
    block: int = 128,
    power_of_two: bool = False,
) -> tuple[Tensor, Tensor]:
    """`layer_norm`, then `quantize`, in one kernel: q and scale.

    Shapes: as those two's.
    Numerics: what is quantised is the norm in fp32, not rounded to x's dtype before.
    Raises: as `quantize`.

    Example:
        >>> import torch, onepass.functional as OF
        >>> q, scale = OF.layer_norm_quantized(torch.randn(2, 256), (256,), scale="block")
        >>> q.shape, scale.shape
        (torch.Size([2, 256]), torch.Size([2, 2]))
    """
    y = F.layer_norm(x.float(), normalized_shape, _float(weight), _float(bias), eps)
    return _quantized(y, dtype, scale, block, power_of_two)


@direct
def add_rms_norm_quantized(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale: Scale = "row",
    block: int = 128,
    power_of_two: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """`add_rms_norm`, its norm then quantised, in one kernel: q, scale and x + residual.

    Shapes: as those of `add_rms_norm` and `quantize`.
    Numerics: the norm is of the sum before it is rounded to the result's dtype.
    Raises: as `quantize`.

    Example:
        >>> import torch, onepass.functional as OF
        >>> q, scale, total = OF.add_rms_norm_quantized(torch.ones(2, 4), torch.ones(2, 4), eps=0.0)
        >>> (q.float() * scale).sum().item(), total.sum().item()
        (8.0, 16.0)
    """
    total = x + residual
    y = F.rms_norm(total.float(), total.shape[-1:], _float(weight), eps)
    return *_quantized(y, dtype, scale, block, power_of_two), total


@direct
def swiglu_quantized(
    gate: Tensor,
    up: Tensor,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale: Scale = "row",
    block: int = 128,
    power_of_two: bool = False,
) -> tuple[Tensor, Tensor]:
    """`swiglu`, then `quantize`, in one kernel: q and scale. ``gate`` and ``up`` may be halves of one tensor.

    Shapes: as those two's.
    Numerics: what is quantised is the product in fp32, not rounded to the inputs' dtype before.
    Raises: as `quantize`.

    Example:
        >>> import torch, onepass.functional as OF
        >>> gate, up = torch.randn(2, 512).chunk(2, -1)
        >>> q, scale = OF.swiglu_quantized(gate, up, torch.int8, "block")
        >>> q.dtype, scale.shape
        (torch.int8, torch.Size([2, 2]))
    """
    return _quantized(F.silu(gate.float()) * up.float(), dtype, scale, block, power_of_two)


def _float(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.float()


def _quantized(
    y: Tensor, dtype: torch.dtype, scale: Scale, block: int, power_of_two: bool
) -> tuple[Tensor, Tensor]:
    if dtype not in _LARGEST:
        raise BadQuantization("dtype", dtype, "float8_e4m3fn, float8_e5m2 or int8")
    y = y.float()
    if isinstance(scale, Tensor):
        return _rounded(y / scale, dtype), scale
    if scale not in ("row", "block"):
        raise BadQuantization("scale", scale, "'row', 'block' or a tensor")
    cols = y.shape[-1] if y.dim() else 0
    if scale == "block" and (block < 1 or cols % block):
        raise BadQuantization("block", block, f"a divisor of the {cols} columns")
    parts = y.reshape(*y.shape[:-1], cols // block, block) if scale == "block" else y
    made = parts.abs().amax(-1, keepdim=True).clamp(min=_LEAST) / _LARGEST[dtype]
    if power_of_two:
        made = torch.exp2(torch.ceil(torch.log2(made)))
    q = _rounded(parts / made, dtype)
    return (q.flatten(-2), made.squeeze(-1)) if scale == "block" else (q, made)


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest numbers of an 8-bit dtype; the largest where x is beyond it."""
    largest = _LARGEST[dtype]
    return (x.round() if dtype is torch.int8 else x).clamp(-largest, largest).to(dtype)
