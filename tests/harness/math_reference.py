"""Float64 references of the op_* functions and the arguments to try them on."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

Reference = Callable[[torch.Tensor], torch.Tensor]


def _log2(x: torch.Tensor) -> torch.Tensor:
    return torch.log2(x)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _gelu_erf(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * torch.special.erfc(-x / math.sqrt(2))


def _softplus(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 20, x, torch.log1p(torch.exp(x)))


TRANSCENDENTAL: dict[str, Reference] = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": _log2,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "recip": torch.reciprocal,
    "sigmoid": torch.sigmoid,
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu_tanh": _gelu_tanh,
    "gelu_erf": _gelu_erf,
    "softplus": _softplus,
}
EXACT: dict[str, Reference] = {
    "abs": torch.abs,
    "neg": torch.neg,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "sign": torch.sign,
    "relu": torch.relu,
}


def arguments(seed: int = 0) -> torch.Tensor:
    """Every binade of fp32 many times, both signs; dense where functions bend; zeros, infinities and NaN."""
    rng = np.random.default_rng(seed)
    anywhere = rng.integers(0, 1 << 32, 60_000, dtype=np.uint32).view(np.float32)
    near = [rng.normal(0, s, 20_000) for s in (0.01, 0.5, 2, 8)]
    spread = [rng.uniform(-104, 104, 30_000), rng.uniform(-15, 15, 30_000), 1 + rng.normal(0, 1e-3, 10_000)]
    edges = np.arange(-150, 151, 0.5)
    turns = np.arange(1, 64_000) * (math.pi / 2)  # up to where the slow reduction begins
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 3.4e38, -3.4e38, 1e-45, -1e-45, 1e-39])
    parts = [anywhere, *near, *spread, edges, turns, -turns, special]
    return torch.from_numpy(np.concatenate([np.asarray(p, np.float32) for p in parts]))


def largest_error(
    y: torch.Tensor, x: torch.Tensor, reference: Reference, floor: float
) -> tuple[float, float]:
    """Largest relative error of y, and the argument where; a NaN or infinity in only one is infinite.

    A reference within 2^-20 of where fp32 overflows may be infinite or not.
    """
    exact = reference(x.double())
    as_float = exact.float().double()  # overflow as the result's type has it
    error = (y.double() - exact).abs() / exact.abs().clamp_min(1e-300)
    error[(y.double() - exact).abs() <= floor] = 0
    same = (y.double() == as_float) | (y.isnan() & exact.isnan())
    error[same] = 0
    edge = (exact.abs() > 3.4028e38) & (exact.abs() < 3.4029e38) & ~y.isnan()
    error[edge] = 0
    error = torch.nan_to_num(error, nan=math.inf)
    worst = int(error.argmax())
    return float(error[worst]), float(x[worst])
