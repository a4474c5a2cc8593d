"""Which entries of PyTorch's op database are judged, and their samples: the same ones each time."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, ReductionOpInfo, UnaryUfuncInfo
from torch.utils._pytree import tree_flatten, tree_unflatten

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "bool")

# What the database has as plain entries, and a user would call a norm. `norm.nuc` is a matrix decomposition.
NORMS = frozenset(
    {
        "native_layer_norm",
        "native_group_norm",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
        "nn.functional.layer_norm",
        "nn.functional.rms_norm",
        "nn.functional.group_norm",
        "nn.functional.instance_norm",
        "nn.functional.batch_norm",
        "nn.functional.local_response_norm",
        "nn.functional.normalize",
        "linalg.norm",
        "linalg.matrix_norm",
        "norm",
        "norm.fro",
        "norm.inf",
        "renorm",
        "masked.normalize",
    }
)

# Functions that nobody fuses: they are judged like the others, and stay with PyTorch.
SPECIAL = frozenset(
    {
        "digamma",
        "erfinv",
        "i0",
        "igamma",
        "igammac",
        "lgamma",
        *(f"mvlgamma.mvlgamma_p_{p}" for p in (1, 3, 5)),
        *(f"polygamma.polygamma_n_{n}" for n in range(5)),
        "special.polygamma.special_polygamma_n_0",
        "special.airy_ai",
        "special.bessel_j0",
        "special.bessel_j1",
        "special.bessel_y0",
        "special.bessel_y1",
        "special.erfcx",
        "special.i0e",
        "special.i1",
        "special.i1e",
        "special.log_ndtr",
        "special.modified_bessel_i0",
        "special.modified_bessel_i1",
        "special.modified_bessel_k0",
        "special.modified_bessel_k1",
        "special.ndtri",
        "special.scaled_modified_bessel_k0",
        "special.scaled_modified_bessel_k1",
        "special.spherical_bessel_j0",
        *(f"special.chebyshev_polynomial_{k}" for k in "tuvw"),
        *(f"special.shifted_chebyshev_polynomial_{k}" for k in "tuvw"),
        "special.hermite_polynomial_h",
        "special.hermite_polynomial_he",
        "special.laguerre_polynomial_l",
        "special.legendre_polynomial_p",
        "special.zeta",
    }
)

_COMPLEX = "results or operands are complex numbers only"
_JITERATOR = "PyTorch runs it on CUDA only, and compiles it at run time itself"
EXCLUDED: dict[str, str] = {
    "cdouble": _COMPLEX,
    "cfloat": _COMPLEX,
    "chalf": _COMPLEX,
    "complex": _COMPLEX,
    "imag": _COMPLEX,
    "nn.functional.silu.complex": _COMPLEX,
    "polar": _COMPLEX,
    "jiterator_unary": _JITERATOR,
    "jiterator_binary": _JITERATOR,
    "jiterator_binary_return_by_ref": _JITERATOR,
    "hash_tensor": "a checksum of the bits of memory, which is no arithmetic of the values",
    "nn.functional.rrelu": "draws random numbers: no two calls agree",
}

# The plain entries that are element-wise, reductions, losses, or move data: they are not asked for, and say how far the
# vocabulary goes.
# fmt: off
OTHERS = frozenset((
    "addcdiv", "addcmul", "aminmax", "cat", "clamp", "clone", "column_stack", "constant_pad_nd", "cummax", "cummin",
    "cumprod", "cumsum", "diagonal", "diff", "dstack", "expand", "flip", "fliplr", "flipud", "gather", "hstack",
    "index_select", "lerp", "log_softmax", "log_softmax.with_dtype", "logaddexp2", "logsumexp", "masked.cumprod",
    "masked.cumsum", "masked.log_softmax", "masked.logaddexp", "masked.softmax", "masked.softmin", "masked_fill",
    "max.reduction_no_dim", "max.reduction_with_dim", "min.reduction_no_dim", "min.reduction_with_dim", "movedim",
    "narrow", "nn.functional.binary_cross_entropy", "nn.functional.binary_cross_entropy_with_logits",
    "nn.functional.channel_shuffle", "nn.functional.cosine_embedding_loss", "nn.functional.cosine_similarity",
    "nn.functional.cross_entropy", "nn.functional.embedding", "nn.functional.gaussian_nll_loss",
    "nn.functional.gelu", "nn.functional.glu", "nn.functional.hardswish", "nn.functional.hinge_embedding_loss",
    "nn.functional.huber_loss", "nn.functional.kl_div", "nn.functional.l1_loss", "nn.functional.leaky_relu",
    "nn.functional.margin_ranking_loss", "nn.functional.mse_loss", "nn.functional.nll_loss",
    "nn.functional.pad.constant", "nn.functional.pairwise_distance", "nn.functional.pixel_shuffle",
    "nn.functional.pixel_unshuffle", "nn.functional.poisson_nll_loss", "nn.functional.smooth_l1_loss",
    "nn.functional.soft_margin_loss", "nn.functional.softmin", "nn.functional.softmin.with_dtype",
    "nn.functional.triplet_margin_loss", "permute", "repeat", "repeat_interleave", "roll", "rot90", "softmax",
    "softmax.with_dtype", "split", "stack", "std_mean", "std_mean.unbiased", "sum_to_size", "tile",
    "torch.ops.aten._safe_softmax.default", "trace", "transpose", "tril", "triu", "unbind", "unflatten", "var_mean",
    "var_mean.unbiased", "where",
))
# fmt: on


@dataclass(frozen=True)
class Sample:
    """One call of one op: a function of tensors, everything else in it fixed."""

    entry: str
    dtype: str
    index: int
    call: Callable[..., Any]
    leaves: tuple[Any, ...]  # of (input, args, kwargs), tensors among them
    spec: Any

    def __str__(self) -> str:
        return f"{self.entry} {self.dtype} {self.index}"

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [x for x in self.leaves if isinstance(x, torch.Tensor)]

    def on(self, device: str) -> Sample:
        """The same call on another device."""
        moved = [
            copied(x, device)
            if isinstance(x, torch.Tensor)
            else torch.device(device)
            if isinstance(x, torch.device)
            else x
            for x in self.leaves
        ]
        return replace(self, leaves=tuple(moved))

    def function(self, fixed: Callable[[Any], Any] = lambda x: x, **default: Any) -> Callable[..., Any]:
        """The call as a function of its tensors. ``fixed`` changes what is not a tensor, ``default`` is given where
        nothing else is."""

        def run(*tensors: torch.Tensor) -> Any:
            left = iter(tensors)
            put = [next(left) if isinstance(x, torch.Tensor) else fixed(x) for x in self.leaves]
            given, args, kwargs = tree_unflatten(put, self.spec)
            return self.call(given, *args, **{**default, **kwargs})

        return run

    def text(self) -> str:
        """The arguments in words."""

        def word(x: Any) -> str:
            if not isinstance(x, torch.Tensor):
                return repr(x)
            dtype = str(x.dtype).removeprefix("torch.")
            strided = "" if x.is_contiguous() else f" strides {list(x.stride())}"
            return f"{dtype}{list(x.shape)}{strided}"

        given, args, kwargs = tree_unflatten([word(x) for x in self.leaves], self.spec)
        return f"{self.entry}({given}, *{args}, **{kwargs})".replace("'", "")


def copied(x: torch.Tensor, device: str | torch.device | None = None) -> torch.Tensor:
    """The same numbers laid out the same way."""
    if x.layout is not torch.strided:
        return x.clone().to(device)
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device or x.device).copy_(x)


def name_of(info: OpInfo) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def is_asked_for(info: OpInfo) -> bool:
    """Whether an entry is a unary or binary op, a reduction or a norm."""
    return isinstance(info, (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)) or name_of(info) in NORMS


@cache
def entries(others: bool = False) -> dict[str, OpInfo]:
    """The entries that are judged, by name; with ``others`` the second list."""
    infos = {name_of(i): i for i in op_db}
    if others:
        return {n: i for n, i in infos.items() if n in OTHERS and not is_asked_for(i)}
    return {n: i for n, i in infos.items() if is_asked_for(i) and n not in EXCLUDED}


def dtypes_of(info: OpInfo, *devices: str) -> list[str]:
    """The dtypes that PyTorch takes on the CPU, and on other devices too."""
    supported = [info.supported_dtypes(device) for device in ("cpu", *devices)]
    return [d for d in DTYPES if all(getattr(torch, d) in s for s in supported)]


def samples(name: str, dtype: str) -> Iterator[Sample]:
    """An entry's samples in the database's order, drawn from the same seed each time."""
    info = {**entries(), **entries(others=True)}[name]
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    for i, s in enumerate(info.sample_inputs("cpu", getattr(torch, dtype), requires_grad=False)):
        leaves, spec = tree_flatten((s.input, tuple(s.args), s.kwargs))
        yield Sample(name, dtype, i, info.op, tuple(leaves), spec)


def chosen(name: str, *devices: str) -> Iterator[Sample]:
    """The samples of an entry that the tests run: of each dtype one and one for every 24, by the lowest hash."""
    for dtype in dtypes_of({**entries(), **entries(others=True)}[name], *devices):
        drawn = list(samples(name, dtype))
        drawn.sort(key=lambda s: hashlib.sha256(str(s).encode()).digest())
        yield from drawn[: 1 + len(drawn) // 24]


def frozen() -> str:
    """The frozen list: how many samples each entry has, by dtype, and what is not judged, with reasons."""
    lines = [
        "# PyTorch's unary, binary, reduction and norm entries, and how many samples each has by dtype.",
        "# Written by tools/opinfo_full.py --freeze; a test holds PyTorch's database to it.",
        _toml("dtypes", DTYPES),
    ]
    for title, others in (("samples", False), ("others", True)):
        lines += ["", f"[{title}]"]
        for name, info in sorted(entries(others).items()):
            have = dtypes_of(info)
            counts = [sum(1 for _ in samples(name, d)) if d in have else 0 for d in DTYPES]
            lines.append(_toml(name, counts))
    lines += ["", "[excluded]", *(_toml(n, why) for n, why in sorted(EXCLUDED.items()))]
    lines += [
        "",
        "[left]",
        "# Functions that nobody fuses.",
        f"special = {sorted(SPECIAL)}".replace("'", '"'),
    ]
    return "\n".join(lines) + "\n"


def _toml(key: str, value: Any) -> str:
    """A line of TOML; JSON's lists and strings are the same."""
    return f"{json.dumps(key)} = {json.dumps(value)}"
