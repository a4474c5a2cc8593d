"""Reductions, one row each."""

from __future__ import annotations

import torch

from onepass.ops.opdef import OnlineDef, ReductionDef

_TORCH = "PyTorch operator reference"

REDUCTIONS: tuple[ReductionDef, ...] = (
    ReductionDef(
        "sum",
        "0.0f",
        "({0} + {1})",
        "sum",
        lambda x, dims: x.sum(dims, keepdim=True),
        "the sum of the elements",
        _TORCH,
        empty=0,
        rounds=True,
        rounded_once=(("mul", "op_fma({1}, {2}, {0})"), ("square", "op_fma({1}, {1}, {0})")),
    ),
    ReductionDef(
        "prod",
        "1.0f",
        "({0} * {1})",
        "prod",
        lambda x, dims: x.prod(dims[0], keepdim=True),
        "the product of the elements",
        _TORCH,
        empty=1,
        identity_int="1",
    ),
    ReductionDef(
        "max",
        "-INFINITY_F",
        "op_max({0}, {1})",
        "max",
        lambda x, dims: torch.amax(x, dims, keepdim=True),
        "the largest element; NaN wins",
        _TORCH,
        identity_int="LEAST_I64",
        cost=2,
    ),
    ReductionDef(
        "min",
        "INFINITY_F",
        "op_min({0}, {1})",
        "min",
        lambda x, dims: torch.amin(x, dims, keepdim=True),
        "the smallest element; NaN wins",
        _TORCH,
        identity_int="GREATEST_I64",
        cost=2,
    ),
)

ONLINE: tuple[OnlineDef, ...] = (
    OnlineDef(
        "sum",
        "div",
        ("sub", "square"),
        "sum",
        "centred",
        "Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample variances (1979)",
    ),
    OnlineDef(
        "max",
        "",
        ("sub", "exp"),
        "sum",
        "shifted",
        "Milakov, Gimelshein: Online normalizer calculation for softmax (2018)",
    ),
)
