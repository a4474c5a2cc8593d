"""Faults to plant in kernels, by what an op is made of or by a kernel's text: a test that passes with one tests nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from onepass import build as pipeline
from onepass.codegen.emit import Source, emit
from onepass.ops import composite

Statistics = tuple[Any, Any, Any]


@contextmanager
def changed(pattern: str, replacement: str) -> Iterator[None]:
    """Kernels whose text is changed; it must be there to be changed."""
    count = 0

    def change(*given: Any) -> Source:
        nonlocal count
        source = emit(*given)
        text, made = re.subn(pattern, replacement, source.text)
        count += made
        return replace(source, text=text)

    with mock.patch.object(pipeline, "emit", change):
        yield
    assert count, f"nothing to change: {pattern}"


def in_table(table: dict[str, Any], name: str, **fields: Any) -> AbstractContextManager[Any]:
    """Another row of an op."""
    return mock.patch.dict(table, {name: replace(table[name], **fields)})


@contextmanager
def moments(change: Callable[..., Statistics]) -> Iterator[None]:
    """Other statistics in norms: ``change(builder, x, dims, mean, centred, variance)`` gives the three anew."""
    right = composite.moments

    def wrong(b: Any, x: Any, dims: list[int], correction: Any) -> Statistics:
        return change(b, x, dims, *right(b, x, dims, correction))

    with mock.patch.object(composite, "moments", wrong):
        yield


def mean_of_squares(b: Any, x: Any, dims: Any, mean: Any, centred: Any, variance: Any) -> Statistics:
    """E[x²] − mean²."""
    squares = b.map("div", b.reduce("sum", b.map("mul", x, x), dims, True), b.count(x, dims))
    return mean, centred, b.map("sub", squares, b.map("mul", mean, mean))


def overflowing(b: Any, x: Any, dims: Any, mean: Any, centred: Any, variance: Any) -> Statistics:
    """10⁶ Σ x² before it is divided by 10⁶ n."""
    large = b.map("mul", centred, 1000.0)
    squares = b.map("div", b.reduce("sum", b.map("mul", large, large), dims, True), b.count(x, dims))
    return mean, centred, b.map("div", squares, 1e6)


def mean_in_16_bits(b: Any, x: Any, dims: Any, mean: Any, centred: Any, variance: Any) -> Statistics:
    short = b.cast(mean, torch.bfloat16)
    return short, b.map("sub", x, short), variance


def without(eps: float) -> Callable[..., Statistics]:
    """Nothing is added to the variance."""

    def change(b: Any, x: Any, dims: Any, mean: Any, centred: Any, variance: Any) -> Statistics:
        return mean, centred, b.map("sub", variance, eps)

    return change
