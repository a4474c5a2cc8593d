"""The kernel that onepass writes for an operator on a device, whether that device is here or not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from onepass.capture.absent import generate_graph
from onepass.codegen.arguments import Field
from onepass.codegen.emit import Source
from onepass.device import Device
from onepass.errors import BadLadder, NotAtThisShape
from onepass.ir.symbol import Poly
from onepass.ladder.rungs import Operator
from onepass.plan.schedules.row import RowSchedule
from onepass.plan.schedules.row_cluster import ClusterSchedule


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
    """The kernel that a PyTorch function of the operator's inputs becomes at a shape.

    Raises: BadLadder where that is not one kernel, NotAtThisShape where it is one that does not hold rows.
    """
    plan = generate_graph(device.name, _traced(function, operator, rows, cols)).plan
    if len(plan.kernels) != 1:
        raise BadLadder(operator.name, f"its function becomes {len(plan.kernels)} kernels")
    source, schedule = plan.kernels[0].source, plan.kernels[0].schedule
    if not isinstance(schedule, RowSchedule | ClusterSchedule):
        raise NotAtThisShape(
            operator.name,
            f"at {cols} columns it is written as {schedule.family}, which the ladder can't launch",
            "Choose smaller --cols.",
        )
    given = dict(zip(plan.program.inputs, operator.inputs, strict=True))
    (output,) = operator.outputs
    arguments = tuple(_argument(f, given, output) for f in source.block)
    chain = schedule.steps * schedule.width + math.log2(schedule.lanes)
    blocks = rows * schedule.blocks if isinstance(schedule, ClusterSchedule) else -(-rows // schedule.groups)
    return Generated(source, blocks, schedule.threads, schedule.shared_bytes, arguments, chain)


def _argument(f: Field, given: dict[str, str], output: str) -> str | int:
    if f.kind == "pointer":
        return given.get(f.tensor, output)
    size = f.size if f.kind == "size" else 0
    assert not isinstance(size, Poly)
    return int(size)


def _traced(function: Callable[..., Tensor], operator: Operator, rows: int, cols: int) -> GraphModule:
    """The function's graph of ATen ops at a shape. Nothing is allocated."""
    shapes = {"full": (rows, cols), "col": (cols,), "row": (rows,)}
    with torch.no_grad(), FakeTensorMode():
        inputs = [torch.empty(shapes[e]) for e in operator.inputs.values()]
        return make_fx(function, tracing_mode="real")(*inputs)
