"""Ops made of others: each row expands one ATen op into element-wise ops and reductions."""

from __future__ import annotations

from typing import Any

import torch

from onepass.ops.opdef import Builder, CompositeDef, Value

_TORCH = "PyTorch operator reference"


def all_dims(x: Value, dim: Any) -> list[int]:
    rank = len(x.shape)
    dims = list(range(rank)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    return sorted(d % rank for d in dims) if rank else []


def add(b: Builder, self: Value, other: Value, alpha: Any = 1) -> Value:
    return b.map("add", self, other if alpha == 1 else b.map("mul", other, alpha))


def sub(b: Builder, self: Value, other: Value, alpha: Any = 1) -> Value:
    return b.map("sub", self, other if alpha == 1 else b.map("mul", other, alpha))


def rsub(b: Builder, self: Value, other: Value, alpha: Any = 1) -> Value:
    return b.map("sub", other, self if alpha == 1 else b.map("mul", self, alpha))


def gelu(b: Builder, self: Value, approximate: str = "none") -> Value:
    return b.map("gelu_tanh" if approximate == "tanh" else "gelu_erf", self)


def clamp(b: Builder, self: Value, min: Any = None, max: Any = None) -> Value:
    low = self if min is None else b.map("maximum", self, min)
    return low if max is None else b.map("minimum", low, max)


def hardtanh(b: Builder, self: Value, min_val: Any = -1, max_val: Any = 1) -> Value:
    return clamp(b, self, min_val, max_val)


def leaky_relu(b: Builder, self: Value, negative_slope: Any = 0.01) -> Value:
    return b.map("where", b.map("gt", self, 0), self, b.map("mul", self, negative_slope))


def elu(b: Builder, self: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    scaled = self if input_scale == 1 else b.map("mul", self, input_scale)
    negative = b.map("mul", b.map("expm1", scaled), alpha)
    y = b.map("where", b.map("gt", self, 0), self, negative)
    return y if scale == 1 else b.map("mul", y, scale)


def hardsigmoid(b: Builder, self: Value) -> Value:
    return b.map("div", clamp(b, b.map("add", self, 3), 0, 6), 6)


def hardswish(b: Builder, self: Value) -> Value:
    return b.map("div", b.map("mul", self, clamp(b, b.map("add", self, 3), 0, 6)), 6)


def softplus(b: Builder, self: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    scaled = self if beta == 1 else b.map("mul", self, beta)
    soft = b.map("softplus", scaled)
    soft = soft if beta == 1 else b.map("div", soft, beta)
    return b.map("where", b.map("gt", scaled, threshold), self, soft)


def addcmul(b: Builder, self: Value, tensor1: Value, tensor2: Value, value: Any = 1) -> Value:
    scaled = tensor1 if value == 1 else b.map("mul", tensor1, value)
    return b.map("add", self, b.map("mul", scaled, tensor2))


def addcdiv(b: Builder, self: Value, tensor1: Value, tensor2: Value, value: Any = 1) -> Value:
    scaled = tensor1 if value == 1 else b.map("mul", tensor1, value)
    return b.map("add", self, b.map("div", scaled, tensor2))


def lerp(b: Builder, self: Value, end: Value, weight: Any) -> Value:
    """From the nearer end, as PyTorch does it: at weight 1 the value is ``end``, however large ``self`` is."""
    way = b.map("sub", end, self)
    if isinstance(weight, (int, float)):
        if abs(weight) < 0.5:
            return b.map("add", self, b.map("mul", way, weight))
        return b.map("sub", end, b.map("mul", way, 1 - weight))
    from_self = b.map("add", self, b.map("mul", way, weight))
    from_end = b.map("sub", end, b.map("mul", way, b.map("sub", 1, weight)))
    return b.map("where", b.map("lt", b.map("abs", weight), 0.5), from_self, from_end)


def masked_fill(b: Builder, self: Value, mask: Value, value: Any) -> Value:
    return b.map("where", mask, value, self)


def moments(b: Builder, x: Value, dims: list[int], correction: Any) -> tuple[Value, Value, Value]:
    """Mean, centred x and variance, the statistics with kept dimensions."""
    n = b.count(x, dims)
    average = b.map("div", b.reduce("sum", x, dims, True), n)
    centred = b.map("sub", x, average)
    squares = b.reduce("sum", b.map("square", centred), dims, True)
    if correction and not isinstance(n, int):
        b.refuse("data-dependent shape: variance correction over a symbolic size")
    divisor = max(n - correction, 0) if correction else n
    return average, centred, b.map("div", squares, divisor)


def put_back(b: Builder, x: Value, dims: list[int], keepdim: bool) -> Value:
    return x if keepdim else b.squeeze(x, dims)


def layer_norm(
    b: Builder, input: Value, normalized_shape: Any, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    rank = len(input.shape)
    dims = list(range(rank - len(normalized_shape), rank))
    average, centred, variance = moments(b, b.floating(input), dims, 0)
    rstd = b.map("rsqrt", b.map("add", variance, eps))
    y = b.map("mul", centred, rstd)
    y = y if weight is None else b.map("mul", y, weight)
    return (y if bias is None else b.map("add", y, bias)), average, rstd


def rms_norm(
    b: Builder, input: Value, normalized_shape: Any, weight: Value | None, eps: float | None
) -> tuple[Value, Value]:
    rank = len(input.shape)
    dims = list(range(rank - len(normalized_shape), rank))
    x = b.floating(input)
    squares = b.map("div", b.reduce("sum", b.map("square", x), dims, True), b.count(x, dims))
    rstd = b.map("rsqrt", b.map("add", squares, 2.0**-23 if eps is None else eps))
    y = b.map("mul", x, rstd)
    return (y if weight is None else b.map("mul", y, weight)), rstd


def group_norm(
    b: Builder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    inside = list(input.shape[2:])
    shape = [N, group, C // group, *inside]
    b.work_in(shape)
    x = b.floating(b.view(input, shape))
    dims = list(range(2, len(shape)))
    average, centred, variance = moments(b, x, dims, 0)
    rstd = b.map("rsqrt", b.map("add", variance, eps))
    y = b.map("mul", centred, rstd)
    per_channel = [group, C // group, *(1 for _ in inside)]
    y = y if weight is None else b.map("mul", y, b.view(weight, per_channel))
    y = y if bias is None else b.map("add", y, b.view(bias, per_channel))
    return y, b.squeeze(average, dims), b.squeeze(rstd, dims)


def _per_channel(b: Builder, x: Value, input: Value) -> Value:
    return b.view(x, [x.shape[0], *(1 for _ in input.shape[2:])])


def _affine(b: Builder, y: Value, input: Value, weight: Value | None, bias: Value | None) -> Value:
    y = y if weight is None else b.map("mul", y, _per_channel(b, weight, input))
    return y if bias is None else b.map("add", y, _per_channel(b, bias, input))


def batch_norm_by_statistics(
    b: Builder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """And nothing kept for backward: two tensors of no elements."""
    rstd = b.map("rsqrt", b.map("add", _per_channel(b, running_var, input), eps))
    y = b.map("mul", b.map("sub", input, _per_channel(b, running_mean, input)), rstd)
    nothing = b.constant((0,), 0.0, torch.float32)
    return _affine(b, y, input, weight, bias), nothing, nothing


def batch_norm_of_batch(
    b: Builder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    dims = [d for d in range(len(input.shape)) if d != 1]
    average, centred, variance = moments(b, b.floating(input), dims, 0)
    rstd = b.map("rsqrt", b.map("add", variance, eps))
    y = _affine(b, b.map("mul", centred, rstd), input, weight, bias)
    return y, b.squeeze(average, dims), b.squeeze(rstd, dims)


def batch_norm_with_update(
    b: Builder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """And the statistics of the batch, and the running ones after it."""
    if not training:
        b.refuse("unsupported op: running statistics that nothing updates, returned")
    dims = [d for d in range(len(input.shape)) if d != 1]
    average, centred, variance = moments(b, b.floating(input), dims, 0)
    rstd = b.map("rsqrt", b.map("add", variance, eps))
    y = _affine(b, b.map("mul", centred, rstd), input, weight, bias)
    n = b.count(input, dims)
    if not isinstance(n, int):
        b.refuse("data-dependent shape: variance correction over a symbolic size")
    unbiased = b.map("mul", variance, n / max(n - 1, 1)) if n > 1 else b.map("div", variance, 0.0)
    after = [
        b.squeeze(_moved(b, _per_channel(b, old, input), new, momentum), dims)
        for old, new in ((running_mean, average), (running_var, unbiased))
    ]
    return y, b.squeeze(average, dims), b.squeeze(rstd, dims), *after


def _moved(b: Builder, old: Value, new: Value, momentum: float) -> Value:
    return b.map("add", b.map("mul", new, momentum), b.map("mul", old, 1 - momentum))


def batch_norm_updating(
    b: Builder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    y, average, rstd, *after = batch_norm_with_update(
        b, input, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return y, average, rstd, None, *after  # the fourth is memory that cuDNN wants


def softmax(b: Builder, self: Value, dim: int, half_to_float: bool = False) -> Value:
    dims = all_dims(self, dim)
    largest = b.reduce("max", b.floating(self), dims, True)
    e = b.map("exp", b.map("sub", self, largest))
    return b.map("mul", e, b.map("reciprocal", b.reduce("sum", e, dims, True)))


def log_softmax(b: Builder, self: Value, dim: int, half_to_float: bool = False) -> Value:
    dims = all_dims(self, dim)
    centred = b.map("sub", b.floating(self), b.reduce("max", self, dims, True))
    total = b.reduce("sum", b.map("exp", centred), dims, True)
    return b.map("sub", centred, b.map("log", total))


def to_copy(b: Builder, self: Value, dtype: Any = None, **layout: Any) -> Value:
    return b.map("copy", self) if dtype is None else b.cast(self, dtype)


def convert(b: Builder, a: Value, dtype: Any) -> Value:
    return b.cast(a, dtype)


def clone(b: Builder, self: Value, memory_format: Any = None) -> Value:
    return b.map("copy", self)


def dropout(b: Builder, input: Value, p: float, train: bool | None) -> tuple[Value, Value]:
    if train is not False and p != 0:
        b.refuse("random: dropout draws numbers")
    return b.map("copy", input), b.constant(input.shape, True, torch.bool)


def full(b: Builder, size: Any, fill_value: Any, dtype: Any = None, **layout: Any) -> Value:
    inferred = (
        torch.bool if isinstance(fill_value, bool) else torch.int64 if isinstance(fill_value, int) else None
    )
    return b.constant(size, fill_value, dtype or inferred or torch.get_default_dtype())


def _filled(value: Any) -> Any:
    def expand(b: Builder, size: Any, dtype: Any = None, **layout: Any) -> Value:
        return b.constant(size, value, dtype or torch.get_default_dtype())

    return expand


def _filled_like(value: Any) -> Any:
    def expand(b: Builder, self: Any, size: Any = None, dtype: Any = None, **layout: Any) -> Value:
        return b.constant(self.shape if size is None else size, value, dtype or self.torch_dtype)

    return expand


def full_like(b: Builder, self: Any, fill_value: Any, dtype: Any = None, **layout: Any) -> Value:
    return b.constant(self.shape, fill_value, dtype or self.torch_dtype)


def new_full(b: Builder, self: Any, size: Any, fill_value: Any, dtype: Any = None, **layout: Any) -> Value:
    return b.constant(size, fill_value, dtype or self.torch_dtype)


def scalar_tensor(b: Builder, s: Any, dtype: Any = None, **layout: Any) -> Value:
    return b.constant((), s, dtype or torch.get_default_dtype())


def arange(b: Builder, end: Any, start: Any = 0, step: Any = 1, dtype: Any = None, **layout: Any) -> Value:
    if any(isinstance(x, float) for x in (start, end, step)) or (
        dtype is not None and dtype.is_floating_point
    ):
        b.refuse("dtype: floating-point arange")
    if step != 1:
        b.refuse("unsupported op: arange with a step")
    return b.iota(end - start, start, step)


def embedding(b: Builder, weight: Value, indices: Value, padding_idx: int = -1, *_: Any, **__: Any) -> Value:
    return b.gather(weight, indices)


def repeat(b: Builder, self: Value, repeats: list[int]) -> Value:
    sizes = [*(1 for _ in repeats[len(self.shape) :]), *self.shape]
    b.work_in([n for times, size in zip(repeats, sizes, strict=True) for n in (times, size)])
    return b.map("copy", b.view(self, [n for size in sizes for n in (1, size)]))


def concatenate(b: Builder, tensors: list[Value], dim: int = 0) -> Value:
    return b.concatenate(tensors, dim)


MADE_OF_OTHERS: tuple[CompositeDef, ...] = (
    CompositeDef("add", ("add.Tensor", "add.Scalar"), add, "x + alpha y", _TORCH),
    CompositeDef("sub", ("sub.Tensor", "sub.Scalar"), sub, "x - alpha y", _TORCH),
    CompositeDef("rsub", ("rsub.Tensor", "rsub.Scalar"), rsub, "y - alpha x", _TORCH),
    CompositeDef("gelu", ("gelu.default",), gelu, "GELU, erf or tanh form", "arXiv:1606.08415"),
    CompositeDef("clamp", ("clamp.default", "clamp.Tensor"), clamp, "min(max(x, a), b)", _TORCH),
    CompositeDef("hardtanh", ("hardtanh.default",), hardtanh, "min(max(x, -1), 1), or other ends", _TORCH),
    CompositeDef("clamp_min", ("clamp_min.default", "clamp_min.Tensor"), clamp, "max(x, a)", _TORCH),
    CompositeDef("clamp_max", ("clamp_max.default", "clamp_max.Tensor"), clamp, "min(x, b)", _TORCH),
    CompositeDef("leaky_relu", ("leaky_relu.default",), leaky_relu, "x, or slope x below zero", _TORCH),
    CompositeDef("elu", ("elu.default",), elu, "x, or alpha (exp x - 1) below zero", "arXiv:1511.07289"),
    CompositeDef("hardsigmoid", ("hardsigmoid.default",), hardsigmoid, "min(max(x + 3, 0), 6) / 6", _TORCH),
    CompositeDef("hardswish", ("hardswish.default",), hardswish, "x hardsigmoid(x)", "arXiv:1905.02244"),
    CompositeDef("softplus", ("softplus.default",), softplus, "log(1 + exp(beta x)) / beta", _TORCH),
    CompositeDef("addcmul", ("addcmul.default",), addcmul, "x + value y z", _TORCH),
    CompositeDef("addcdiv", ("addcdiv.default",), addcdiv, "x + value y / z", _TORCH),
    CompositeDef("lerp", ("lerp.Tensor", "lerp.Scalar"), lerp, "x + weight (y - x)", _TORCH),
    CompositeDef(
        "masked_fill",
        ("masked_fill.Scalar", "masked_fill.Tensor"),
        masked_fill,
        "value where the mask holds, else x",
        _TORCH,
    ),
    CompositeDef(
        "layer_norm",
        ("native_layer_norm.default",),
        layer_norm,
        "(x - mean) rstd weight + bias, with its statistics",
        "arXiv:1607.06450",
    ),
    CompositeDef(
        "rms_norm", ("_fused_rms_norm.default",), rms_norm, "x rstd weight, with rstd", "arXiv:1910.07467"
    ),
    CompositeDef(
        "group_norm",
        ("native_group_norm.default",),
        group_norm,
        "(x - mean) rstd weight + bias over groups of channels",
        "arXiv:1803.08494",
    ),
    CompositeDef(
        "batch_norm",
        ("_native_batch_norm_legit_no_training.default",),
        batch_norm_by_statistics,
        "(x - mean) rstd weight + bias by given statistics",
        "arXiv:1502.03167",
    ),
    CompositeDef(
        "batch_norm_of_batch",
        ("_native_batch_norm_legit.no_stats",),
        batch_norm_of_batch,
        "(x - mean) rstd weight + bias over all but the channels",
        "arXiv:1502.03167",
    ),
    CompositeDef(
        "batch_norm_with_update",
        ("_native_batch_norm_legit_functional.default",),
        batch_norm_with_update,
        "batch norm, and its running statistics",
        "arXiv:1502.03167",
    ),
    CompositeDef(
        "batch_norm_updating",
        ("_batch_norm_with_update_functional.default",),
        batch_norm_updating,
        "batch norm, and its running statistics",
        "arXiv:1502.03167",
    ),
    CompositeDef("softmax", ("_softmax.default",), softmax, "exp(x - max) / sum", _TORCH),
    CompositeDef(
        "log_softmax", ("_log_softmax.default",), log_softmax, "x - max - log(sum exp(x - max))", _TORCH
    ),
    CompositeDef("to_copy", ("_to_copy.default",), to_copy, "a cast", _TORCH, identity=True),
    CompositeDef(
        "convert", ("prims.convert_element_type.default",), convert, "a cast", _TORCH, identity=True
    ),
    CompositeDef(
        "clone", ("clone.default", "lift_fresh_copy.default"), clone, "a copy", _TORCH, identity=True
    ),
    CompositeDef(
        "dropout", ("native_dropout.default",), dropout, "identity outside training", "JMLR 15 (2014) 1929"
    ),
    CompositeDef("full", ("full.default",), full, "a constant", _TORCH),
    CompositeDef("zeros", ("zeros.default",), _filled(0), "zeros", _TORCH),
    CompositeDef("ones", ("ones.default",), _filled(1), "ones", _TORCH),
    CompositeDef("zeros_like", ("zeros_like.default", "new_zeros.default"), _filled_like(0), "zeros", _TORCH),
    CompositeDef("ones_like", ("ones_like.default", "new_ones.default"), _filled_like(1), "ones", _TORCH),
    CompositeDef("full_like", ("full_like.default",), full_like, "a constant", _TORCH),
    CompositeDef("new_full", ("new_full.default",), new_full, "a constant", _TORCH),
    CompositeDef("scalar_tensor", ("scalar_tensor.default",), scalar_tensor, "a constant", _TORCH),
    CompositeDef(
        "arange",
        ("arange.default", "arange.start", "arange.start_step"),
        arange,
        "start, start + 1, …",
        _TORCH,
    ),
    CompositeDef("embedding", ("embedding.default",), embedding, "rows of a table", _TORCH),
    CompositeDef("cat", ("cat.default",), concatenate, "pieces one after the other", _TORCH, pieces=True),
    CompositeDef("repeat", ("repeat.default",), repeat, "a tensor again and again", _TORCH, narrows=True),
    CompositeDef(
        "stack",
        ("stack.default",),
        concatenate,
        "pieces along a new dimension",
        _TORCH,
        pieces=True,
        stacks=True,
    ),
)
