"""The machine's facts that plans and reports use. Each number has its source."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from onepass.errors import NoSuchArchitecture


@dataclass(frozen=True)
class Device:
    """One machine to run on.

    Units: bandwidth in GB/s (1e9 bytes), time in µs, instruction rates in 1e9 lane instructions a second,
    shared memory and L2 in bytes.
    """

    name: str
    kind: Literal["cuda", "cpu"]
    arch: str  # sm_90, x86-64, …
    bandwidth_gbps: float  # what a copy of large tensors reaches, reads plus writes
    launch_us: float  # host and device time of an empty kernel in a busy stream
    issue_giops: float  # lane instructions
    special_giops: float  # exp2, reciprocal, reciprocal square root, tanh
    units: int  # multiprocessors, or cores
    registers: int = 65536  # a multiprocessor
    threads: int = 2048  # resident, a multiprocessor
    blocks: int = 32  # resident, a multiprocessor
    shared_bytes: int = 0  # a multiprocessor
    l2_bytes: int = 0
    source: str = ""


def _cuda(
    name: str,
    arch: str,
    gbps: float,
    units: int,
    ghz: float,
    threads: int,
    shared: int,
    l2: int,
    source: str,
    blocks: int = 32,
) -> Device:
    # Four schedulers a multiprocessor issue one warp instruction of 32 lanes a cycle; 16 special-function lanes.
    return Device(
        name,
        "cuda",
        arch,
        gbps,
        2.0,
        units * 128 * ghz,
        units * 16 * ghz,
        units,
        threads=threads,
        blocks=blocks,
        shared_bytes=shared,
        l2_bytes=l2,
        source=source,
    )


KNOWN: tuple[Device, ...] = (
    _cuda(
        "NVIDIA H200",
        "sm_90",
        4300,
        132,
        1.755,
        2048,
        233472,
        60 << 20,
        "copy of 2 x 512 MiB measured 2026-11-30; H100 tuning guide",
    ),
    _cuda(
        "NVIDIA H100 80GB HBM3",
        "sm_90",
        3000,
        132,
        1.755,
        2048,
        233472,
        50 << 20,
        "datasheet 3350 GB/s x 0.9; H100 tuning guide",
    ),
    _cuda(
        "NVIDIA A100-SXM4-80GB",
        "sm_80",
        1800,
        108,
        1.41,
        2048,
        167936,
        40 << 20,
        "datasheet 2039 GB/s x 0.88; A100 tuning guide",
    ),
    _cuda(
        "Tesla V100-SXM2-16GB",
        "sm_70",
        800,
        80,
        1.53,
        2048,
        98304,
        6 << 20,
        "datasheet 900 GB/s x 0.88; Volta tuning guide",
    ),
)


@cache
def cpu() -> Device:
    """The host. Bandwidth and rates are assumptions for ranking plans, not measurements."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Device(
        "cpu",
        "cpu",
        "host",
        12.0 * max(cores, 1) ** 0.8,
        3.0,
        24.0 * cores,
        2.0 * cores,
        cores,
        source="assumed: 12 GB/s and 24 G lane instructions a core",
    )


# Blocks that a multiprocessor holds, where it is not 32. Source: cuda_occupancy.h of CUDA 13.0.
_BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24, (12, 1): 24}


@cache
def cuda(index: int = 0) -> Device:
    """The CUDA device with this index. Raises what torch raises when there is none."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    for device in KNOWN:
        if device.name == properties.name:
            return device
    major, minor = properties.major, properties.minor
    gbps = (
        0.88
        * 2
        * getattr(properties, "memory_clock_rate", 1_000_000)
        * getattr(properties, "memory_bus_width", 256)
        / 8
        / 1e6
    )
    return _cuda(
        properties.name,
        f"sm_{major}{minor}",
        gbps,
        properties.multi_processor_count,
        getattr(properties, "clock_rate", 1_500_000) / 1e6,
        properties.max_threads_per_multi_processor,
        getattr(properties, "shared_memory_per_multiprocessor", 65536),
        properties.L2_cache_size,
        "read from the driver: 88 % of clock x bus width",
        _BLOCKS.get((major, minor), 32),
    )


# Resident threads, blocks and shared bytes of architectures that no record above has.
# Source: CUDA C++ programming guide, table of compute capabilities; cuda_occupancy.h of CUDA 13.0.
_LIMITS = {
    75: (1024, 16, 65536),
    86: (1536, 16, 102400),
    87: (1536, 16, 167936),
    89: (1536, 24, 102400),
    100: (2048, 32, 233472),
    103: (2048, 32, 233472),
    120: (1536, 24, 102400),
    121: (1536, 24, 102400),
}


@cache
def of_arch(arch: str) -> Device:
    """A card of an architecture, to plan and compile for where none is present: sm_86. Raises: NoSuchArchitecture."""
    found = next((d for d in KNOWN if d.arch == arch), None)
    if found:
        return found
    number = arch.removeprefix("sm_").rstrip("af")
    if not arch.startswith("sm_") or not number.isdigit() or int(number) not in _LIMITS:
        known = sorted({*(int(d.arch[3:]) for d in KNOWN), *_LIMITS})
        raise NoSuchArchitecture(arch, tuple(f"sm_{n}" for n in known))
    threads, blocks, shared = _LIMITS[int(number)]
    base = KNOWN[0] if int(number) >= 90 else KNOWN[2]
    return replace(
        base,
        name=arch,
        arch=arch,
        threads=threads,
        blocks=blocks,
        shared_bytes=shared,
        source="limits of the architecture",
    )


def of(torch_device: str) -> Device:
    """The record for ``cpu`` or ``cuda:1``, or of an architecture, ``sm_86``."""
    if torch_device.startswith("sm_"):
        return of_arch(torch_device)
    if torch_device.startswith("cuda"):
        _, _, index = torch_device.partition(":")
        return cuda(int(index or 0))
    return cpu()


@cache
def last_cache_bytes() -> int:
    """The size of the host's last cache; 32 MiB where the system does not say."""
    for index in (3, 2):
        try:
            text = Path(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size").read_text().strip()
            return int(text.removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    return 32 << 20
