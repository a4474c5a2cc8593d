"""Inputs that broke others, through torch.compile: no further from float64 than twice what PyTorch itself is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from onepass.capture.backend import Backend
from onepass.runtime.counters import COUNTERS

Function = Callable[..., Any]
HALVES = (torch.bfloat16, torch.float16)


pytestmark = pytest.mark.usefixtures("fresh")


def double(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def several(x: Any) -> tuple[torch.Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


def complaint(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> str:
    """Twice eager's largest error, and roundings of the largest number: eight of fp32, which sums are in, or two."""
    if (found.dtype, found.shape) != (eager.dtype, eager.shape):
        return f"{found.dtype} {tuple(found.shape)} for {eager.dtype} {tuple(eager.shape)}"
    if not torch.equal(found.isnan(), eager.isnan()):
        return f"NaN at {found.isnan().nonzero().tolist()[:5]}, eager {eager.isnan().nonzero().tolist()[:5]}"
    roundoff = torch.finfo(eager.dtype).eps / 2
    rounded = exact.to(eager.dtype).double()
    there = exact.isfinite() & rounded.isfinite() & eager.isfinite()
    if not torch.equal(found[~there & ~found.isnan()], eager[~there & ~eager.isnan()]):
        return "infinities differ"
    if not bool(there.any()):
        return ""
    off, own = ((x.double() - exact)[there].abs().max() for x in (found, eager))
    allowed = 2 * own + (8 if eager.dtype == torch.float32 else 2) * roundoff * exact[there].abs().max()
    return "" if off <= allowed else f"off by {float(off)}, eager {float(own)}, allowed {float(allowed)}"


def no_worse(f: Function, *inputs: Any, kernels: bool = True) -> tuple[torch.Tensor, ...]:
    launched = COUNTERS.launched
    found = several(torch.compile(f, backend=Backend(), dynamic=False)(*inputs))
    assert (COUNTERS.launched > launched) is kernels
    eager, exact = several(f(*inputs)), several(f(*map(double, inputs)))
    for y, e, d in zip(found, eager, exact, strict=True):
        text = complaint(y, e, d.double())
        assert not text, text
    return found


def norms(x: torch.Tensor, w: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
    shape = (x.shape[-1],)
    return F.layer_norm(x, shape, w, None, 2**-17), F.rms_norm(x, shape, w, 2**-17), torch.softmax(x, -1)


# Numbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_mean_with_a_small_spread(dtype: torch.dtype) -> None:
    means = torch.tensor([1e2, 1e3, 1e4, 1e5, 1e6]).repeat_interleave(4)[:, None]
    spread = torch.tensor([1e-3, 1e-2, 1e-1, 1.0]).repeat(5)[:, None]
    x = (means + spread * torch.randn(20, 513)).to(dtype)
    no_worse(lambda x: F.layer_norm(x, (513,), None, None, 2**-17), x)


@pytest.mark.parametrize(
    ("dtype", "largest"), [(torch.float32, 1e18), (torch.bfloat16, 1e18), (torch.float16, 6e4)]
)
def test_rows_whose_squares_are_large(dtype: torch.dtype, largest: float) -> None:
    no_worse(norms, (torch.rand(5, 129) * largest).to(dtype))


def special_rows() -> torch.Tensor:
    x = torch.randn(9, 37)
    x[0, 0], x[1, 36], x[2, 20] = math.nan, math.nan, math.nan
    x[3, 0], x[4, 36], x[5, 17] = math.inf, -math.inf, math.inf
    x[6, :], x[7, :36] = -math.inf, -math.inf
    return x


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_nan_and_infinities_are_where_pytorch_has_them(dtype: torch.dtype) -> None:
    no_worse(
        lambda x: (torch.softmax(x, -1), x.amax(-1), x.amin(-1), x.sum(-1), F.relu(x), x.clamp(-1, 1)),
        special_rows().to(dtype),
    )


def test_the_tails_of_gelu_and_silu_keep_relative_error() -> None:
    x = torch.cat([torch.linspace(-6, -3, 5001), torch.tensor([1e4, -1e4, -30.0, -80.0])])
    compiled = torch.compile(
        lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x)), backend=Backend(), dynamic=False
    )
    d = x.double()
    exact = (
        0.5 * d * torch.special.erfc(-d / math.sqrt(2)),
        d * torch.sigmoid(math.sqrt(8 / math.pi) * (d + 0.044715 * d**3)),
        d * torch.sigmoid(d),
    )
    for y, e in zip(compiled(x), exact, strict=True):
        # 2e-5: what the preludes state of the short form of GELU; smaller results than fp32 holds may be 0.
        assert bool(((y.double() - e).abs() <= 2e-5 * e.abs() + 1e-37).all())
    assert not bool(((F.gelu(x).double() - exact[0]).abs() <= 2e-5 * exact[0].abs() + 1e-37).all())


@pytest.mark.parametrize("eps", [0.0, 1e-12])
def test_odd_weights_and_constant_rows(eps: float) -> None:
    x = torch.randn(6, 100)
    x[1], x[2] = 3.0, 0.0
    w = torch.randn(100)
    w[::3] = 0.0
    if eps:
        no_worse(lambda x, w: (F.layer_norm(x, (100,), w, None, eps), F.rms_norm(x, (100,), -w, eps)), x, w)
    else:  # a constant row is 0 / 0 or a rounding error over 0, which eager decides by its own order of sums
        no_worse(
            lambda x, w: (F.layer_norm(x, (100,), w, None, 0.0), F.rms_norm(x, (100,), w, 0.0)), x[3:], w
        )


def test_results_repeat_and_rows_do_not_depend_on_each_other() -> None:
    compiled = torch.compile(lambda x: norms(x)[:2], backend=Backend(), dynamic=True)
    x = torch.randn(67, 1000)
    first = compiled(x)
    assert all(map(torch.equal, first, compiled(x)))
    order = torch.randperm(67)
    assert all(torch.equal(a[order], b) for a, b in zip(first, compiled(x[order].contiguous()), strict=True))
    assert all(torch.equal(a[60:63], b) for a, b in zip(first, compiled(x[60:63].contiguous()), strict=True))


# Shapes


@pytest.mark.parametrize("n", [1, 2, 3, 7, 127, 129, 255, 257, 513, 1025, 5140, 12289, 65537])
def test_row_lengths(n: int) -> None:
    no_worse(norms, 3 + torch.randn(2, n))


def test_numbers_of_rows() -> None:
    for dynamic in (True, False):
        compiled = torch.compile(lambda x: norms(x)[0] * 2, backend=Backend(), dynamic=dynamic)
        for rows in (3, 37, 0, 1, 199):
            x = torch.randn(rows, 37)
            torch.testing.assert_close(compiled(x), norms(x)[0] * 2, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0,)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        joined = torch.cat([y, x.new_zeros(2, 0), y], -1), torch.cat([y, x.new_zeros(0, 7), y], 0)
        return x.sum(-1), x.exp() + 1, torch.softmax(x, -1), torch.cat([x, x], 0), *joined, y.mul(2)

    no_worse(function, torch.randn(shape), torch.randn(2, 7))


@pytest.mark.parametrize("rank", range(7))
def test_ranks(rank: int) -> None:
    x = torch.randn([2, 3, 1, 2, 3, 5][:rank])
    no_worse(lambda x: (torch.tanh(x) * 2 + 1, x.sum(), torch.softmax(x, -1)), x)


def test_normalized_shapes_of_several_dimensions_and_bias_alone() -> None:
    x, b = torch.randn(2, 3, 5, 7), torch.randn(3, 5, 7)
    no_worse(lambda x, b: F.layer_norm(x, b.shape, None, b), x, b)
    no_worse(lambda x, b: F.layer_norm(x, b.shape, b, b), x, b)


# Layouts


def packed(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x + 1, x], -1)[..., x.shape[-1] : 2 * x.shape[-1]]


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slice of packed": packed,
    "transposed": lambda x: x.mT.contiguous().mT,
    "expanded": lambda x: x[:1].expand(x.shape),
    "one element off": lambda x: torch.cat([x.new_ones(1), x.flatten()])[1:].view(x.shape),
    "every second": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts(layout: str, dtype: torch.dtype) -> None:
    x = LAYOUTS[layout](torch.randn(5, 33).to(dtype))
    no_worse(norms, x, torch.randn(100).to(dtype)[1:34])


def test_channels_last() -> None:
    x = torch.randn(2, 6, 5, 7).contiguous(memory_format=torch.channels_last)
    (y,) = no_worse(lambda x: F.gelu(x + 1) * 2, x)
    assert y.is_contiguous(memory_format=torch.channels_last)


# Types


@pytest.mark.parametrize("x", [torch.float32, *HALVES])
@pytest.mark.parametrize("w", [torch.float32, torch.bfloat16, None])
def test_dtypes_of_input_weight_and_residual(x: torch.dtype, w: torch.dtype | None) -> None:
    def function(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        h = x + r
        y = h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 2**-17)
        return h, (y if w is None else y * w).to(x.dtype)

    weight = None if w is None else torch.randn(65).to(w)
    no_worse(function, torch.randn(4, 65).to(x), torch.randn(4, 65), weight)


def test_python_numbers_do_not_widen() -> None:
    for dtype in (torch.float32, *HALVES):
        (y,) = no_worse(lambda x: (x * 0.1 + 3) / 7, torch.randn(50).to(dtype))
        assert y.dtype == dtype


def test_float64_is_left_alone() -> None:
    no_worse(norms, torch.randn(3, 9).double(), kernels=False)
