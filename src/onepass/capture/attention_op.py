"""The operator ``onepass::attention``: PyTorch's own attention as one call that AOT does not open.

Its result has a layout that is fixed when the graph is captured, so that what is traced with fake tensors is
what runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    heads_inner: bool,
) -> Tensor:
    """PyTorch's own attention, its result dense in an order that is fixed beforehand.

    Shapes: query (..., heads, L, E), key (..., heads, S, E), value (..., heads, S, Ev); result (..., heads,
    L, Ev). With heads_inner the result lies in memory as (..., L, heads, Ev), which the fused kernels write
    and the following projection reads, so that nothing is copied.
    """
    if enable_gqa and _falls_to_math(query, key, value, attn_mask, is_causal, scale):
        key, value = (_repeated(tensor, query.shape[-3]) for tensor in (key, value))
        enable_gqa = False
    result = F.scaled_dot_product_attention(
        query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return _laid_out(result, heads_inner)


def _falls_to_math(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None
) -> bool:
    # Memory-efficient attention, the only fused one for fp32 and for masks, takes no grouped heads. The math
    # fallback repeats keys and values itself, so repeating them here costs nothing and leaves the choice open
    # again.
    choice = torch._fused_sdp_choice(
        query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=True
    )
    return bool(choice == SDPBackend.MATH.value)


def _repeated(tensor: Tensor, heads: int) -> Tensor:
    return tensor.repeat_interleave(heads // tensor.shape[-3], dim=-3)


def _laid_out(result: Tensor, heads_inner: bool) -> Tensor:
    dense = (result.transpose(-3, -2) if heads_inner else result).contiguous()
    strides = _dense_strides(dense.shape)
    if dense.stride() != strides:  # contiguous() leaves any stride to a dimension of size one
        dense = dense.as_strided(dense.shape, strides)
    return dense.transpose(-3, -2) if heads_inner else dense


def _dense_strides(shape: torch.Size) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(size, 1))
    return tuple(strides)


def _fake_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    heads_inner: bool,
) -> Tensor:
    outer = 3 if enable_gqa else 2
    batch = torch.broadcast_shapes(query.shape[:-outer], key.shape[:-outer])  # type: ignore[no-untyped-call]
    shape = [*batch, *query.shape[-outer:-1], value.shape[-1]]
    if not heads_inner:
        return query.new_empty(shape)
    shape[-3], shape[-2] = shape[-2], shape[-3]
    return query.new_empty(shape).transpose(-3, -2)


def attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    mask_needs_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and mask (empty if not asked for), by PyTorch's own attention.

    It runs once more for that: graphs that need gradients are better off with the attention AOT opens itself.
    """
    inputs = [query, key, value]
    if mask_needs_gradient and attn_mask is not None:
        inputs.append(attn_mask)
    with _autograd():
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        query_leaf, key_leaf, value_leaf, *mask_leaf = leaves
        mask = mask_leaf[0] if mask_leaf else attn_mask
        result = F.scaled_dot_product_attention(
            query_leaf, key_leaf, value_leaf, mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
        gradients = torch.autograd.grad(result, leaves, gradient)
    dense = [_like(found, tensor) for found, tensor in zip(gradients, inputs, strict=True)]
    return dense[0], dense[1], dense[2], dense[3] if len(dense) > 3 else query.new_empty(0)


@contextmanager
def _autograd() -> Iterator[None]:
    """Autograd inside an operator's kernel, where the dispatcher has shut it out."""
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradCPU", "AutogradCUDA", "ADInplaceOrView"):
        exclude = exclude.remove(getattr(torch._C.DispatchKey, key))
    with torch._C._ForceDispatchKeyGuard(include, exclude), torch.enable_grad():
        yield


def _like(found: Tensor, tensor: Tensor) -> Tensor:
    strides = torch.empty_like(tensor, device="meta").stride()
    if found.stride() == strides:
        return found
    return torch.empty_like(tensor).copy_(found)


def _fake_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mask = torch.empty_like(attn_mask) if rest[-1] and attn_mask is not None else query.new_empty(0)
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), mask


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, value, attn_mask, *options = inputs
    ctx.save_for_backward(query, key, value, attn_mask)
    ctx.options = options[:3]


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, attn_mask = ctx.saved_tensors
    mask_needs_gradient = ctx.needs_input_grad[3]
    gradients = torch.ops.onepass.attention_backward(
        gradient, query, key, value, attn_mask, *ctx.options, mask_needs_gradient
    )
    return (*gradients[:3], gradients[3] if mask_needs_gradient else None, None, None, None, None)


_OPTIONS = "Tensor? attn_mask, bool is_causal, float? scale, bool enable_gqa"
_SCHEMAS = (
    f"attention(Tensor query, Tensor key, Tensor value, {_OPTIONS}, bool heads_inner) -> Tensor",
    f"attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, {_OPTIONS}, "
    "bool mask_needs_gradient) -> (Tensor, Tensor, Tensor, Tensor)",
)


def attention_op() -> Callable[..., Tensor]:
    """The operator, defined when it is first needed."""
    _library()
    return torch.ops.onepass.attention.default


@functools.cache
def _library() -> torch.library.Library:
    library = torch.library.Library("onepass", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    kernels: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
        ("attention", attention, _fake_attention),
        ("attention_backward", attention_backward, _fake_backward),
    )
    for name, kernel, fake in kernels:
        library.impl(name, kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"onepass::{name}", fake, lib=library)
    torch.library.register_autograd("onepass::attention", _differentiate, setup_context=_save, lib=library)
    for device in ("cpu", "cuda"):
        autocast = functools.partial(_autocast, device)
        library.impl("attention", autocast, f"Autocast{device.upper()}")  # type: ignore[no-untyped-call]
    return library


def _autocast(device: str, *args: Any) -> Tensor:
    """What autocast does to PyTorch's own attention: operands of another floating dtype become its dtype."""
    dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        return attention_op()(*(_cast(arg, dtype) if isinstance(arg, Tensor) else arg for arg in args))


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    eligible = tensor.is_floating_point() and tensor.dtype is not torch.float64
    return tensor.to(dtype) if eligible else tensor
