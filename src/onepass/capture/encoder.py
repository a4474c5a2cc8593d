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


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    projections: tuple[Tensor, Tensor, Tensor] | None,
    is_causal: bool,
    layout_is_free: bool,
) -> tuple[Tensor, None]:
    """``F.multi_head_attention_forward`` without weights, in plain calls.

    Shapes: query (L, batch, width), key and value (S, batch, ...); result (L, batch, width). All of it runs
    batch first: where the operands are batch-first tensors transposed, as ``nn.MultiheadAttention`` makes
    them, nothing is copied.
    """
    operands = query, key, value
    weights = projections if in_proj_weight is None else in_proj_weight.chunk(3)
    biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
    if in_proj_weight is not None and query is key and query is value:
        packed = F.linear(query.transpose(0, 1), in_proj_weight, in_proj_bias)
        parts: Any = packed.reshape(*packed.shape[:2], 3, num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    else:
        projected = map(F.linear, (operand.transpose(0, 1) for operand in operands), weights or (), biases)
        parts = [part.reshape(*part.shape[:2], num_heads, -1).transpose(1, 2) for part in projected]
    if is_causal and key_padding_mask is None:
        mask = None
    else:
        is_causal, mask = False, _merged_mask(attn_mask, key_padding_mask, query.shape[1], query.dtype)
    mixed = attention_op()(*parts, mask, is_causal, None, False, True)
    result = F.linear(mixed.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias).transpose(0, 1)
    return result if layout_is_free else result.contiguous(), None


def _merged_mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, batch: int, dtype: torch.dtype
) -> Tensor | None:
    """Both masks as one that adds to the scores, (batch, heads, L, S) or what broadcasts to it."""
    added = [] if attn_mask is None else [_added(attn_mask, dtype)]
    if added and added[0].dim() == 3:
        added = [added[0].reshape(batch, -1, *added[0].shape[1:])]
    if key_padding_mask is not None:
        added.append(_added(key_padding_mask, dtype)[:, None, None, :])
    return sum(added[1:], start=added[0]) if added else None


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype is not torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
