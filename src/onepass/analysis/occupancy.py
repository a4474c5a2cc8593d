"""Occupancy: resident warps ÷ the most that a multiprocessor holds."""

from __future__ import annotations

from onepass.device import Device

WARP = 32
# Registers are handed out to warps in units of 256, and a multiprocessor's four schedulers have a quarter of them each.
REGISTER_UNIT, SCHEDULERS = 256, 4


def occupancy(registers: int, threads: int, shared_bytes: int, device: Device) -> float:
    """The share of a multiprocessor's warps that a kernel's blocks can fill, 0 … 1.

    ``registers`` a thread, ``threads`` and ``shared_bytes`` a block.

    Source: NVIDIA CUDA C++ Programming Guide, compute capabilities; cuda_occupancy.h of the CUDA toolkit.
    """
    warps = -(-threads // WARP)
    most = device.threads // WARP
    blocks = min(
        device.blocks,
        most // warps,
        _warps_by_registers(registers, device) // warps,
        _blocks_by_shared(shared_bytes, device),
    )
    return blocks * warps / most


def _warps_by_registers(registers: int, device: Device) -> int:
    a_warp = _up(max(registers, 1) * WARP, REGISTER_UNIT)
    return device.registers // SCHEDULERS // a_warp * SCHEDULERS


def _blocks_by_shared(shared_bytes: int, device: Device) -> int:
    # From sm_80 on the system keeps 1 KiB of each block's shared memory, and the unit is 128 bytes, before 256.
    recent = int(device.arch.removeprefix("sm_")) >= 80
    a_block = _up(shared_bytes + (1024 if recent else 0), 128 if recent else 256)
    return device.shared_bytes // a_block if a_block and device.shared_bytes else device.blocks


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
