"""Losses, one row each. ``reduction`` is PyTorch's: 0 leaves one value an element, 1 takes the mean, 2 the sum."""

from __future__ import annotations

from typing import Any

from onepass.ops.composite import all_dims
from onepass.ops.opdef import Builder, CompositeDef, Value

_TORCH = "PyTorch operator reference"


def _reduced(b: Builder, x: Value, reduction: int) -> Value:
    if reduction == 0:
        return x
    dims = all_dims(x, None)
    total = b.reduce("sum", x, dims, False)
    return total if reduction == 2 else b.map("div", total, b.count(x, dims))


def mse(b: Builder, self: Value, target: Value, reduction: int = 1) -> Value:
    return _reduced(b, b.map("square", b.map("sub", self, target)), reduction)


def huber(b: Builder, self: Value, target: Value, reduction: int = 1, delta: float = 1.0) -> Value:
    size = b.map("abs", b.map("sub", self, target))
    near = b.map("mul", b.map("square", size), 0.5)
    far = b.map("mul", b.map("sub", size, 0.5 * delta), delta)
    return _reduced(b, b.map("where", b.map("le", size, delta), near, far), reduction)


def smooth_l1(b: Builder, self: Value, target: Value, reduction: int = 1, beta: float = 1.0) -> Value:
    size = b.map("abs", b.map("sub", self, target))
    if beta == 0:
        return _reduced(b, size, reduction)
    near = b.map("div", b.map("mul", b.map("square", size), 0.5), beta)
    far = b.map("sub", size, 0.5 * beta)
    return _reduced(b, b.map("where", b.map("lt", size, beta), near, far), reduction)


def soft_margin(b: Builder, self: Value, target: Value, reduction: int = 1) -> Value:
    product = b.map("neg", b.map("mul", self, target))
    return _reduced(b, b.map("log1p", b.map("exp", product)), reduction)


def _weighted(b: Builder, x: Value, weight: Value | None) -> Value:
    return x if weight is None else b.map("mul", x, weight)


def binary_cross_entropy(
    b: Builder, self: Value, target: Value, weight: Value | None = None, reduction: int = 1
) -> Value:
    """With logarithms no lower than -100, as PyTorch has them."""
    yes = b.map("maximum", b.map("log", self), -100.0)
    no = b.map("maximum", b.map("log1p", b.map("neg", self)), -100.0)
    loss = b.map("sub", b.map("mul", b.map("sub", target, 1.0), no), b.map("mul", target, yes))
    return _reduced(b, _weighted(b, loss, weight), reduction)


def binary_cross_entropy_with_logits(
    b: Builder,
    self: Value,
    target: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: int = 1,
) -> Value:
    tail = b.map("softplus", b.map("neg", self))
    if pos_weight is not None:
        tail = b.map("mul", tail, b.map("add", b.map("mul", b.map("sub", pos_weight, 1.0), target), 1.0))
    loss = b.map("add", b.map("mul", b.map("sub", 1.0, target), self), tail)
    return _reduced(b, _weighted(b, loss, weight), reduction)


def negative_log_likelihood(
    b: Builder, self: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Any]:
    """One value a row: the element that the target points at, found as the row passes."""
    if weight is not None or reduction != 0:
        b.refuse("unsupported op: a weighted or averaged likelihood")
    classes = 0 if len(self.shape) == 1 else 1
    wanted = b.unsqueeze(target, classes)
    here = b.map("eq", b.position(self, [classes]), wanted)
    found = b.reduce("sum", b.map("where", here, self, 0.0), [classes], True)
    loss = b.map("where", b.map("eq", wanted, ignore_index), 0.0, b.map("neg", found))
    return b.squeeze(loss, [classes]), None


LOSSES: tuple[CompositeDef, ...] = (
    CompositeDef("mse_loss", ("mse_loss.default",), mse, "(x - y)^2", _TORCH),
    CompositeDef("huber_loss", ("huber_loss.default",), huber, "quadratic near 0, linear beyond", _TORCH),
    CompositeDef(
        "smooth_l1_loss", ("smooth_l1_loss.default",), smooth_l1, "Huber's, by beta", "arXiv:1504.08083"
    ),
    CompositeDef(
        "soft_margin_loss", ("soft_margin_loss.default",), soft_margin, "log(1 + exp(-x y))", _TORCH
    ),
    CompositeDef(
        "binary_cross_entropy",
        ("binary_cross_entropy.default",),
        binary_cross_entropy,
        "-y log(x) - (1 - y) log(1 - x)",
        _TORCH,
    ),
    CompositeDef(
        "binary_cross_entropy_with_logits",
        ("binary_cross_entropy_with_logits.default",),
        binary_cross_entropy_with_logits,
        "the same of sigmoid(x), without forming it",
        _TORCH,
    ),
    CompositeDef(
        "nll_loss",
        ("nll_loss_forward.default", "nll_loss2d_forward.default"),
        negative_log_likelihood,
        "the element that the target points at, negated",
        _TORCH,
    ),
)
