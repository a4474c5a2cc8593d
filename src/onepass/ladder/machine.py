"""The device that a ladder is judged for: its roof, its ridge, and what its multiprocessors hold."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.analysis.occupancy import WARP, occupancy
from onepass.device import KNOWN, Device
from onepass.ladder.errors import UnknownGpu
from onepass.ladder.rungs import near

# Datasheet: GB/s and fp32 GFLOP/s. Sources: NVIDIA data sheets of V100 SXM2, A100 80GB SXM, H100 SXM5, H200 SXM.
_DATASHEET = {
    "Tesla V100-SXM2-16GB": (900.0, 15700.0),
    "NVIDIA A100-SXM4-80GB": (2039.0, 19500.0),
    "NVIDIA H100 80GB HBM3": (3350.0, 66900.0),
    "NVIDIA H200": (4800.0, 66900.0),
}


@dataclass(frozen=True)
class Machine:
    """A GPU by name. Units: GB/s, GFLOP/s."""

    device: Device
    datasheet_gbps: float
    fp32_gflops: float

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def ridge(self) -> float:
        """FLOPs a byte at which arithmetic takes as long as memory, by the datasheet."""
        return self.fp32_gflops / self.datasheet_gbps


@dataclass(frozen=True)
class Occupied:
    """What of a multiprocessor a kernel's blocks fill: of its thread slots, and of its warps (NVIDIA's occupancy)."""

    blocks: int
    thread: float
    warp: float


def named(name: str) -> Machine:
    """A device of the table.

    Raises: UnknownGpu with the nearest names.
    """
    short = name.lower().replace(" ", "-")
    found = [d for d in KNOWN if short in d.name.lower().replace(" ", "-")]
    if not found or not short:
        words = [w for d in KNOWN for w in (d.name, d.name.split()[1].split("-")[0])]
        raise UnknownGpu(name, near(name, words))
    gbps, gflops = _DATASHEET[found[0].name]
    return Machine(found[0], gbps, gflops)


def occupied(machine: Machine, registers: int, threads: int, shared_bytes: int) -> Occupied:
    """Both occupancies of blocks of `threads`, with so many registers a thread and shared bytes a block."""
    device = machine.device
    warp = occupancy(registers, threads, shared_bytes, device)
    blocks = round(warp * device.threads / WARP) // -(-threads // WARP)
    return Occupied(blocks, blocks * threads / device.threads, warp)


def present() -> Machine | None:
    """The GPU that is here, if there is one and the table knows it."""
    import torch

    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    found = next((d for d in KNOWN if d.name == name), None)
    return Machine(found, *_DATASHEET[name]) if found else None
