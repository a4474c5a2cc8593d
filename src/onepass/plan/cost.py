"""The time model: how long a cluster's traffic and work take on a device."""

from __future__ import annotations

from onepass.analysis.roofline import limits_us
from onepass.analysis.traffic import Hints, Traffic, number, traffic
from onepass.device import Device

__all__ = ["Hints", "Traffic", "number", "time_us", "traffic"]


def time_us(work: Traffic, device: Device) -> float:
    """Bound by memory, by issue or by special functions, plus a launch."""
    limits = limits_us(work, device)
    launch = limits.pop("launch")
    return max(limits.values()) + launch
