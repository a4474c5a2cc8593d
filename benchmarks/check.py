"""Whether a contender computes the case: held to float64 on poisoned outputs, its inputs left as they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cases import E4M3_LARGEST, UNIT_ROUNDOFF, Inputs, Point
from onepass.runtime.timer import Call

# Rows of one slab of the float64 evaluation: about 2^22 elements, so that its temporaries stay small.
_SLAB_ELEMENTS = 1 << 22
# Of fp8 e4m3: the bits of a NaN, and the smallest number with all three bits of fraction.
FP8_NAN, E4M3_LEAST_NORMAL = 0x7F, 2.0**-6


class Check:
    """The exact results of set 0 of some inputs, and the judgement of what contenders return for it."""

    def __init__(self, point: Point, inputs: Inputs) -> None:
        self.point, self.inputs = point, inputs
        self.before: list[Tensor] = []
        self.exact: list[Tensor] = []
        self.renew()

    def renew(self) -> None:
        """New values in set 0, and their exact results."""
        self.exact.clear()
        self.inputs.refresh()
        arguments = self.inputs.arguments(0)
        self.before = [t.clone() for t in arguments]
        self.exact = _exact(self.point, arguments)

    def call(self, call: Call) -> str:
        """Run a contender on set 0 over poisoned memory; empty when all is right, else what is wrong."""
        self.poison()
        return self.result(call(0))

    def poison(self) -> None:
        """Leave NaN where the next outputs will be: freed blocks of their sizes are used again."""
        shape, device, dtype = (self.point.rows, self.point.cols), self.inputs.device, self.before[0].dtype
        if self.point.case.quantizes:
            blocks = [torch.full(shape, FP8_NAN, device=device, dtype=torch.uint8)]
            blocks += [torch.full(self._scales(), torch.nan, device=device)]
        else:
            blocks = [
                torch.full(shape, torch.nan, device=device, dtype=dtype)
                for _ in range(self.point.case.writes)
            ]
        del blocks

    def _scales(self) -> tuple[int, int]:
        point = self.point
        return point.rows, point.cols // point.case.block if point.case.block else 1

    def result(self, result: Any) -> str:
        """Empty when a result for set 0 is right and the inputs are untouched, else what is wrong."""
        outputs = list(result) if isinstance(result, tuple | list) else [result]
        expected = 2 if self.point.case.quantizes else len(self.exact)
        if len(outputs) != expected:
            return f"{len(outputs)} outputs instead of {expected}"
        if self.point.case.quantizes:
            if wrong := self._compare_quantized(outputs[0], outputs[1], self.exact[0]):
                return wrong
        else:
            for i, (out, exact) in enumerate(zip(outputs, self.exact, strict=True)):
                if wrong := self._compare(out, exact):
                    return f"output {i}: {wrong}" if len(outputs) > 1 else wrong
        if not all(_same_bits(a, b) for a, b in zip(self.inputs.arguments(0), self.before, strict=True)):
            for mine, kept in zip(self.inputs.arguments(0), self.before, strict=True):
                mine.copy_(kept)
            return "it modified an input"
        return ""

    def _compare(self, out: Any, exact: Tensor) -> str:
        if not isinstance(out, Tensor) or out.shape != exact.shape or out.dtype != self.before[0].dtype:
            return f"a {getattr(out, 'dtype', type(out))} of shape {tuple(getattr(out, 'shape', ()))}"
        unit = self.point.case.roundings * UNIT_ROUNDOFF[self.point.dtype]
        scale = self.point.case.scale
        error_sum = size_sum = outside = not_finite = 0.0
        for rows in _slabs(exact, self.point.case.together):
            error = (out[rows].double() - exact[rows]).abs()
            size = exact[rows].abs()
            # `not <=` counts a NaN as outside.
            outside += (~(error <= unit * (size + scale))).sum().item()
            not_finite += (~out[rows].isfinite()).sum().item()
            error_sum += error.sum().item()
            size_sum += size.sum().item()
        if not_finite:
            return f"{not_finite:.0f} of {exact.numel()} values are not finite"
        if outside:
            return f"{outside:.0f} of {exact.numel()} values are too far from float64"
        if not error_sum <= unit * size_sum:
            return f"mean error {error_sum / size_sum:.1e} of the values, allowed {unit:.1e}"
        return ""

    def _compare_quantized(self, q: Any, scale: Any, exact: Tensor) -> str:
        """A number times its scale is within half a step of e4m3 of float64, beside what the norm may be off by.

        A scale is that of the largest value of its columns: a larger one would make every step larger.
        """
        if not isinstance(q, Tensor) or q.shape != exact.shape or q.dtype != torch.float8_e4m3fn:
            return f"a {getattr(q, 'dtype', type(q))} of shape {tuple(getattr(q, 'shape', ()))}"
        if not isinstance(scale, Tensor) or scale.shape != self._scales() or scale.dtype != torch.float32:
            return (
                f"scales of {getattr(scale, 'dtype', type(scale))} and {tuple(getattr(scale, 'shape', ()))}"
            )
        unit = self.point.case.roundings * UNIT_ROUNDOFF[self.point.dtype]
        outside = not_finite = wrong_scales = 0.0
        for rows in _slabs(exact, self.point.case.together):
            parts = exact[rows].view(-1, exact.shape[1] // scale.shape[1])
            scales = scale[rows].double().reshape(-1, 1)
            wanted = parts.abs().amax(-1, keepdim=True) / E4M3_LARGEST
            wrong_scales += (~((scales - wanted).abs() <= unit * wanted)).sum().item()
            numbers = q[rows].double().view(parts.shape)
            not_finite += (~numbers.isfinite()).sum().item()
            binade = torch.floor(torch.log2((parts / scales).abs().clamp(E4M3_LEAST_NORMAL, E4M3_LARGEST)))
            half_step = scales * 2.0 ** (binade - 4)
            bound = half_step + unit * (parts.abs() + self.point.case.scale * scales)
            outside += (~((numbers * scales - parts).abs() <= bound)).sum().item()
        if not_finite:
            return f"{not_finite:.0f} of {exact.numel()} values are not finite"
        if wrong_scales:
            return f"{wrong_scales:.0f} of {scale.numel()} scales are too far from float64"
        if outside:
            return f"{outside:.0f} of {exact.numel()} values are too far from float64"
        return ""


def _exact(point: Point, arguments: list[Tensor]) -> list[Tensor]:
    large, vectors = arguments[: point.case.reads], arguments[point.case.reads :]
    exact = [
        torch.empty(large[0].shape, dtype=torch.float64, device=large[0].device)
        for _ in range(point.case.writes)
    ]
    for rows in _slabs(large[0], point.case.together):
        result = point.case.exact(*(t[rows].double() for t in large), *(v.double() for v in vectors))
        for kept, part in zip(exact, result if isinstance(result, tuple) else (result,), strict=True):
            kept[rows] = part
    return exact


def _slabs(tensor: Tensor, together: int) -> Iterator[slice]:
    height = max(1, _SLAB_ELEMENTS // tensor.shape[1] // together) * together
    for start in range(0, tensor.shape[0], height):
        yield slice(start, start + height)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    bits = torch.int32 if a.element_size() == 4 else torch.int16
    return torch.equal(a.view(bits), b.view(bits))
