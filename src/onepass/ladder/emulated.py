"""A rung run on the CPU: whether it is right, and what it executes a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from onepass.emulate import Buffer, EmulatedKernel, LaunchReport, compile_for_host, compile_handwritten
from onepass.errors import KernelFault
from onepass.ladder.rungs import FLOAT_BYTES, Data, Ladder, Operator, Rung
from onepass.ladder.steps import Step, Steps


@dataclass(frozen=True)
class Counts:
    """What is executed for one row, over all kernels of a rung.

    ``memory_instructions`` are those of a warp: a load of 32 lanes is one. ``moved_bytes`` counts every load and store,
    whether a cache serves it or not.
    """

    barriers: float
    memory_instructions: float
    lane_accesses: float
    moved_bytes: float


@dataclass(frozen=True)
class Finding:
    """What became of one kind of data. ``error`` is the largest error over what is allowed; None where it stopped."""

    data: str
    rows: int
    cols: int
    error: float | None
    fault: str = ""
    kind: str = ""
    line: int | None = None

    @property
    def right(self) -> bool:
        return self.error is not None and self.error <= 1


def inputs_of(
    operator: Operator, data: Data, rows: int, cols: int, seed: int = 0, device: str = "cpu"
) -> dict[str, Tensor]:
    """Random fp32 inputs by name, the same each time."""
    generator = torch.Generator(device).manual_seed(seed)

    def make(extent: str) -> Tensor:
        shape = {"full": (rows, cols), "col": (cols,), "row": (rows,)}[extent]
        x = torch.randn(shape, generator=generator, device=device)
        return x * data.deviation + data.mean if extent == "full" else x

    return {name: make(extent) for name, extent in operator.inputs.items()}


def judge(
    ladder: Ladder, operator: Operator, chain: float, inputs: Mapping[str, Tensor], result: Tensor
) -> float:
    """The largest error over what fp32 with such a chain of additions may be off by; infinite for NaN.

    In float64, slab by slab, where the tensors are.
    """
    reference, allowed = ladder.function(operator.name), ladder.function(f"{operator.name}_allowed")
    largest = 0.0
    for rows in _slabs(result.shape[0]):
        wide = [(inputs[n][rows] if e != "col" else inputs[n]).double() for n, e in operator.inputs.items()]
        error = (result[rows].double() - reference(*wide)).abs() / allowed(chain, *wide)
        largest = max(largest, float(error.nan_to_num(nan=float("inf")).max()))
    return largest


def _slabs(rows: int, height: int = 4096) -> Iterator[slice]:
    for start in range(0, rows, height):
        yield slice(start, min(rows, start + height))


def run(
    ladder: Ladder, rung: Rung, steps: Steps, data: Data, rows: int, cols: int, order_seed: int = 0
) -> tuple[Finding, Counts | None]:
    """Run a rung on the CPU, every access watched; its outputs held NaN before."""
    operator = ladder.operators[rung.operator]
    inputs = inputs_of(operator, data, rows, cols)
    before = {name: x.clone() for name, x in inputs.items()}
    (output,) = operator.outputs
    result = torch.full((rows, cols), float("nan"))
    made = {name: torch.full((n,), float("nan")) for name, n in steps.scratch.items()}
    try:
        reports = _launch_all(steps.steps, inputs, {output: result, **made}, order_seed)
    except KernelFault as fault:
        line = fault.lines[0][0] if fault.lines else None
        return Finding(data.name, rows, cols, None, str(fault), fault.kind, line), None
    if any(not torch.equal(inputs[n], x) for n, x in before.items()):
        return Finding(data.name, rows, cols, None, "it changed an input", "changed-input"), None
    error = judge(ladder, operator, steps.chain, inputs, result)
    return Finding(data.name, rows, cols, error), _counts(reports, rows)


def _launch_all(
    steps: Sequence[Step], inputs: Mapping[str, Tensor], made: Mapping[str, Tensor], order_seed: int
) -> list[LaunchReport]:
    buffers = [_buffer(n, x, False) for n, x in inputs.items()] + [
        _buffer(n, x, True) for n, x in made.items()
    ]
    addresses = {b.name: b.address for b in buffers}
    return [
        emulated(s).launch(s.grid, s.block, s.shared_bytes, s.packed(addresses), buffers, order_seed)
        for s in steps
    ]


def _buffer(name: str, x: Tensor, writable: bool) -> Buffer:
    return Buffer(name, x.data_ptr(), x.numel() * FLOAT_BYTES, writable)


def _counts(reports: Sequence[LaunchReport], rows: int) -> Counts:
    barriers = accesses = instructions = moved = 0.0
    for report in reports:
        lanes = sum(b.reads + b.writes for b in report.buffers)
        accesses += lanes
        instructions += report.memory_instructions("global")
        barriers += report.barriers
        moved += sum(b.read_bytes + b.written_bytes for b in report.buffers)
    return Counts(barriers / rows, instructions / rows, accesses / rows, moved / rows)


def emulated(step: Step) -> EmulatedKernel:
    """A kernel for the CPU."""
    return _compiled(step.kernel, step.text, step.block_struct)


@cache
def _compiled(kernel: str, text: str, generated: bool) -> EmulatedKernel:
    if generated:
        return compile_for_host(text, kernel)
    return compile_handwritten(text, kernel).emulated
