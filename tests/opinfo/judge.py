"""Whether a result is what PyTorch gives: eager's own, or one as near to the op in float64.

The reference is the op itself, given its inputs in float64. An element may be off by twice what eager is off there, plus
half a unit in the last place; where that is not enough, also by what the captured program can't avoid: every operation's
stated error, every sum's rounding, moved through the program by the interpreter (`harness/tolerance.py`). Integers and
booleans are eager's. So are dtype, shape and strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from harness.graphs import wide_default
from harness.oracle import Oracle, double
from harness.together import Planned
from harness.tolerance import unavoidable
from opinfo.entries import Sample, copied

# Matrix decompositions: bound by arithmetic, though onepass's table does not name them.
DECOMPOSITIONS = ("_linalg_svd", "_linalg_eigh", "linalg_eigh", "linalg_qr")

# These answer by the spacing of their operand's dtype: in float64 they are other functions.
BY_SPACING = frozenset({"nextafter", "special.nextafter"})
# What an op takes by the dtype of its input where it is not given, and what a float64 reference must be given.
BY_DTYPE: dict[str, Callable[[Sample], dict[str, Any]]] = {
    "nn.functional.rms_norm": lambda s: {"eps": torch.finfo(_accumulated(s.tensors[0].dtype)).eps},
}


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class Verdict:
    """``trouble`` is empty where a result is right; ``share`` is the worst error in units of what was allowed."""

    trouble: str = ""
    share: float = 0.0


@dataclass(frozen=True)
class Called:
    """What a call returned, and its inputs after it."""

    results: list[Any]
    inputs: list[torch.Tensor]

    def on_host(self) -> Called:
        return Called([_on_host(x) for x in self.results], [_on_host(x) for x in self.inputs])


def _on_host(x: Any) -> Any:
    return copied(x, "cpu") if isinstance(x, torch.Tensor) and x.is_cuda else x


def called(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Called:
    """A call on copies of the inputs. Raises: what the function raises."""
    given = [copied(x) for x in inputs]
    with torch.no_grad():
        return Called(leaves(function(*given)), given)


def leaves(result: Any) -> list[Any]:
    return [x for x in tree_leaves(result) if x is not None]


def reference(sample: Sample, eager: Called) -> Called:
    """The op in float64; eager where that can't be had, or where the op answers by its dtype."""
    if sample.entry in BY_SPACING:
        return eager
    fixed = BY_DTYPE.get(sample.entry, lambda sample: {})(sample)
    try:
        with wide_default():
            exact = called(sample.function(double, **fixed), [double(x) for x in sample.tensors])
    except Exception:  # noqa: BLE001 - whatever PyTorch raises: it has no such kernel
        return eager
    return exact if len(exact.results) == len(eager.results) else eager


def judge(sample: Sample, case: Callable[[], Planned], found: Called, eager: Called) -> Verdict:
    """``found`` beside what eager and float64 give: the results, and the inputs that the op writes to.

    ``case`` is the sample's plan on the host, asked for where its program's own rounding matters.
    """
    if len(found.results) != len(eager.results):
        return Verdict(f"{len(found.results)} results, eager {len(eager.results)}")
    exact = reference(sample, eager)
    wider = _Wider(case, sample.tensors)
    worst = 0.0
    for i, (f, e, x) in enumerate(zip(found.results, eager.results, exact.results, strict=True)):
        verdict = one(f, e, x, lambda i=i: wider.moves(i))
        if verdict.trouble:
            return Verdict(f"result {i}: {verdict.trouble}" if len(eager.results) > 1 else verdict.trouble)
        worst = max(worst, verdict.share)
    for i, (f, e, x) in enumerate(zip(found.inputs, eager.inputs, exact.inputs, strict=True)):
        before = sample.tensors[i]
        if trouble := one(f, e, x, lambda x=x, before=before: _updated(x, before)).trouble:
            return Verdict(f"input {i} after the call: {trouble}")
    return Verdict("", worst)


def _updated(x: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """How far an input that was moved toward something may be off: both parts and their sum are rounded."""
    return 4 * half_ulp(x.double().abs() + before.double().abs(), before.dtype)


def one(found: Any, eager: Any, exact: Any, moves: Callable[[], torch.Tensor | None]) -> Verdict:
    """One result. ``moves`` says how far what can't be avoided moves each element, and is asked only where needed."""
    if not isinstance(eager, torch.Tensor):
        return Verdict("" if found == eager else f"{found!r}, eager {eager!r}")
    if trouble := _layout(found, eager):
        return Verdict(trouble)
    if not eager.numel():
        return Verdict()
    if eager.dtype == torch.bool:  # as bytes: one that is neither 0 nor 1 is no truth value
        found, eager, exact = found.view(torch.uint8), eager.view(torch.uint8), eager.view(torch.uint8)
    if not isinstance(exact, torch.Tensor) or exact.shape != eager.shape:
        exact = eager
    if eager.is_complex():
        found, eager, exact = (torch.view_as_real(t.resolve_conj()) for t in (found, eager, exact))
    near = _same(found, eager)
    if not eager.is_floating_point():
        return Verdict("" if bool(near.all()) else _words(found, eager, exact, near, None))
    # A reference beyond the dtype's range, or below its spacing, is what it rounds to.
    near |= _same(found, exact.to(eager.dtype))
    f, e, x = found.double(), eager.double(), exact.double()
    error = (f - x).abs()
    floor = half_ulp(x, eager.dtype)
    allowed = 2 * (e - x).abs() + floor
    if not bool((near | (error <= allowed)).all()) and (moved := moves()) is not None:
        # The reference of a float64 result is as far off as it may be itself.
        allowed = allowed + moved.reshape(allowed.shape) * (2 if eager.dtype == torch.float64 else 1)
    near |= error <= allowed
    if not bool(near.all()):
        return Verdict(_words(found, eager, exact, near, allowed))
    share = torch.where(_same(found, eager), 0.0, error / allowed).nan_to_num(0.0, 0.0)
    return Verdict("", float(share.max()))


def half_ulp(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half the spacing of a dtype at ``x``; below its normal numbers the spacing is constant, and may be flushed away."""
    info = torch.finfo(dtype)
    flushed = 0.0 if dtype == torch.float16 else info.smallest_normal
    magnitude = torch.clamp(x.abs(), min=info.smallest_normal).nan_to_num(0.0, 0.0)
    return info.eps / 2 * magnitude + flushed


def _same(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x == y) | ((x != x) & (y != y))


def _layout(found: Any, eager: torch.Tensor) -> str:
    if not isinstance(found, torch.Tensor):
        return f"{found!r} for a tensor"
    if (found.dtype, found.shape) != (eager.dtype, eager.shape):
        return f"{found.dtype} {list(found.shape)}, eager {eager.dtype} {list(eager.shape)}"
    apart = [
        d for d, n in enumerate(eager.shape) if n > 1 and found.stride(d) != eager.stride(d) and eager.numel()
    ]
    return f"strides {list(found.stride())}, eager {list(eager.stride())}" if apart else ""


def _words(
    found: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor,
    near: torch.Tensor,
    allowed: torch.Tensor | None,
) -> str:
    at = int((~near).flatten().to(torch.int8).argmax())
    got, was, true = (t.flatten()[at].item() for t in (found, eager, exact))
    within = "" if allowed is None else f", allowed ± {float(allowed.flatten()[at]):.3g}"
    return (
        f"{int((~near).sum())} of {near.numel()} elements of {list(near.shape)} {eager.dtype}; "
        f"element {at}: {got} for {true}{within}, eager {was}"
    )


class _Wider:
    """How far the errors that a program can't avoid move its results, worked out when first asked for."""

    def __init__(self, case: Callable[[], Planned], inputs: Sequence[torch.Tensor]) -> None:
        self.case, self.inputs = case, inputs
        self.found: list[torch.Tensor] | None = None

    def moves(self, index: int) -> torch.Tensor | None:
        if self.found is None:
            self.found = self.work_out()
        return self.found[index] if index < len(self.found) else None

    def work_out(self) -> list[torch.Tensor]:
        case = self.case()
        oracle = Oracle(case.captured, self.inputs)
        exact = [x.double() for x in oracle.outputs()]
        total = [self.decomposed(case, x) for x in exact]
        for off in unavoidable(case.captured.program, [case.plan]):
            for side in (off, replace(off, by=-off.by)):
                moved = oracle.outputs(watch=side)
                total = [
                    torch.maximum(t, t + (m.double() - x).abs().nan_to_num(0.0, 0.0) / 2)
                    for t, m, x in zip(total, moved, exact, strict=True)
                ]
        return total

    def decomposed(self, case: Planned, x: torch.Tensor) -> torch.Tensor:
        """How far singular values may be off: n roundings of the matrix, whatever their own size."""
        if not any(c.target.startswith(DECOMPOSITIONS) for c in case.plan.calls):
            return torch.zeros_like(x)
        (matrix, *_) = self.inputs
        size = float(torch.linalg.vector_norm(matrix.double()))
        return torch.full_like(x, max(matrix.shape[-2:]) * torch.finfo(matrix.dtype).eps * size)
