"""The roofline: what bounds a kernel on a device, and by how much."""

from __future__ import annotations

from typing import Literal

from onepass.analysis.traffic import Traffic
from onepass.device import Device

Bound = Literal["memory", "instructions", "special functions", "launch"]


def intensity(flops: int, nbytes: int) -> float:
    """Arithmetic intensity. Units: FLOPs a byte."""
    return flops / nbytes if nbytes else 0.0


def ridge(device: Device) -> float:
    """The arithmetic intensity at which fused multiply-adds take as long as memory. Units: FLOPs a byte."""
    return 2 * device.issue_giops / device.bandwidth_gbps


def limits_us(work: Traffic, device: Device) -> dict[Bound, float]:
    """The time each resource alone would need. Units: µs."""
    return {
        "memory": work.bytes / device.bandwidth_gbps / 1000,
        "instructions": work.instructions / device.issue_giops / 1000,
        "special functions": work.special / device.special_giops / 1000,
        "launch": device.launch_us,
    }


def bound(work: Traffic, device: Device) -> Bound:
    """The resource that takes longest."""
    limits = limits_us(work, device)
    return max(limits, key=lambda name: limits[name])
