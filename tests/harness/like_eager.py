"""Programs run in eager and compiled: results, inputs and who shares memory with whom must agree."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from onepass.capture.backend import Backend
from onepass.runtime.counters import COUNTERS

# A few roundings of fp32, or one of bf16, on values near 1.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float64: 1e-14}


def same(got: Any, expected: Any) -> None:
    """Equal structure, types, dtypes and layouts; values within a few roundings, exactly where not floating."""
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert (got.dtype, got.shape, got.requires_grad) == (
            expected.dtype,
            expected.shape,
            expected.requires_grad,
        )
        if got.layout is torch.strided and got.numel():
            assert got.stride() == expected.stride()
        rounding = TOLERANCE.get(expected.dtype, 0.0)
        torch.testing.assert_close(got, expected, rtol=rounding, atol=rounding, equal_nan=True)
    elif isinstance(expected, (tuple, list)):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            same(one, other)
    else:
        assert got == expected


def compiled_like_eager(
    f: Callable[..., Any], *inputs: Any, kernels: bool = True, batch_of_one: bool = False, **options: Any
) -> Backend:
    """Runs f on copies of the inputs in eager and compiled, twice, and writes into what came back.

    With ``batch_of_one`` then again on the first row of each input: sizes of one broadcast, and walk as any other.
    """
    backend = Backend()
    compiled = torch.compile(f, backend=backend, **options)
    for given in (inputs, [x[:1] for x in inputs]) if batch_of_one else (inputs,):
        ours, theirs = copies(given), copies(given)
        launched = COUNTERS.launched
        for _ in range(2):
            got, expected = compiled(*ours), f(*theirs)
            same(got, expected)
            same(ours, theirs)
        assert (COUNTERS.launched > launched) is kernels
        written_alike((got, ours), (expected, theirs), own(f))
    return backend


def copies(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Clones; one tensor given twice stays one tensor."""
    known: dict[int, Any] = {}
    for x in inputs:
        known.setdefault(id(x), x.clone() if isinstance(x, torch.Tensor) else x)
    return tuple(known[id(x)] for x in inputs)


def written_alike(mine: tuple[Any, Any], eagers: tuple[Any, Any], shared: list[torch.Tensor]) -> None:
    """A write into one result changes no other result, input or tensor of f's own but those that it changes in eager."""
    kept = [t.detach().clone() for t in shared]
    for x, y in zip(leaves(mine[0]), leaves(eagers[0]), strict=True):
        try:
            y.fill_(3)
        except RuntimeError:  # several elements in one place, or a kind of tensor that is not written to
            continue
        eager_left = restored(shared, kept)
        x.fill_(3)
        same(restored(shared, kept), eager_left)
        same(mine, eagers)


def restored(tensors: list[torch.Tensor], kept: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the tensors hold, before they are set back."""
    found = [t.detach().clone() for t in tensors]
    for tensor, value in zip(tensors, kept, strict=True):
        tensor.detach().copy_(value)
    return found


def own(f: Callable[..., Any]) -> list[torch.Tensor]:
    """The tensors that a function or module holds."""
    values = [f] if isinstance(f, torch.nn.Module) else list(inspect.getclosurevars(f).nonlocals.values())
    modules = [m for m in values if isinstance(m, torch.nn.Module)]
    return [
        *(t for m in modules for t in (*m.parameters(), *m.buffers())),
        *(v for v in values if isinstance(v, torch.Tensor)),
    ]


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples and lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in leaves(v)] if isinstance(value, (tuple, list)) else []
