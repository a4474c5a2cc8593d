"""Occupancy: how much of a multiprocessor a kernel's blocks fill, what limits it, and how near the next step is.

Two figures go by the name. *Warp occupancy* is NVIDIA's: resident warps ÷ the most there can be. *Thread occupancy* is
the share of thread slots; it is lower where blocks end in the middle of a warp.

Source: cuda_occupancy.h of the CUDA toolkit, which a test compares every rule here with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from onepass.device import Device, Limits, limits_of

WARP = 32
BLOCK_THREADS = 1024  # the most threads in a block
REGISTER_UNIT = 256  # registers are handed out to warps in this unit
SCHEDULERS = 4  # of a multiprocessor, each with its quarter of the registers
THREAD_REGISTERS = 255  # the most that a thread can have

Limiter = Literal["threads", "registers", "shared memory", "blocks", "barriers"]
Resource = Literal["registers", "shared_bytes", "threads"]


@dataclass(frozen=True)
class Occupancy:
    """What a multiprocessor holds of a kernel.

    Units: ``threads``, ``registers`` and ``shared_bytes`` as asked for: a block, a thread, a block. ``allowed`` has the
    resident blocks that each limit alone would allow; a limit that does not apply is not in it.
    """

    limits: Limits
    threads: int
    registers: int
    shared_bytes: int
    barriers: int
    carveout_percent: int | None
    block_registers: int  # handed out to a block
    block_shared_bytes: int  # the same, the system's share in it
    allowed: dict[Limiter, int]

    @property
    def blocks(self) -> int:
        """Resident blocks of a multiprocessor; 0: such a kernel cannot start."""
        return min(self.allowed.values())

    @property
    def binding(self) -> tuple[Limiter, ...]:
        """The limits that hold it there."""
        return tuple(name for name, blocks in self.allowed.items() if blocks == self.blocks)

    @property
    def warps(self) -> int:
        """Resident warps of a multiprocessor."""
        return self.blocks * _ceil(self.threads, WARP)

    @property
    def warp_share(self) -> float:
        """Resident warps ÷ the most there can be, 0 … 1: what NVIDIA calls occupancy."""
        return self.warps / (self.limits.threads // WARP)

    @property
    def thread_share(self) -> float:
        """Resident threads ÷ the most there can be, 0 … 1."""
        return self.blocks * self.threads / self.limits.threads

    def to_dict(self) -> dict[str, Any]:
        return {
            "arch": self.limits.arch,
            "threads": self.threads,
            "registers": self.registers,
            "shared_bytes": self.shared_bytes,
            "barriers": self.barriers,
            "blocks": self.blocks,
            "warps": self.warps,
            "warp_occupancy": self.warp_share,
            "thread_occupancy": self.thread_share,
            "binding": list(self.binding),
            "blocks_allowed": dict(self.allowed),
            "block_registers": self.block_registers,
            "block_shared_bytes": self.block_shared_bytes,
        }


def resident(
    limits: Limits,
    threads: int,
    registers: int,
    shared_bytes: int,
    *,
    barriers: int = 1,
    carveout_percent: int | None = None,
) -> Occupancy:
    """How many blocks of a kernel a multiprocessor holds.

    ``threads`` and ``shared_bytes`` (static and dynamic together, as ptxas and the launch say: without the 1 KiB that a
    cubin of sm_90 and later adds) are of a block, ``registers`` of a thread. ``carveout_percent`` is the share of the
    multiprocessor's shared memory that the kernel asked for; by default all of it is there.
    """
    block_shared = _up(shared_bytes + limits.reserved_shared_bytes, limits.shared_unit_bytes)
    warps = _ceil(threads, WARP)
    a_warp = _up(registers * WARP, REGISTER_UNIT)
    allowed: dict[Limiter, int] = {
        "threads": limits.threads // WARP // warps if threads <= BLOCK_THREADS else 0,
        "blocks": limits.blocks,
    }
    if a_warp:
        allowed["registers"] = _by_registers(limits, registers, a_warp, warps)
    if block_shared:
        allowed["shared memory"] = _by_shared(limits, shared_bytes, block_shared, carveout_percent)
    if limits.barriers and barriers:
        allowed["barriers"] = limits.barriers // barriers
    return Occupancy(
        limits,
        threads,
        registers,
        shared_bytes,
        barriers,
        carveout_percent,
        a_warp * warps,
        block_shared,
        allowed,
    )


def _by_registers(limits: Limits, registers: int, a_warp: int, warps: int) -> int:
    # A launch is refused as if each scheduler got the same number of warps, though a block of 5 warps needs no 8.
    if a_warp * _up(warps, SCHEDULERS) > limits.registers or registers > THREAD_REGISTERS + 1:
        return 0
    return limits.registers // SCHEDULERS // a_warp * SCHEDULERS // warps


def _by_shared(limits: Limits, asked: int, allocated: int, percent: int | None) -> int:
    if asked > limits.block_shared_bytes:
        return 0
    preferred = limits.shared_bytes
    if percent is not None:
        preferred = _carveout(limits, percent * limits.shared_bytes // 100)
    # A block that needs more than was preferred gets the smallest size that holds it.
    return (preferred if preferred >= allocated else _carveout(limits, allocated)) // allocated


def _carveout(limits: Limits, nbytes: int) -> int:
    return min(size for size in limits.carveouts_bytes if size >= nbytes)


# Steps


@dataclass(frozen=True)
class Cliff:
    """The nearest value of one resource, up or down, at which the warp occupancy is another."""

    resource: Resource
    direction: Literal["down", "up"]
    value: int
    then: Occupancy

    def to_dict(self) -> dict[str, Any]:
        return {
            "resource": self.resource,
            "direction": self.direction,
            "value": self.value,
            "blocks": self.then.blocks,
            "warp_occupancy": self.then.warp_share,
        }


def cliffs(now: Occupancy) -> tuple[Cliff, ...]:
    """The nearest steps: registers and shared memory a block less or more, a smaller or larger block of whole warps."""
    unit, kept = now.limits.shared_unit_bytes, now.limits.reserved_shared_bytes
    most = now.limits.block_shared_bytes
    step = (
        min(now.block_shared_bytes, _up(most + kept, unit) + unit) // unit
    )  # more than a block may have is all alike
    found = (
        _nearest(now, "registers", "down", range(now.registers - 1, 0, -1)),
        _nearest(now, "registers", "up", range(now.registers + 1, THREAD_REGISTERS + 1)),
        _nearest(
            now,
            "shared_bytes",
            "down",
            (max(n * unit - kept, 0) for n in range(step - 1, kept // unit - 1, -1)),
        ),
        _nearest(
            now, "shared_bytes", "up", (n * unit - kept + 1 for n in range(step, (most + kept) // unit))
        ),
        _nearest(now, "threads", "down", range(_up(now.threads, WARP) - WARP, 0, -WARP)),
        _nearest(now, "threads", "up", range(_up(now.threads + 1, WARP), BLOCK_THREADS + 1, WARP)),
    )
    return tuple(cliff for cliff in found if cliff)


def _nearest(
    now: Occupancy, resource: Resource, direction: Literal["down", "up"], values: Iterable[int]
) -> Cliff | None:
    for value in values:
        then = _again(now, resource, value)
        if then.warps != now.warps:
            return Cliff(resource, direction, value, then)
    return None


def curve(now: Occupancy) -> tuple[Occupancy, ...]:
    """The same kernel in blocks of 32, 64 … 1024 threads, its shared memory a block unchanged."""
    return tuple(_again(now, "threads", n) for n in range(WARP, BLOCK_THREADS + 1, WARP))


def _again(now: Occupancy, resource: Resource, value: int) -> Occupancy:
    asked = {
        "threads": now.threads,
        "registers": now.registers,
        "shared_bytes": now.shared_bytes,
        resource: value,
    }
    return resident(now.limits, **asked, barriers=now.barriers, carveout_percent=now.carveout_percent)


# As reports of this project's own kernels ask


def occupancy(registers: int, threads: int, shared_bytes: int, device: Device) -> float:
    """The share of a device's warps that a kernel's blocks can fill, 0 … 1.

    ``registers`` a thread, ``threads`` and ``shared_bytes`` a block.
    """
    known = limits_of(device.arch)
    limits = replace(
        known,
        threads=device.threads,
        blocks=device.blocks,
        registers=device.registers,
        shared_bytes=device.shared_bytes or known.shared_bytes,
    )
    return resident(limits, threads, max(registers, 1), shared_bytes).warp_share


def _ceil(n: int, unit: int) -> int:
    return -(-n // unit)


def _up(n: int, unit: int) -> int:
    return _ceil(n, unit) * unit
