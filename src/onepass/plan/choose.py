"""Which schedules can run a cluster on a device, the best first."""

from __future__ import annotations

from onepass.device import Device
from onepass.ir.cluster import Cluster
from onepass.ir.kernel import Kernel
from onepass.plan.lower import lower
from onepass.plan.schedules import cpu, flat, row, row_stream, row_strided, tiled
from onepass.plan.schedules.cpu import CpuSchedule
from onepass.plan.schedules.flat import FlatSchedule
from onepass.plan.schedules.row import RowSchedule
from onepass.plan.schedules.row_stream import StreamSchedule
from onepass.plan.schedules.row_strided import StridedSchedule
from onepass.plan.schedules.tiled import TiledSchedule
from onepass.plan.spaces import Layout, turned

Schedule = CpuSchedule | FlatSchedule | RowSchedule | StreamSchedule | StridedSchedule | TiledSchedule
Candidate = tuple[Kernel, Schedule]


def candidates(cluster: Cluster, layout: Layout, device: Device) -> list[Candidate] | str:
    """Kernels with a schedule each: the first is chosen, the next ones are for when the compiler spills."""
    held = lower(cluster, layout)
    if isinstance(held, str):
        return held
    if device.kind == "cpu":
        return [(held, cpu.schedule(held))]
    if not held.reduces:
        made = flat.schedules(held, device)
        turned = tiled.schedules(held, device)
        first = [] if isinstance(turned, str) else [(held, s) for s in turned]
        return made if isinstance(made, str) else [*first, *((held, s) for s in made)]
    walked = lower(cluster, layout, hold=False)
    assert not isinstance(walked, str)
    found: list[Candidate] = _across(cluster, layout, device)
    reasons = []
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


def kernel_name(schedule: Schedule, cluster: Cluster) -> str:
    """Schedule, ops and dtype: the same text for the same work."""
    ops = [o.split(".")[0].removeprefix("native_").strip("_") for o in cluster.origins]
    short = [o for o in ops if o not in ("clone", "copy", "to_copy", "lift_fresh_copy")] or ops
    kinds = dict.fromkeys(cluster.tensors[s.tensor].dtype.short for s in cluster.stores)
    words = "_".join(
        [schedule.family.replace("-", "_"), *short[:6], *(["more"] if len(short) > 6 else []), *kinds]
    )
    return "".join(c if c.isalnum() else "_" for c in words)
