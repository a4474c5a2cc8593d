"""The kernel that onepass writes for an operator on a device, whether that device is here or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from onepass.build import fit
from onepass.capture.normalize import normalize
from onepass.codegen.arguments import Field
from onepass.codegen.emit import Source, emit
from onepass.device import Device
from onepass.errors import BadLadder
from onepass.ir.cluster import Cluster, Program
from onepass.ir.symbol import Poly
from onepass.ladder.rungs import Operator
from onepass.plan.choose import Candidate, candidates, kernel_name
from onepass.plan.merge import merge
from onepass.plan.schedules.row import RowSchedule
from onepass.plan.spaces import lay_out
from onepass.runtime.load import binary


@dataclass(frozen=True)
class Generated:
    """A written kernel with its launch; `arguments` are names of tensors and numbers, in order."""

    source: Source
    grid: int
    threads: int
    shared_bytes: int
    arguments: tuple[str | int, ...]
    chain: float


def generate(
    function: Callable[..., Tensor], operator: Operator, rows: int, cols: int, device: Device
) -> Generated:
    """The kernel of a PyTorch function of the operator's inputs, the first of its schedules that does not spill.

    Raises: BadLadder where the function does not become one kernel that holds rows.
    """
    program = _program(function, operator, rows, cols)
    clusters = [item for item in merge(program, {}, fit, None).items if isinstance(item, Cluster)]
    if len(clusters) != 1:
        raise BadLadder(operator.name, f"its function becomes {len(clusters)} kernels")
    cluster = clusters[0]
    layout = lay_out(cluster)
    found = layout if isinstance(layout, str) else candidates(cluster, layout, device)
    if isinstance(found, str):
        raise BadLadder(operator.name, f"no schedule takes it: {found}")
    source, schedule = _leanest(cluster, found, device)
    given = dict(zip(program.inputs, operator.inputs, strict=True))
    (output,) = operator.outputs
    arguments = tuple(_argument(f, given, output) for f in source.block)
    chain = schedule.steps * schedule.width + math.log2(schedule.lanes)
    grid = -(-rows // schedule.groups)
    return Generated(source, grid, schedule.threads, schedule.shared_bytes, arguments, chain)


def _leanest(cluster: Cluster, found: Sequence[Candidate], device: Device) -> tuple[Source, RowSchedule]:
    """The first candidate that does not spill, or the last there is."""
    rows = [(kernel, s) for kernel, s in found if isinstance(s, RowSchedule)]
    if not rows:
        raise BadLadder(", ".join(cluster.origins), "none of its schedules holds rows")
    for kernel, schedule in rows:
        source = emit(kernel, schedule, kernel_name(schedule, cluster))
        if binary(source, device.arch).resources.spill_bytes == 0:
            break
    return source, schedule


def _argument(f: Field, given: dict[str, str], output: str) -> str | int:
    if f.kind == "pointer":
        return given.get(f.tensor, output)
    size = f.size if f.kind == "size" else 0
    assert not isinstance(size, Poly)
    return int(size)


def _program(function: Callable[..., Tensor], operator: Operator, rows: int, cols: int) -> Program:
    """The function's graph of ATen ops at a shape, as clusters."""
    shapes = {"full": (rows, cols), "col": (cols,), "row": (rows,)}
    with torch.no_grad(), FakeTensorMode():
        inputs = [torch.empty(shapes[e]) for e in operator.inputs.values()]
        graph = make_fx(function, tracing_mode="real")(*inputs)
        return normalize(graph, fit).program
