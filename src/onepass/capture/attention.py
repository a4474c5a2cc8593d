"""Set attention aside in a Dynamo graph, before AOT dispatch opens it, and drop the masks that are proven to be needless.

Opened under AOT, attention with a mask that no fused kernel takes becomes two matrix products and a softmax in fp32. Set
aside it stays one call, ``onepass::attention``, which runs PyTorch's own attention on the tensors as they are at run time.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import sympy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node

from onepass.capture.masks import Grid, Proof, ancestors, prove, read_grids, scalar_of, sizes_of

MaskOutcome = Literal["none", "proven all true", "proven causal", "kept", "made contiguous"]


@dataclass(frozen=True)
class SetAside:
    """What became of one attention call."""

    node: str
    opaque: bool
    mask: MaskOutcome
    reason: str

    def __str__(self) -> str:
        return f"{self.node}: {'set aside' if self.opaque else 'left'}, mask {self.mask}: {self.reason}"


def set_aside(gm: GraphModule, *, opaque: bool = True) -> list[SetAside]:
    """Rewrite every attention call of a Dynamo graph, in place, and say what became of each.

    With ``opaque=False`` the masks are dropped or mended and the calls stay PyTorch's, so that AOT opens them into the
    fused forward and backward pair: the form for graphs that need gradients.
    """
    outcomes = []
    grids = read_grids(gm.graph)
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target in _TARGETS:
            outcomes.append(_rewrite(node, grids, opaque))
        elif _looks_like_attention(node):
            outcomes.append(
                SetAside(node.name, False, "none", f"{node.target} is not the attention call known here")
            )
    gm.graph.lint()
    gm.recompile()
    return outcomes


_TARGETS = (F.scaled_dot_product_attention, torch._C._nn.scaled_dot_product_attention)


def _looks_like_attention(node: Node) -> bool:
    return node.op == "call_function" and "attention" in getattr(node.target, "__name__", str(node.target))


@dataclass(frozen=True)
class _Call:
    """The arguments of one attention call, in PyTorch's own order."""

    query: Node
    key: Node
    value: Node
    attn_mask: Node | None = None
    dropout_p: Any = 0.0
    is_causal: Any = False
    scale: Any = None
    enable_gqa: Any = False


def _rewrite(node: Node, grids: Mapping[Node, Grid], opaque: bool) -> SetAside:
    call = _Call(*node.args, **node.kwargs)
    obstacle = _obstacle(node, call)
    if obstacle is not None:
        return SetAside(node.name, False, "none" if call.attn_mask is None else "kept", obstacle)
    with node.graph.inserting_before(node):
        proven, mask, reason = _settle_mask(call, grids)
        dropout = (
            "dropout: forward and backward must share its mask" if _number(call.dropout_p) != 0.0 else None
        )
        if not opaque or dropout is not None:
            options = {"scale": proven.scale, "enable_gqa": proven.enable_gqa}
            _replace(node, F.scaled_dot_product_attention, _torch_arguments(proven), options)
            why = dropout or "left for AOT to open into a forward and backward pair"
            outcome = SetAside(node.name, False, mask, f"{reason}; {why}")
        else:
            _replace(node, attention_op(), _own_arguments(proven, _heads_inner(node)), {})
            outcome = SetAside(node.name, True, mask, reason)
    if call.attn_mask is not None:
        _erase_unused(call.attn_mask, grids)
    return outcome


def _obstacle(node: Node, call: _Call) -> str | None:
    """Why the call must stay untouched, or None."""
    tensors = [call.query, call.key, call.value, *([] if call.attn_mask is None else [call.attn_mask])]
    values = [
        tensor.meta.get("example_value") if isinstance(tensor, Node) else None for tensor in (node, *tensors)
    ]
    if not all(type(value) is FakeTensor for value in values):
        return "an operand is no plain tensor (nested, subclass or not traced)"
    if any(value.layout is not torch.strided for value in values):
        return "an operand is not strided"
    if not isinstance(call.is_causal, bool) or not isinstance(call.enable_gqa, bool):
        return "is_causal or enable_gqa is decided at run time"
    if call.is_causal and call.attn_mask is not None:
        return "both a mask and is_causal given: PyTorch's own error stands"
    return None


def _number(raw: Any) -> Any:
    value = scalar_of(raw)
    return value if isinstance(value, int | float) else float("nan")


def _settle_mask(call: _Call, grids: Mapping[Node, Grid]) -> tuple[_Call, MaskOutcome, str]:
    """The call with its mask proven away, mended or kept."""
    if call.attn_mask is None:
        return call, "none", "no mask" if not call.is_causal else "causal, no mask"
    query, key = (node.meta["example_value"] for node in (call.query, call.key))
    proof = prove(call.attn_mask, grids, query.shape[-2], key.shape[-2])
    match proof:
        case Proof("all", reason):
            return replace(call, attn_mask=None), "proven all true", reason
        case Proof("causal", reason):
            return replace(call, attn_mask=None, is_causal=True), "proven causal", reason
    mended = _dense_mask(call.attn_mask)
    if mended is None:
        return call, "kept", proof.reason
    return (
        replace(call, attn_mask=mended),
        "made contiguous",
        f"{proof.reason}; its last dimension had stride 0",
    )


def _dense_mask(mask: Node) -> Node | None:
    """The mask with a dense last dimension, which fused attention asks for; None if it has one already.

    Other broadcast dimensions stay broadcast: only what must be is written out.
    """
    value = mask.meta["example_value"]
    if value.dim() == 0 or not _equals(value.stride(-1), 0) or _equals(value.shape[-1], 1):
        return None
    broadcast = [_equals(stride, 0) for stride in value.stride()[:-1]]
    cut = tuple(slice(0, 1) if is_broadcast else slice(None) for is_broadcast in broadcast)
    narrow = _insert(mask.graph, "call_function", operator.getitem, mask, cut) if any(broadcast) else mask
    dense = _insert(mask.graph, "call_method", "contiguous", narrow)
    return _insert(mask.graph, "call_method", "expand_as", dense, mask) if any(broadcast) else dense


def _equals(size: int | torch.SymInt, number: int) -> bool:
    return bool(sizes_of((size,))[0] == number)


def _insert(graph: Graph, op: str, target: str | Callable[..., Any], *args: Any) -> Node:
    """A new node at the graph's insertion point, with the fake tensor it yields."""
    node = graph.create_node(op, target, args)
    values = [arg.meta["example_value"] if isinstance(arg, Node) else arg for arg in args]
    with values[0].fake_mode:
        run = getattr(torch.Tensor, target) if isinstance(target, str) else target
        node.meta["example_value"] = run(*values)
    return node


def _replace(old: Node, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    new = old.graph.call_function(target, args, kwargs)
    new.meta = dict(old.meta)
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def _own_arguments(call: _Call, heads_inner: bool) -> tuple[Any, ...]:
    named = call.query, call.key, call.value, call.attn_mask, call.is_causal, call.scale, call.enable_gqa
    return (*named, heads_inner)


def _torch_arguments(call: _Call) -> tuple[Any, ...]:
    return call.query, call.key, call.value, call.attn_mask, call.dropout_p, call.is_causal


def _heads_inner(node: Node) -> bool:
    """Whether the result may lie in memory with the heads inside the positions, as fused attention writes it.

    It may if eager's does, or if nothing reads the layout before the result is written out densely.
    """
    value = node.meta["example_value"]
    if value.dim() < 3:
        return False
    heads, stride = sizes_of(value.shape)[-3], sizes_of(value.stride())
    return bool(sympy.expand(stride[-2] - heads * stride[-3]) == 0) or _layout_is_free(node)


_KEEP_LAYOUT = ("reshape", "transpose", "permute", "unsqueeze", "squeeze", "flatten")
_WRITE_DENSELY = ("contiguous", "linear")


def _layout_is_free(node: Node) -> bool:
    names = {user: getattr(user.target, "__name__", user.target) for user in node.users}
    return all(
        name in _WRITE_DENSELY or (name in _KEEP_LAYOUT and _layout_is_free(user))
        for user, name in names.items()
    )


def _erase_unused(mask: Node, grids: Mapping[Node, Grid]) -> None:
    """Remove the arithmetic that built the mask, as far as nothing else uses it."""
    for node in reversed(ancestors(mask)):
        if node in grids and not node.users:
            node.graph.erase_node(node)


# --- the opaque call --------------------------------------------------------------------------------------------------


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

    Shapes: query (..., heads, L, E), key (..., heads, S, E), value (..., heads, S, Ev); result (..., heads, L, Ev).
    With heads_inner the result lies in memory as (..., L, heads, Ev), which the fused kernels write and the following
    projection reads, so that nothing is copied.
    """
    result = F.scaled_dot_product_attention(
        query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )
    dense = (result.transpose(-3, -2) if heads_inner else result).contiguous()
    strides = _dense_strides(dense.shape)
    if dense.stride() != strides:  # a dimension of size one may have any stride
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
    heads = query.shape[-3:-2]
    batch = query.shape[:-3] if enable_gqa else query.shape[:-2]
    others = key.shape[: len(batch)]
    shape = [
        *torch.broadcast_shapes(batch, others),
        *(heads if enable_gqa else ()),
        query.shape[-2],
        value.shape[-1],
    ]
    if not heads_inner:
        return query.new_empty(shape)
    shape[-3], shape[-2] = shape[-2], shape[-3]
    return query.new_empty(shape).transpose(-3, -2)


@functools.cache
def attention_op() -> Callable[..., Tensor]:
    """The operator ``onepass::attention``, defined when it is first needed."""
    return _define()[1]


@functools.cache
def _define() -> tuple[torch.library.Library, Callable[..., Tensor]]:
    library = torch.library.Library("onepass", "FRAGMENT")
    library.define(
        "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float? scale, "
        "bool enable_gqa, bool heads_inner) -> Tensor",
        tags=(torch.Tag.pt2_compliant_tag,),
    )
    library.impl("attention", attention, "CompositeExplicitAutograd")
    torch.library.register_fake("onepass::attention", _fake_attention, lib=library)
    for device in ("cpu", "cuda"):
        library.impl("attention", functools.partial(_autocast_attention, device), f"Autocast{device.upper()}")
    return library, torch.ops.onepass.attention.default


def _autocast_attention(device: str, *args: Any) -> Tensor:
    """What autocast does to PyTorch's own attention: floating operands become the autocast dtype."""
    dtype = torch.get_autocast_dtype(device)
    cast = [_autocast(arg, dtype) if isinstance(arg, Tensor) else arg for arg in args]
    with torch.autocast(device, enabled=False):
        return attention_op()(*cast)


def _autocast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    eligible = tensor.is_floating_point() and tensor.dtype is not torch.float64
    return tensor.to(dtype) if eligible else tensor
