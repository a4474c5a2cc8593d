"""Quantised results as inference servers fuse them, in PyTorch, and how far they may be from float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

E4M3, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
LARGEST = {E4M3: 448.0, E5M2: 57344.0, INT8: 127.0}
# Bits of the fraction, and the smallest step between two numbers.
FRACTION, SMALLEST = {E4M3: 3, E5M2: 2}, {E4M3: 2.0**-9, E5M2: 2.0**-16}
EPS = 1e-6


@dataclass(frozen=True)
class Form:
    """An operator, and how its result is quantised: ``power`` is a power of two a block, ``given`` one that is there."""

    operator: Callable[..., Any]
    dtype: torch.dtype = E4M3
    scale: Literal["row", "block", "given", "power", "tensor"] = "row"
    block: int = 128

    def __call__(self, x: Tensor, r: Tensor, w: Tensor, b: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        made = self.operator(x, r, w, b)
        *others, y = made if isinstance(made, tuple) else (made,)
        return (*others, *self.quantized(y.float(), s))

    def quantized(self, y: Tensor, given: Tensor) -> tuple[Tensor, ...]:
        most = LARGEST[self.dtype]
        if self.scale == "given":
            return (self.rounded(y / given),)
        if self.scale == "tensor":
            scale = y.abs().amax().clamp(min=EPS) / most
            return self.rounded(y / scale), scale
        if self.scale == "row":
            scale = y.abs().amax(-1, keepdim=True).clamp(min=EPS) / most
            return self.rounded(y / scale), scale
        blocks = y.view(*y.shape[:-1], -1, self.block)
        scale = blocks.abs().amax(-1).clamp(min=EPS) / most
        if self.scale == "power":
            scale = torch.exp2(torch.ceil(torch.log2(scale)))
        return self.rounded(blocks / scale[..., None]).view(y.shape), scale

    def rounded(self, x: Tensor) -> Tensor:
        if self.dtype == INT8:
            return x.round().clamp(-127, 127).to(INT8)
        return x.to(self.dtype)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        block = f"{self.block}" if self.scale in ("block", "power") else ""
        return f"{self.operator.__name__}-{dtype}-{self.scale}{block}"


def share_of_bound(form: Form, found: tuple[Tensor, ...], given: list[Tensor], slack: float) -> float:
    """The largest error as a share of what it may be: half a quantum, and ``slack`` of the largest value in the scale's
    range for what happens before. NaN counts as infinite."""
    x, r, w, b, s = (t.double() for t in given)
    made = form.operator(x, r, w, b)
    *others, y = made if isinstance(made, tuple) else (made,)
    q = found[len(others)]
    assert q.dtype == form.dtype and q.shape == y.shape
    worst = 0.0
    for got, want in zip(found, others, strict=False):
        worst = max(worst, _share(got.double() - want, slack * want.abs().max()))
    width = form.block if form.scale in ("block", "power") else y.shape[-1]
    parts = y.reshape(-1, y.numel() if form.scale == "tensor" else width)
    largest = parts.abs().amax(-1, keepdim=True)
    if form.scale == "given":
        scale = s.expand_as(largest)
        parts = parts.clamp(-LARGEST[form.dtype] * s, LARGEST[form.dtype] * s)
    else:
        kept = found[len(others) + 1]
        assert kept.dtype == torch.float32 and kept.numel() == largest.numel()
        scale = kept.double().reshape(-1, 1)
        wanted = largest.clamp(min=EPS) / LARGEST[form.dtype]
        worst = max(worst, _scale_share(form, scale, wanted, slack))
    quantum = _quantum(form.dtype, parts / scale) * scale
    bound = quantum / 2 + slack * largest
    return max(worst, _share(q.double().reshape(parts.shape) * scale - parts, bound))


def _scale_share(form: Form, scale: Tensor, wanted: Tensor, slack: float) -> float:
    if form.scale != "power":
        return _share(scale - wanted, slack * wanted)
    power = torch.log2(scale)
    # The PTX ISA gives ex2 two units of its last place, also where the result is a power of two.
    wrong = (
        ((power - power.round()).abs() > 2.0**-21)
        | (scale < wanted * (1 - slack))
        | (scale > 2 * wanted * (1 + slack))
    )
    return float("inf") if bool(wrong.any()) else 0.0


def _quantum(dtype: torch.dtype, x: Tensor) -> Tensor:
    """The step between the numbers of a dtype around x; of the last binade below the largest where x is beyond it."""
    if dtype == INT8:
        return torch.ones_like(x)
    exponent = torch.floor(torch.log2(x.abs().clamp(min=1e-30, max=LARGEST[dtype])))
    return (2.0 ** (exponent - FRACTION[dtype])).clamp(min=SMALLEST[dtype])


def _share(error: Tensor, bound: Tensor) -> float:
    return float(torch.nan_to_num(error.abs() / bound, nan=float("inf")).max())


def rms_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.rms_norm(x.float() if x.dtype != torch.float64 else x, x.shape[-1:], None, 1e-6) * w


def layer_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def add_rms_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    total = x + r
    return total, F.rms_norm(total, x.shape[-1:], w, 1e-6)


def swiglu(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(x) * r


def swiglu_halves(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def gelu(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(x)


def residual_chain(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (x * 0.5 + r + b) * w
