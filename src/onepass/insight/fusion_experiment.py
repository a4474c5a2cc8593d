"""GELU + Add + LayerNorm run three ways: one kernel an op, the first two fused, all three fused."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.functional import gelu, layer_norm

from onepass.runtime.timer import Spread, interleaved

WAYS = EAGER, TWO_FUSED, ALL_FUSED, PLAIN_ADD = "eager", "two fused", "all fused", "plain add"

_FP32_BYTES = 4
# A normalised value is about 1, and fp32 rounds each of the three steps; a wrong kernel is far outside.
_LARGEST_ERROR = 1e-4

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
Traffic = tuple[int, int]
PlanOf = Callable[..., Traffic]


@dataclass(frozen=True)
class Way:
    """One way to run the three ops, measured.

    Units: `bytes_moved` counts each kernel's inputs and outputs once, for what was compiled as its plan says;
    `gbps` is that over the median time.
    """

    name: str
    kernels: int
    bytes_moved: int
    us: Spread
    speedup: Spread | None
    largest_error: float | None

    @property
    def gbps(self) -> float:
        """Effective bandwidth in GB/s."""
        return self.bytes_moved / self.us.median / 1e3

    @property
    def right(self) -> bool:
        """Whether the result is the float64 one to fp32 rounding; the plain add has no result to compare."""
        return self.largest_error is None or self.largest_error <= _LARGEST_ERROR

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form."""
        return {
            "name": self.name,
            "kernels": self.kernels,
            "bytes_moved": self.bytes_moved,
            "us": self.us.to_dict(),
            "gbps": self.gbps,
            "speedup": self.speedup.to_dict() if self.speedup else None,
            "largest_error": self.largest_error,
        }


@dataclass(frozen=True)
class Experiment:
    """The ways at one shape, in fp32, from one interleaved run."""

    rows: int
    cols: int
    rounds: int
    ways: tuple[Way, ...]

    @property
    def right(self) -> bool:
        """Whether every way gave the float64 result to rounding."""
        return all(way.right for way in self.ways)

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form."""
        ways = [way.to_dict() for way in self.ways]
        return {"rows": self.rows, "cols": self.cols, "dtype": "fp32", "rounds": self.rounds, "ways": ways}


def block(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """GELU, add, LayerNorm over the last axis."""
    return layer_norm(gelu(x, approximate="tanh") + residual, x.shape[-1:], weight, bias)


def gelu_add(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """GELU and add alone."""
    return gelu(x, approximate="tanh") + residual


def default_shape(device: torch.device) -> tuple[int, int]:
    """Rows and columns: tensors large against the last cache, 512 MiB on a GPU and 64 MiB on a CPU."""
    return (131072, 1024) if device.type == "cuda" else (16384, 1024)


def run(
    compile_with: Compile, plan_of: PlanOf, device: torch.device, rows: int, cols: int, rounds: int
) -> Experiment:
    """Measure every way in one interleaved run on random fp32 inputs, and compare each result with float64.

    `compile_with(function)` makes the fused functions, `plan_of(function, *inputs)` gives kernels and bytes.
    """
    inputs = _inputs(rows, cols, device)
    x, residual, weight, bias = inputs
    fused, partly = compile_with(block), compile_with(gelu_add)
    out = torch.empty_like(x)
    calls: dict[str, Callable[[], Any]] = {
        EAGER: partial(block, *inputs),
        TWO_FUSED: lambda: layer_norm(partly(x, residual), x.shape[-1:], weight, bias),
        ALL_FUSED: partial(fused, *inputs),
        PLAIN_ADD: lambda: torch.add(x, residual, out=out),
    }
    with torch.no_grad():
        traffic = _traffic(rows, cols, plan_of(gelu_add, x, residual), plan_of(block, *inputs))
        errors = {name: _largest_error(calls[name](), inputs) for name in (EAGER, TWO_FUSED, ALL_FUSED)}
        seconds = interleaved(calls, rounds, device)
    ways = tuple(_way(name, traffic[name], seconds, errors.get(name)) for name in calls)
    return Experiment(rows, cols, rounds, ways)


def _way(name: str, traffic: Traffic, seconds: dict[str, list[float]], error: float | None) -> Way:
    faster = [eager / own for eager, own in zip(seconds[EAGER], seconds[name], strict=True)]
    speedup = None if name == PLAIN_ADD else Spread.of(faster)
    return Way(name, *traffic, Spread.of([s * 1e6 for s in seconds[name]]), speedup, error)


def _traffic(rows: int, cols: int, two: Traffic, all_three: Traffic) -> dict[str, Traffic]:
    """Kernels and bytes a way.  Eager's LayerNorm reads two row vectors and writes mean and rstd too."""
    full = _FP32_BYTES * rows * cols
    norm = 2 * full + 2 * _FP32_BYTES * cols + 2 * _FP32_BYTES * rows
    return {
        EAGER: (3, 2 * full + 3 * full + norm),
        TWO_FUSED: (two[0] + 1, two[1] + norm),
        ALL_FUSED: all_three,
        PLAIN_ADD: (1, 3 * full),
    }


def _inputs(rows: int, cols: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(device).manual_seed(0)
    shapes = ((rows, cols), (rows, cols), (cols,), (cols,))
    return tuple(torch.randn(shape, device=device, generator=generator) for shape in shapes)


def _largest_error(result: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> float:
    """Largest distance from the float64 result, worked out slab by slab; infinite if any value is NaN."""
    largest = 0.0
    for rows in _slabs(result.shape[0]):
        x, residual, weight, bias = (t[rows] if t.dim() == 2 else t for t in inputs)
        exact = block(x.double(), residual.double(), weight.double(), bias.double())
        difference = (result[rows].double() - exact).abs().max().item()
        largest = max(largest, difference if difference == difference else float("inf"))
    return largest


def _slabs(rows: int, height: int = 4096) -> Iterator[slice]:
    for start in range(0, rows, height):
        yield slice(start, start + height)
