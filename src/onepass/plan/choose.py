"""Which schedules can run a cluster on a device, the best first."""

from __future__ import annotations

from typing import Any

from onepass.device import Device
from onepass.ir.cluster import Cluster
from onepass.ir.kernel import Kernel
from onepass.plan.lower import lower
from onepass.plan.schedules import (
    blocks,
    cpu,
    cpu_parts,
    flat,
    row,
    row_cluster,
    row_grid,
    row_serial,
    row_stream,
    row_strided,
    row_walk,
    tiled,
)
from onepass.plan.schedules.cpu import CpuSchedule
from onepass.plan.schedules.flat import FlatSchedule
from onepass.plan.schedules.row import RowSchedule
from onepass.plan.schedules.row_cluster import ClusterSchedule
from onepass.plan.schedules.row_grid import GridSchedule
from onepass.plan.schedules.row_serial import SerialSchedule
from onepass.plan.schedules.row_stream import StreamSchedule
from onepass.plan.schedules.row_strided import StridedSchedule
from onepass.plan.schedules.row_walk import WalkSchedule
from onepass.plan.schedules.tiled import TiledSchedule
from onepass.plan.spaces import Layout, turned

Schedule = (
    CpuSchedule
    | FlatSchedule
    | RowSchedule
    | ClusterSchedule
    | GridSchedule
    | SerialSchedule
    | StreamSchedule
    | StridedSchedule
    | TiledSchedule
    | WalkSchedule
)
Candidate = tuple[Kernel, Schedule]


def candidates(cluster: Cluster, layout: Layout, device: Device) -> list[Candidate] | str:
    """Kernels with a schedule each: the first is chosen, the next ones are for when the compiler spills."""
    held = lower(cluster, layout)
    if isinstance(held, str):
        return held
    if device.kind == "cpu":
        if held.block % cpu.LANES:
            return f"too_large: blocks of {held.block} columns are no whole vectors of {cpu.LANES}"
        return [(held, cpu_parts.parts(held) if cpu_parts.fits(held) else cpu.schedule(held))]
    if not held.reduces:
        made = flat.schedules(held, device)
        tiles = tiled.schedules(held, device)
        first = [] if isinstance(tiles, str) else [(held, s) for s in tiles]
        return made if isinstance(made, str) else [*first, *((held, s) for s in made)]
    walked = lower(cluster, layout, hold=False)
    assert not isinstance(walked, str)
    if held.block:
        return _of_blocks(held, walked, device)
    if held.scans:
        return _of_scans(held, walked, device)
    if row_serial.needed(held) or blocks.irregular(held):
        return _of_any_class(held, walked, device)
    held, walked = blocks.straightened(held), blocks.straightened(walked)
    found: list[Candidate] = [] if held.blocks else _across(cluster, layout, device)
    reasons = []
    for module in _on_chip(held):
        shared = module.schedules((held, walked), device)
        if isinstance(shared, str):
            reasons.append(shared)
        else:
            found += [(shared[0], s) for s in shared[1]]
    for kernel, tried in (
        (held, row.schedules(held, device)),
        (held, row_strided.held(held, device)),
        (walked, row_strided.walked(walked, device)),
        (walked, row_stream.schedules(walked, device)),
    ):
        if isinstance(tried, str):
            reasons.append(tried)
        else:
            found += [(kernel, s) for s in tried]
    return found or "; ".join(reasons)


def _on_chip(kernel: Kernel) -> tuple[Any, ...]:
    """What holds rows that one block does not, in the order tried."""
    long = isinstance(kernel.cols, int) and kernel.cols > row_grid.FROM_COLUMNS
    return (row_grid, row_cluster) if long else (row_cluster, row_grid)


def _across(cluster: Cluster, layout: Layout, device: Device) -> list[Candidate]:
    """Of rows that run across memory: neighbouring threads take neighbouring rows."""
    across = turned(layout)
    if across is None:
        return []
    found: list[Candidate] = []
    for hold, schedules in ((True, row_strided.held), (False, row_strided.walked)):
        kernel = lower(cluster, across, hold)
        tried = kernel if isinstance(kernel, str) else schedules(kernel, device, rows=True)
        found += [] if isinstance(tried, str) or isinstance(kernel, str) else [(kernel, s) for s in tried]
    return found


def _of_blocks(held: Kernel, walked: Kernel, device: Device) -> list[Candidate] | str:
    """What is reduced over blocks of columns too: where neighbouring lanes have a block."""
    lanes = held.block // row.vector_width(held)
    if lanes * row.vector_width(held) != held.block or lanes & (lanes - 1) or lanes > row.WARP:
        return f"too_large: no lanes of one warp hold a block of {held.block} columns"
    found: list[Candidate] = []
    shared = "" if row_serial.needed(held) else row_cluster.schedules((held, walked), device)
    if not isinstance(shared, str):
        found += [(shared[0], s) for s in shared[1]]
    inside = row.schedules(held, device)
    if not isinstance(inside, str):
        found += [(held, s) for s in inside]
    return found or f"too_large: {shared or inside}"


def _of_scans(held: Kernel, walked: Kernel, device: Device) -> list[Candidate] | str:
    """What runs along a row: in the order of its lanes, or one thread where neighbours have other rows."""
    found: list[Candidate] = []
    for kernel, tried in (
        (held, row.schedules(held, device)),
        (walked, row_serial.schedules(walked, device)),
    ):
        found += [] if isinstance(tried, str) else [(kernel, s) for s in tried]
    return found or "too_large: a scan of a row that registers do not hold"


def _of_any_class(held: Kernel, walked: Kernel, device: Device) -> list[Candidate] | str:
    """What float64, integers, positions and columns of several strides have: the schedules that know them."""
    registers = "several strides" if held.blocks else row.schedules(held, device)
    found: list[Candidate] = [] if isinstance(registers, str) else [(held, s) for s in registers]
    for tried in (row_serial.schedules(walked, device), row_walk.schedules(walked, device)):
        found += [] if isinstance(tried, str) else [(walked, s) for s in tried]
    return found or "too_large: a concatenation in a row that does not fit in registers"


def kernel_name(schedule: Schedule, cluster: Cluster) -> str:
    """Schedule, ops and dtype: the same text for the same work."""
    ops = [o.split(".")[0].removeprefix("native_").strip("_") for o in cluster.origins]
    short = [o for o in ops if o not in ("clone", "copy", "to_copy", "lift_fresh_copy")] or ops
    kinds = dict.fromkeys(cluster.tensors[s.tensor].dtype.short for s in cluster.stores)
    words = "_".join(
        [schedule.family.replace("-", "_"), *short[:6], *(["more"] if len(short) > 6 else []), *kinds]
    )
    return "".join(c if c.isalnum() else "_" for c in words)
