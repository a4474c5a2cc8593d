"""The device that a ladder is judged for: its roof, its ridge, and what its multiprocessors hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from onepass.analysis.occupancy import resident
from onepass.device import Card, Device, absent, cards, find
from onepass.errors import NoRoof


@dataclass(frozen=True)
class Machine:
    """A GPU by name. Units: GB/s, GFLOP/s, by its datasheet; ``fp32_gflops`` is None where the table does not have it."""

    device: Device
    card: Card
    datasheet_gbps: float
    fp32_gflops: float | None

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def ridge(self) -> float | None:
        """FLOPs a byte at which arithmetic takes as long as memory."""
        return None if self.fp32_gflops is None else self.fp32_gflops / self.datasheet_gbps


@dataclass(frozen=True)
class Occupied:
    """What of a multiprocessor a kernel's blocks fill: of its thread slots, and of its warps (NVIDIA's occupancy)."""

    blocks: int
    thread: float
    warp: float


def named(name: str) -> Machine:
    """A device of the table.

    Raises: UnknownGpu with the nearest names; NoRoof where the table has no bandwidth.
    """
    return _machine(find(name))


def present() -> Machine | None:
    """The GPU that is here, if there is one and the table knows it."""
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    found = next((c for c in cards() if c.name == name), None)
    return _machine(found) if found else None


def _machine(card: Card) -> Machine:
    device = absent(card.name)
    if device is None or card.bandwidth_gbps is None:
        raise NoRoof(card.name)
    gflops = None if card.fp32_tflops is None else 1e3 * card.fp32_tflops
    return Machine(device, card, card.bandwidth_gbps, gflops)


def occupied(machine: Machine, registers: int, threads: int, shared_bytes: int) -> Occupied:
    """Both occupancies of blocks of `threads`, with so many registers a thread and shared bytes a block."""
    found = resident(machine.card.limits, threads, registers, shared_bytes)
    return Occupied(found.blocks, found.thread_share, found.warp_share)
