"""Which schedule runs a kernel on a device, or why none does."""

from __future__ import annotations

from onepass.device import Device
from onepass.ir.cluster import Cluster
from onepass.ir.kernel import Kernel
from onepass.plan.schedules import cpu
from onepass.plan.schedules.cpu import CpuSchedule

Schedule = CpuSchedule


def choose(kernel: Kernel, cluster: Cluster, device: Device) -> Schedule | str:
    if device.kind == "cpu":
        return cpu.schedule(kernel)
    return "no schedule for this device"


def kernel_name(schedule: Schedule, cluster: Cluster) -> str:
    """Schedule, ops and dtype: the same text for the same work."""
    ops = [o.split(".")[0].removeprefix("native_").strip("_") for o in cluster.origins]
    short = [o for o in ops if o not in ("clone", "copy", "to_copy", "lift_fresh_copy")] or ops
    kinds = dict.fromkeys(cluster.tensors[s.tensor].dtype.short for s in cluster.stores)
    words = "_".join([schedule.family.replace("-", "_"), *short[:6], *(["more"] if len(short) > 6 else []), *kinds])
    return "".join(c if c.isalnum() else "_" for c in words)
