"""Set attention aside in a Dynamo graph, before AOT dispatch opens it, and drop the masks proven needless.

Opened under AOT, attention with a mask that no fused kernel takes becomes two matrix products and a softmax
in fp32. Set aside it stays one call, ``onepass::attention``, which runs PyTorch's own attention on what the
tensors are at run time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import sympy
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from onepass.capture import encoder
from onepass.capture.attention_op import attention_op
from onepass.capture.grids import Grid, Size, name_of, read_grids, scalar_of, size_of, sizes_of
from onepass.capture.mask_edit import dense, erase_unused, lightened
from onepass.capture.masks import Proof, prove
from onepass.capture.writes import is_untouched, mark_written

MaskOutcome = Literal["none", "proven all true", "proven causal", "kept", "lightened", "made dense"]


@dataclass(frozen=True)
class SetAside:
    """What became of one attention call."""

    node: str
    set_aside: bool
    mask: MaskOutcome
    reason: str

    def __str__(self) -> str:
        return f"{self.node}: {'set aside' if self.set_aside else 'left'}, mask {self.mask}: {self.reason}"


def set_aside(gm: GraphModule, *, opaque: bool = True) -> list[SetAside]:
    """Rewrite every attention call of a Dynamo graph, in place, and say what became of each.

    With ``opaque=False`` masks are dropped and mended but attention stays PyTorch's, so that AOT opens it
    into the fused forward and backward pair: the form for graphs that need gradients.
    """
    mark_written(gm.graph)
    rewriting = _Rewriting(read_grids(gm.graph), opaque)
    outcomes = []
    for node in list(gm.graph.nodes):
        rewrite = _REWRITES.get(node.target) if node.op == "call_function" else None
        if rewrite is not None:
            outcomes.append(rewrite(node, rewriting))
        elif node.op == "call_function" and "attention" in name_of(node):
            outcomes.append(SetAside(node.name, False, "none", f"{name_of(node)} is left as it is"))
    gm.graph.lint()
    gm.recompile()
    return outcomes


@dataclass
class _Settled:
    """A mask as attention should get it."""

    mask: Node | None
    is_causal: bool
    outcome: MaskOutcome
    reason: str


@dataclass
class _Rewriting:
    """What the rewriting of one graph has at hand: its grids, and the masks settled already."""

    grids: dict[Node, Grid]
    opaque: bool
    settled: dict[tuple[Node, sympy.Expr, sympy.Expr], _Settled] = field(default_factory=dict)

    def settle(self, mask: Node, queries: Size, keys: Size) -> _Settled:
        """The mask proven away, mended or kept; new nodes go to the graph's insertion point."""
        place = mask, size_of(queries), size_of(keys)
        if place in self.settled:
            return self.settled[place]
        settled = self._settle(mask, queries, keys)
        if is_untouched(mask):  # one that is written to may differ at the next call
            self.settled[place] = settled
        return settled

    def _settle(self, mask: Node, queries: Size, keys: Size) -> _Settled:
        proof = prove(mask, self.grids, queries, keys)
        match proof:
            case Proof("all", reason):
                return _Settled(None, False, "proven all true", reason)
            case Proof("causal", reason):
                return _Settled(None, True, "proven causal", reason)
        lighter = lightened(mask, self.grids, queries, keys)
        mended = dense(lighter)
        if mended is not None:
            return _Settled(mended, False, "made dense", f"{proof.reason}; its last dimension was not dense")
        if lighter is not mask:
            shape = "x".join(map(str, sizes_of(lighter.meta["example_value"].shape)))
            return _Settled(lighter, False, "lightened", f"{proof.reason}; read as {shape}")
        return _Settled(mask, False, "kept", proof.reason)


# -------------------------------------------------------------------------------


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


def _rewrite_attention(node: Node, rewriting: _Rewriting) -> SetAside:
    args: Any = node.args
    options: Any = node.kwargs
    call = _Call(*args, **options)
    obstacle = _obstacle(node, call)
    if obstacle is not None:
        return SetAside(node.name, False, "none" if call.attn_mask is None else "kept", obstacle)
    with node.graph.inserting_before(node):
        settled = _settled(call, rewriting)
        new = replace(call, attn_mask=settled.mask, is_causal=settled.is_causal)
        if _heads_inner(node):
            new = replace(
                new, query=_uncopied(call.query), key=_uncopied(call.key), value=_uncopied(call.value)
            )
        why = _why_not_opaque(call, rewriting)
        _replace(node, _ungrouped(new), opaque=why is None)
    if call.attn_mask is not None:
        erase_unused(call.attn_mask, rewriting.grids)
    reason = settled.reason if why is None else f"{settled.reason}; {why}"
    return SetAside(node.name, why is None, settled.outcome, reason)


def _uncopied(node: Node) -> Node:
    """x of ``x.contiguous()``: attention takes any strides, and writes its result in the order of its query's."""
    source = (
        node.args[0] if name_of(node) == "contiguous" and len(node.args) == 1 and not node.kwargs else None
    )
    if not isinstance(source, Node) or not _is_plain(source) or not is_untouched(source):
        return node
    return source if source.meta["example_value"].stride(-1) == 1 else node


def _settled(call: _Call, rewriting: _Rewriting) -> _Settled:
    if call.attn_mask is None:
        return _Settled(None, call.is_causal, "none", "causal" if call.is_causal else "no mask")
    query, key = (tensor.meta["example_value"] for tensor in (call.query, call.key))
    return rewriting.settle(call.attn_mask, query.shape[-2], key.shape[-2])


def _why_not_opaque(call: _Call, rewriting: _Rewriting) -> str | None:
    if not rewriting.opaque:
        return "for AOT to open into forward and backward"
    if scalar_of(call.dropout_p) != 0.0:
        return "with dropout, whose mask forward and backward must share"
    return None


def _obstacle(node: Node, call: _Call) -> str | None:
    """Why the call must stay untouched, or None."""
    tensors = [node, call.query, call.key, call.value, *([] if call.attn_mask is None else [call.attn_mask])]
    if not all(map(_is_plain, tensors)):
        return "an operand is no plain dense tensor"
    if not isinstance(call.is_causal, bool) or not isinstance(call.enable_gqa, bool):
        return "is_causal or enable_gqa is decided at run time"
    if call.is_causal and call.attn_mask is not None:
        return "both a mask and is_causal are given, which PyTorch refuses"
    return None


def _is_plain(node: Any) -> bool:
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return type(value) is FakeTensor and value.layout is torch.strided


def _replace(old: Node, call: _Call, *, opaque: bool) -> None:
    tensors = call.query, call.key, call.value, call.attn_mask
    if opaque:
        options = call.is_causal, call.scale, call.enable_gqa, _heads_inner(old)
        new = old.graph.call_function(attention_op(), (*tensors, *options))
    else:
        named = {"scale": call.scale, "enable_gqa": call.enable_gqa}
        args = (*tensors, call.dropout_p, call.is_causal)
        new = old.graph.call_function(F.scaled_dot_product_attention, args, named)
    new.meta = dict(old.meta)
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def _ungrouped(call: _Call) -> _Call:
    """The call on keys and values as they were before each head was repeated for its group of queries.

    Only without a mask: no fused attention takes both a mask and groups.
    """
    key, value = _before_repeat(call.key), _before_repeat(call.value)
    if call.attn_mask is not None or call.enable_gqa or key is None or value is None:
        return call
    if sizes_of(key.meta["example_value"].shape)[1] != sizes_of(value.meta["example_value"].shape)[1]:
        return call
    return replace(call, key=key, value=value, enable_gqa=True)


def _before_repeat(node: Node) -> Node | None:
    """x of ``x[:, :, None].expand(…).reshape(…)`` or ``repeat_interleave`` over the heads, or None."""
    if name_of(node) == "repeat_interleave":
        return _before_interleave(node)
    chain = [node]
    for name in ("reshape", "expand", "getitem"):
        source = chain[-1].args[0] if name_of(chain[-1]) == name else None
        if not isinstance(source, Node) or not _is_plain(source) or not is_untouched(source):
            return None
        chain.append(source)
    (whole, spread, inserted, kept) = (sizes_of(step.meta["example_value"].shape) for step in chain)
    if len(kept) != 4 or len(spread) != 5 or inserted != (*kept[:2], sympy.Integer(1), *kept[2:]):
        return None
    groups = spread[2]
    fits = spread == (*kept[:2], groups, *kept[2:]) and whole == (kept[0], kept[1] * groups, *kept[2:])
    return chain[-1] if fits and _inserts_axis(chain[2]) else None


def _before_interleave(node: Node) -> Node | None:
    source, *given = node.args
    repeats = given[0] if given else node.kwargs.get("repeats")
    dim = given[1] if len(given) > 1 else node.kwargs.get("dim")
    if not isinstance(source, Node) or not _is_plain(source) or not is_untouched(source):
        return None
    return (
        source
        if type(repeats) is int and dim in (1, -3) and source.meta["example_value"].dim() == 4
        else None
    )


def _inserts_axis(node: Node) -> bool:
    items = node.args[1] if isinstance(node.args[1], tuple) else ()
    return items[:3] == (slice(None), slice(None), None) and all(item == slice(None) for item in items[3:])


def _heads_inner(node: Node) -> bool:
    """Whether the result may lie in memory with the heads inside the positions, as fused attention writes it.

    It may if the traced result does, or if nothing reads the layout before the result is written out densely.
    """
    value = node.meta["example_value"]
    if value.dim() < 3:
        return False
    heads, strides = sizes_of(value.shape)[-3], sizes_of(value.stride())
    return bool(sympy.expand(strides[-2] - heads * strides[-3]) == 0) or _layout_is_free(node)


_KEEP_LAYOUT = ("reshape", "transpose", "permute", "unsqueeze", "squeeze", "flatten")
_WRITE_DENSELY = ("contiguous", "linear")


def _layout_is_free(node: Node) -> bool:
    names = {user: name_of(user) for user in node.users}
    return all(
        name in _WRITE_DENSELY or (name in _KEEP_LAYOUT and _layout_is_free(user))
        for user, name in names.items()
    )


# ------------------------------------------------------------------------------------


def _rewrite_encoder_layer(node: Node, rewriting: _Rewriting) -> SetAside:
    return _open_native(node, rewriting, encoder.encoder_layer)


def _rewrite_native_attention(node: Node, rewriting: _Rewriting) -> SetAside:
    query, key, value = node.args[:3]
    named = _bound(encoder.native_self_attention, node)
    if query is not key or query is not value:
        return SetAside(node.name, False, "kept", "native attention of different tensors")
    if named["need_weights"] and _weights_are_used(node):
        return SetAside(node.name, False, "kept", "its attention weights are asked for")
    return _open_native(node, rewriting, encoder.native_self_attention)


def _open_native(node: Node, rewriting: _Rewriting, function: Callable[..., Any]) -> SetAside:
    """Call the function, which AOT traces into plain calls, in place of the native one."""
    named = _bound(function, node)
    source: Any = node.args[0]
    mask = named.pop("mask")
    if not _is_plain(source) or (mask is not None and not _is_plain(mask)):
        return SetAside(
            node.name, False, "none" if mask is None else "kept", "an operand is no plain dense tensor"
        )
    settled = _Settled(mask, False, "none" if mask is None else "kept", "native call opened")
    # A boolean mask shuts out where it is true, an additive one where it is not zero: only the latter reads
    # the same.
    if mask is not None and named["mask_type"] != encoder.OF_KEYS and _is_floating(mask):
        length = source.meta["example_value"].shape[1]
        proof = prove(mask, rewriting.grids, length, length)
        if proof.lets_through == "all":
            settled = _Settled(None, False, "proven all true", proof.reason)
        elif proof.lets_through == "causal":
            settled = _Settled(None, True, "proven causal", proof.reason)
    node.target, node.args = function, ()
    node.kwargs = {**named, "mask": settled.mask, "is_causal": settled.is_causal}
    if mask is not None:
        erase_unused(mask, rewriting.grids)
    return SetAside(node.name, True, settled.outcome, settled.reason)


def _is_floating(node: Node) -> bool:
    return bool(node.meta["example_value"].dtype.is_floating_point)


def _rewrite_multi_head(node: Node, rewriting: _Rewriting) -> SetAside:
    """Open ``F.multi_head_attention_forward`` with its attention set aside."""
    named = _bound(F.multi_head_attention_forward, node)
    mask: MaskOutcome = "none" if named["attn_mask"] is None and named["key_padding_mask"] is None else "kept"
    obstacle = _multi_head_obstacle(node, named, rewriting)
    if obstacle is not None:
        return SetAside(node.name, False, mask, obstacle)
    separate = tuple(named[f"{name}_proj_weight"] for name in "qkv")
    results = [user for user in node.users if user.args[1] == 0]
    node.target, node.args = encoder.multi_head_attention, (named["query"], named["key"], named["value"])
    node.kwargs = {
        **{name: named[name] for name in _MULTI_HEAD_OPTIONS},
        "in_proj_weight": None if named["use_separate_proj_weight"] else named["in_proj_weight"],
        "projections": separate if named["use_separate_proj_weight"] else None,
        "layout_is_free": all(map(_layout_is_free, results)),
    }
    return SetAside(node.name, True, mask, "multi_head_attention_forward opened")


_MULTI_HEAD_OPTIONS = (
    "num_heads",
    "in_proj_bias",
    "out_proj_weight",
    "out_proj_bias",
    "key_padding_mask",
    "attn_mask",
    "is_causal",
)


def _multi_head_obstacle(node: Node, named: dict[str, Any], rewriting: _Rewriting) -> str | None:
    if not rewriting.opaque or (named["training"] and scalar_of(named["dropout_p"]) != 0.0):
        return "for AOT to open into forward and backward"
    if not all(_is_plain(value) for value in named.values() if isinstance(value, Node) and _is_tensor(value)):
        return "an operand is no plain dense tensor"
    if (
        any(named[name] is not None for name in ("bias_k", "bias_v", "static_k", "static_v"))
        or named["add_zero_attn"]
    ):
        return "keys or values are added to or given"
    if named["query"].meta["example_value"].dim() != 3 or not isinstance(named["is_causal"], bool):
        return "no batch, or is_causal is decided at run time"
    if named["need_weights"] and _weights_are_used(node):
        return "its attention weights are asked for"
    return None


def _weights_are_used(node: Node) -> bool:
    return any(name_of(user) != "getitem" or (user.args[1] != 0 and user.users) for user in node.users)


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


def _bound(function: Callable[..., Any], node: Node) -> dict[str, Any]:
    """The arguments of a call by name, with defaults."""
    bound = inspect.signature(function).bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


_REWRITES: dict[Any, Callable[[Node, _Rewriting], SetAside]] = {
    F.scaled_dot_product_attention: _rewrite_attention,
    torch._transformer_encoder_layer_fwd: _rewrite_encoder_layer,
    torch._native_multi_head_attention: _rewrite_native_attention,
    F.multi_head_attention_forward: _rewrite_multi_head,
}
