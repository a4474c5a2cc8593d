"""Measured roofs of this user's devices: what they are, and where they are kept. `insight.calibrate` measures them."""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from onepass.analysis.roofline import Roof, datasheet_roof, peak_gflops
from onepass.device import Device, find
from onepass.errors import UnknownGpu, writing
from onepass.plan.predict import Rates, assumed
from onepass.runtime.cache import default_directory

SCHEMA = "onepass.calibrate/1"
# Quartiles of a steady measurement are closer than this.
STEADY = 1.3


@dataclass(frozen=True)
class MemoryRoof:
    """What the best stream kernel of a mix reached. Units: GB/s of reads plus writes, the median and its quartiles."""

    reads: int
    writes: int
    gbps: float
    low_gbps: float
    high_gbps: float
    kernel: str


@dataclass(frozen=True)
class Calibration:
    """One machine's measured roofs.

    Units: ``fp32_gflops`` in 1e9 operations a second, a multiply-add counted as two; times in µs: ``launch_us`` of an empty
    kernel on the device (one of many in a CUDA graph; on a CPU a call), ``start_us`` of a generated one of one wave without
    its bytes and its arithmetic, ``wait_us`` from asking memory to having it, ``host_us`` what starting takes the host.
    """

    device: str  # as the driver calls it
    kind: str
    arch: str
    memory: tuple[MemoryRoof, ...]
    fp32_gflops: float
    launch_us: float
    start_us: float
    wait_us: float
    host_us: float
    stream_bytes: int
    rounds: int
    machine: str  # versions, threads, clocks
    date: str

    @property
    def disturbed(self) -> bool:
        """Whether other work on the machine shows: quartiles of a mix further apart than `STEADY`."""
        return any(m.high_gbps > STEADY * m.low_gbps for m in self.memory)

    @property
    def best_gbps(self) -> float:
        """The most of all mixes."""
        return max(m.gbps for m in self.memory)

    @property
    def roof(self) -> Roof:
        """As a roofline takes it."""
        return Roof("measured", self.best_gbps, self.fp32_gflops, self.source, self.mixes, self.launch_us)

    @property
    def mixes(self) -> tuple[tuple[float, float], ...]:
        """Bandwidths by the share of reads in what is moved."""
        return tuple((m.reads / (m.reads + m.writes), m.gbps) for m in self.memory)

    @property
    def source(self) -> str:
        return f"onepass calibrate, {self.date}, {self.machine}"

    def rates(self, device: Device) -> Rates:
        """As the time model takes them: instructions go at the rate of the measured multiply-adds, on a CPU at half of it.

        Those wait for nothing, which no kernel's do; on a GPU other warps fill the time.
        """
        faster = self.fp32_gflops / peak_gflops(device) * (0.5 if self.kind == "cpu" else 1.0)
        issue, special = faster * device.issue_giops, faster * device.special_giops
        return Rates(self.mixes, issue, special, self.start_us, self.wait_us, self.source)

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self), "memory": [asdict(m) for m in self.memory]}

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Calibration:
        """Read what `to_dict` gave. Raises: KeyError, TypeError, ValueError for anything else, a rate that is none too."""
        if kept["schema"] != SCHEMA:
            raise ValueError(kept["schema"])
        fields = {k: v for k, v in kept.items() if k != "schema"}
        found = cls(**{**fields, "memory": tuple(MemoryRoof(**m) for m in kept["memory"])})
        rates = (found.fp32_gflops, found.best_gbps, *(m.gbps for m in found.memory), found.launch_us)
        if not all(0 < rate < math.inf for rate in rates) or not all(
            0 <= us < math.inf for us in (found.start_us, found.wait_us)
        ):
            raise ValueError("a rate that is none")
        return found


def rates_of(device: Device) -> Rates:
    """What a device's times are predicted from: measured on this machine, or assumed."""
    measured = kept(cpu_name() if device.kind == "cpu" else device.name)
    return measured.rates(device) if measured else assumed(device)


# Kept


def path_of(device: str) -> Path:
    """Where a machine's roofs are kept: beside the compiled kernels; `onepass cache clear` leaves them."""
    return default_directory() / "calibration" / (re.sub(r"[^A-Za-z0-9]+", "-", device).strip("-") + ".json")


def kept(device: str) -> Calibration | None:
    """The roofs measured for a device by this user on this machine, or None."""
    try:
        found = Calibration.from_dict(json.loads(path_of(device).read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.device == device else None


def keep(found: Calibration) -> Path:
    """Write a machine's roofs to their place. Raises: CannotWrite."""
    path = path_of(found.device)
    new = path.with_suffix(f".{os.getpid()}.new")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(found.to_dict(), indent=2) + "\n")
        new.replace(path)
    return path


def present(device: torch.device) -> str:
    """The name that a device's roofs are kept under."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def cpu_name() -> str:
    """The processor's model and the threads that PyTorch uses, which its roofs depend on."""
    return f"{_cpu_model()}, {torch.get_num_threads()} threads"


@cache
def _cpu_model() -> str:
    model = ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        pass
    return model or platform.processor() or platform.machine()


def roofs_of(name: str) -> tuple[Roof, ...]:
    """The roofs that are known of a device: its datasheet's if the table has it, then what was measured here, if it was."""
    roofs = []
    try:
        sheet = datasheet_roof(find(name))
        roofs += [sheet] if sheet else []
    except UnknownGpu:
        pass  # a processor, or a card that the table does not have: its measured roof alone
    measured = kept(name)
    return (*roofs, measured.roof) if measured else tuple(roofs)


def model_roof(device: Device) -> Roof:
    """What the time model takes a device to reach."""
    rates = rates_of(device)
    peak = peak_gflops(device) * rates.issue_giops / device.issue_giops
    return Roof("time model", max(gbps for _, gbps in rates.mixes), peak, rates.source, rates.mixes)
