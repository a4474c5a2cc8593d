"""The roofline: what bounds a kernel on a device, and by how much."""

from __future__ import annotations

from typing import Literal

from onepass.analysis.traffic import Traffic
from onepass.device import Device

Bound = Literal["memory", "instructions", "special functions", "launch"]


def intensity(flops: int, nbytes: int) -> float:
    """Arithmetic intensity. Units: FLOPs a byte."""
    return flops / nbytes if nbytes else 0.0


# Lanes of a multiprocessor that take an fp32 multiply-add in a cycle, where fewer than the 128 that can be issued.
# Source: NVIDIA CUDA C++ Programming Guide, throughput of native arithmetic instructions.
_FP32_LANES = {"sm_70": 64, "sm_72": 64, "sm_75": 64, "sm_80": 64}


def peak_gflops(device: Device) -> float:
    """fp32 multiply-adds of a device, two operations each. Units: 1e9 operations a second."""
    return 2 * device.issue_giops * _FP32_LANES.get(device.arch, 128) / 128


def ridge(device: Device) -> float:
    """The arithmetic intensity at which arithmetic takes as long as memory. Units: FLOPs a byte."""
    return peak_gflops(device) / device.bandwidth_gbps


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
