"""What the newer functionals give, held to float64: quantised results, cross-entropy, group norm.

Rows differ in number from call to call, so that one capture serves several; the last column of each is far from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import onepass.functional as OF
from harness.quantized import (
    E4M3,
    E5M2,
    EPS,
    INT8,
    Form,
    add_rms_norm,
    layer_norm,
    rms_norm,
    share_of_bound,
    swiglu,
)
from onepass import settings
from onepass.errors import BadQuantization
from onepass.runtime.counters import COUNTERS

FP32, BF16 = torch.float32, torch.bfloat16
# The norm in fp32, a few roundings off, or with the sum of two bf16 tensors rounded to bf16 first.
SLACK = {FP32: 2.0**-19, BF16: 2.0**-17}


@pytest.fixture(autouse=True)
def no_gradients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And compilers that hurry: the flags that decide results are the same."""
    monkeypatch.setenv(settings.CXX_FLAGS.name, "-O1")
    with torch.no_grad():
        yield


def made(*shape: int, dtype: torch.dtype = FP32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator) + 0.5
    x[..., -1] = 9
    return x.to(dtype)


def launches(call: Callable[[], Any]) -> tuple[Any, int]:
    call()
    before = COUNTERS.launched
    return call(), COUNTERS.launched - before


NAMES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "rms_norm": (rms_norm, lambda x, r, w, b, **how: OF.rms_norm_quantized(x, x.shape[-1:], w, EPS, **how)),
    "layer_norm": (
        layer_norm,
        lambda x, r, w, b, **how: OF.layer_norm_quantized(x, x.shape[-1:], w, b, **how),
    ),
    "add_rms_norm": (add_rms_norm, lambda x, r, w, b, **how: OF.add_rms_norm_quantized(x, r, w, EPS, **how)),
    "swiglu": (swiglu, lambda x, r, w, b, **how: OF.swiglu_quantized(x, r, **how)),
    "plain": (lambda x, r, w, b: x, lambda x, r, w, b, **how: OF.quantize(x, **how)),
}


# Each operator with each kind of scale; dtypes change from one to the next, so that all meet all operators and scales.
QUANTISED = tuple(
    (name, scale, (E4M3, E5M2, INT8)[(i + j) % 3], (FP32, BF16)[(i + j // 2) % 2])
    for i, name in enumerate(NAMES)
    for j, scale in enumerate(("row", "block", "power", "given"))
)


@pytest.mark.parametrize(("name", "scale", "to", "dtype"), QUANTISED)
def test_quantised_results_are_float64s(name: str, scale: Any, to: torch.dtype, dtype: torch.dtype) -> None:
    """One launch each. The scale of zeros is a positive number, so that nothing is divided by zero."""
    operator, functional = NAMES[name]
    given = torch.tensor(0.05)
    how: dict[str, Any] = {"dtype": to, "scale": {"power": "block", "given": given}.get(scale, scale)}
    if scale in ("block", "power"):
        how |= {"block": 64, "power_of_two": scale == "power"}
    x, r = made(3, 2, 384, dtype=dtype), made(3, 2, 384, dtype=dtype).flip(0)
    w, b = made(384, dtype=dtype), made(384, dtype=dtype).flip(0)
    results, count = launches(lambda: functional(x, r, w, b, **how))
    assert count == 1
    q, kept, *total = results
    form = Form(operator, to, scale, 64)
    found = (*total, q) if scale == "given" else (*total, q, kept)
    # The residual sum is returned in its own dtype; what is quantised is judged without rounding it.
    wide = [t.double() if t.dtype == BF16 else t for t in (x, r, w, b)]
    if name == "add_rms_norm" and dtype == BF16:
        assert torch.equal(total[0], x + r)
        found = (wide[0] + wide[1], *found[1:])
    assert share_of_bound(form, found, [*wide, given], SLACK[dtype]) <= 1
    zeros, scales, *_ = functional(x * 0, r * 0, w * 0, b * 0, **how)
    assert not zeros.float().any() and (scales > 0).all()


def test_a_wrong_scale_is_outside_the_bound() -> None:
    x = made(4, 256)
    q, scale = OF.quantize(x)
    given = [x, x, x[0], x[0], torch.tensor(1.0)]
    form = Form(lambda x, r, w, b: x)
    assert share_of_bound(form, (q, scale), given, SLACK[FP32]) <= 1
    assert share_of_bound(form, (q, scale.roll(1, 0) * 1.01), given, SLACK[FP32]) > 1
    assert share_of_bound(form, ((q.float() * 1.07).to(E4M3), scale), given, SLACK[FP32]) > 1


def test_halves_of_one_tensor_are_one_launch() -> None:
    x = made(5, 512, dtype=BF16)
    (q, scale), count = launches(lambda: OF.swiglu_quantized(*x.chunk(2, -1), scale="block"))
    assert count == 1
    gate, up = x.double().chunk(2, -1)
    given = [gate, up, x, x, torch.tensor(1.0)]
    assert share_of_bound(Form(swiglu, E4M3, "block"), (q, scale), given, SLACK[BF16]) <= 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_spoils_its_own_block_alone(bad: float) -> None:
    x = made(2, 256)
    x[1, 70] = bad
    q, scale = OF.quantize(x, scale="block", block=64)
    clean, kept = OF.quantize(made(2, 256), scale="block", block=64)
    others = torch.ones(2, 4, dtype=torch.bool)
    others[1, 1] = False
    assert torch.equal(scale[others], kept[others]) and not scale[1, 1].isfinite()
    same = q.float() == clean.float()
    assert same.view(2, 4, 64)[others].all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dtype": torch.float16}, "dtype is torch.float16"),
        ({"scale": "column"}, "scale is 'column'"),
        ({"scale": "block", "block": 100}, "a divisor of the 256 columns"),
        ({"scale": "block", "block": 0}, "block is 0"),
    ],
)
@pytest.mark.parametrize("strict", ["0", "1"])
def test_what_can_not_be_is_said(
    arguments: dict[str, Any], words: str, strict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEPASS_STRICT", strict)
    with pytest.raises(BadQuantization, match=words):
        OF.quantize(made(2, 256), **arguments)


@pytest.mark.parametrize(
    ("reduction", "label_smoothing", "dtype"),
    [("none", 0.0, FP32), ("none", 0.1, BF16), ("sum", 0.1, FP32), ("mean", 0.0, BF16), ("mean", 0.1, FP32)],
)
def test_cross_entropy(reduction: str, label_smoothing: float, dtype: torch.dtype) -> None:
    """Off by the roundings of a logarithm of at most 12, and the result's own."""
    how: dict[str, Any] = {"reduction": reduction, "label_smoothing": label_smoothing, "ignore_index": 3}
    for rows in (7, 64):
        x = made(rows, 50, dtype=dtype)
        target = torch.arange(rows) % 50
        (found, count), want = (
            launches(lambda x=x, target=target: OF.cross_entropy(x, target, **how)),
            F.cross_entropy(x.double(), target, **how),
        )
        # A value a row, then their sum; a mean with smoothing has two sums.
        assert count == 1 if reduction == "none" else 2 <= count <= 3
        assert found.dtype == dtype
        bound = torch.finfo(dtype).eps / 2 * want.abs() + 16 * 2.0**-24 * (
            12 if reduction != "sum" else 12 * rows
        )
        assert ((found.double() - want).abs() <= bound).all()
    everything = torch.full((4,), 3)
    assert torch.equal(
        OF.cross_entropy(made(4, 50), everything, **how),
        F.cross_entropy(made(4, 50), everything, **how),
    ) or (reduction == "mean" and bool(OF.cross_entropy(made(4, 50), everything, **how).isnan()))


@pytest.mark.parametrize("affine", [True, False])
def test_group_norm(affine: bool) -> None:
    """For several numbers of samples and channels: a capture is for its channels."""
    for samples, channels in ((2, 8), (5, 8), (3, 12)):
        x = made(samples, channels, 6, 7) + 3
        w, b = (made(channels), made(channels).flip(0)) if affine else (None, None)
        found, count = launches(lambda x=x, w=w, b=b: OF.group_norm(x, 4, w, b))
        want = F.group_norm(x.double(), 4, *(None if t is None else t.double() for t in (w, b)))
        assert count == 1
        assert ((found - want).abs() <= 64 * 2.0**-24 * (want.abs() + 9)).all()
