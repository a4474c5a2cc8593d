"""Modules that run as one kernel each. Their parameters are named as PyTorch's, so that state dicts fit both."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from onepass import functional as OF

__all__ = ["AddLayerNorm", "AddRMSNorm", "GELUAddLayerNorm", "LayerNorm", "RMSNorm"]


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` as one kernel; where gradients are needed, as PyTorch's own.

    Shapes: (…, *normalized_shape) → the same.
    Raises: CannotFuse for dtypes and devices that have no kernels.

    Example:
        >>> import torch, onepass.nn
        >>> norm = onepass.nn.LayerNorm(8)
        >>> norm.load_state_dict(torch.nn.LayerNorm(8).state_dict())
        <All keys matched successfully>
    """

    def forward(self, input: Tensor) -> Tensor:
        """The LayerNorm of a tensor."""
        return OF.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` as one kernel; where gradients are needed, as PyTorch's own.

    Shapes: (…, *normalized_shape) → the same.
    Raises: CannotFuse for dtypes and devices that have no kernels.

    Example:
        >>> import torch, onepass.nn
        >>> with torch.no_grad():
        ...     onepass.nn.RMSNorm(8, eps=0.0)(torch.full((1, 8), 3.0))[0, 0].item()
        1.0
    """

    def forward(self, x: Tensor) -> Tensor:
        """The RMSNorm of a tensor."""
        return OF.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class AddLayerNorm(nn.LayerNorm):
    """LayerNorm of x + residual over the last dimension, and the sum.

    Shapes: x and residual (…, size) → both results the same.
    Raises: CannotFuse for dtypes and devices that have no kernels.

    Example:
        >>> import torch, onepass.nn
        >>> with torch.no_grad():
        ...     y, total = onepass.nn.AddLayerNorm(4)(torch.ones(2, 4), torch.ones(2, 4))
        >>> total.sum().item()
        16.0
    """

    def __init__(self, size: int, eps: float = 1e-5, **options: Any) -> None:
        super().__init__(size, eps, **options)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The norm, and the sum."""
        return OF.add_layer_norm(x, residual, self.weight, self.bias, self.eps)


class AddRMSNorm(nn.RMSNorm):
    """RMSNorm of x + residual over the last dimension, and the sum.

    Shapes: x and residual (…, size) → both results the same.
    Raises: CannotFuse for dtypes and devices that have no kernels.

    Example:
        >>> import torch, onepass.nn
        >>> with torch.no_grad():
        ...     y, total = onepass.nn.AddRMSNorm(4)(torch.ones(2, 4), torch.ones(2, 4))
        >>> total.sum().item()
        16.0
    """

    def __init__(self, size: int, eps: float | None = None, **options: Any) -> None:
        super().__init__(size, eps, **options)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The norm, and the sum."""
        return OF.add_rms_norm(x, residual, self.weight, self.eps)


class GELUAddLayerNorm(nn.LayerNorm):
    """LayerNorm of gelu(x) + residual over the last dimension.

    Shapes: x and residual (…, size) → the same.
    Raises: CannotFuse for dtypes and devices that have no kernels.

    Example:
        >>> import torch, onepass.nn
        >>> with torch.no_grad():
        ...     onepass.nn.GELUAddLayerNorm(4)(torch.zeros(2, 4), torch.ones(2, 4)).sum().item()
        0.0
    """

    def __init__(self, size: int, eps: float = 1e-5, approximate: str = "none", **options: Any) -> None:
        super().__init__(size, eps, **options)
        self.approximate = approximate

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:  # type: ignore[override]
        """The norm."""
        return OF.gelu_add_layer_norm(x, residual, self.weight, self.bias, self.eps, self.approximate)
