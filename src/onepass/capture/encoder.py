"""Open the attention modules of ``torch.nn`` that a Dynamo graph holds as one call.

In inference ``nn.TransformerEncoderLayer`` is one opaque native call, which hides its memory-bound work; as a
node that calls a function of this module instead it is traced into linear maps, attention, additions, norms
and an activation.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from onepass.capture.attention_op import attention_op

# How a native call reads its mask: (L, L), (batch, L) of keys, or (batch, heads, L, L).
OF_POSITIONS, OF_KEYS = 0, 1


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
    *,
    is_causal: bool = False,
) -> Tensor:
    """``torch._transformer_encoder_layer_fwd`` in plain calls.

    Numerics: equal to rounding, NaN for a query with no key left included; GELU is the erf form on every
    device.
    """

    def attend(x: Tensor) -> Tensor:
        return self_attention(
            x, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type, is_causal=is_causal
        )

    def feed_forward(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    def norm_1(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(norm_1(src))
        return x + feed_forward(norm_2(x))
    x = norm_1(src + attend(src))
    return norm_2(x + feed_forward(x))


def self_attention(
    x: Tensor,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None,
    mask_type: int | None,
    *,
    is_causal: bool,
) -> Tensor:
    """The attention of ``torch._native_multi_head_attention`` with its projections, in plain calls."""
    batch, length, width = x.shape
    packed = F.linear(x, qkv_weight, qkv_bias).reshape(batch, length, 3, num_heads, width // num_heads)
    query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
    kept = None if mask is None else _kept(mask, mask_type)
    mixed = attention_op()(query, key, value, kept, is_causal, None, False, True)
    result = F.linear(mixed.transpose(1, 2).reshape(batch, length, width), proj_weight, proj_bias)
    return result if kept is None else result + _nan_without_keys(kept, result)


def native_self_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
    *,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """``torch._native_multi_head_attention`` of a tensor to itself, its weights not asked for."""
    result = self_attention(
        query, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type, is_causal=is_causal
    )
    return result, query.new_empty(0)


def _kept(mask: Tensor, mask_type: int | None) -> Tensor:
    """What a native mask lets through: zeros; a native call shuts out whatever is not zero, boolean or not.

    Broadcast dimensions are cut to size one first, so that the result is no larger than it must be.
    """
    broadcast = tuple(
        slice(0, 1) if isinstance(s, int) and s == 0 else slice(None) for s in mask.stride()[:-1]
    )
    kept = (mask[broadcast] if slice(0, 1) in broadcast else mask) == 0
    if mask_type == OF_POSITIONS:
        return kept[None, None]
    if mask_type == OF_KEYS:
        return kept[:, None, None, :]
    return kept


def _nan_without_keys(kept: Tensor, result: Tensor) -> Tensor:
    """NaN for a query that has no key left in some head, else zero: (batch, L, 1).

    Native softmax gives NaN there, attention zero. Added after the projection it falls into the residual's
    kernel.
    """
    has_keys = kept.any(-1).all(1)[..., None]
    zero = torch.zeros((), dtype=result.dtype, device=result.device)
    return torch.where(has_keys, zero, float("nan"))


class _AttentionAside(TorchFunctionMode):
    """Replaces PyTorch's attention by the opaque operator wherever it is called in Python."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return _set_aside(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _set_aside(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p != 0.0:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return attention_op()(query, key, value, attn_mask, is_causal, scale, enable_gqa, query.dim() == 4)


def multi_head_attention(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """``F.multi_head_attention_forward``, its attention set aside."""
    with _AttentionAside():
        return F.multi_head_attention_forward(*args, **kwargs)
