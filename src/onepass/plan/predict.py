"""How long a kernel takes on a device: from its bytes and instructions, how it walks them, and the device's rates.

A few microseconds of starting, then the slower of memory and arithmetic, which overlap; where a thread walks a row in
steps, waiting for memory at each, no less than that. The rates are measured by `onepass calibrate`, or taken from the
table of devices. The counts below are read off the code that is printed and its machine code. Strides are not looked at:
a walk that uses a part of each sector takes longer than is said here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from onepass.analysis.occupancy import resident
from onepass.analysis.resources import Resources
from onepass.analysis.roofline import ISSUED_LANES
from onepass.analysis.traffic import Traffic, number
from onepass.device import Device, limits_of
from onepass.ir.kernel import Compute, IotaValue, Kernel, LoadValue
from onepass.ir.symbol import product
from onepass.plan.choose import Schedule
from onepass.plan.schedules.cpu import CpuSchedule
from onepass.plan.schedules.flat import FlatSchedule
from onepass.plan.schedules.row import RowSchedule
from onepass.plan.schedules.row_cluster import ClusterSchedule
from onepass.plan.schedules.row_grid import GridSchedule
from onepass.plan.schedules.row_serial import SerialSchedule
from onepass.plan.schedules.row_stream import StreamSchedule, spread, walks
from onepass.plan.schedules.row_strided import StridedSchedule, launches, parts_of
from onepass.plan.schedules.row_walk import WalkSchedule
from onepass.plan.schedules.tiled import TiledSchedule

# Lane instructions to find a place: of a division (32 bits, the prelude's `divide`), of a stride times a position, and of
# the same in a loop of 64-bit positions, with the loop's own.
DIVISION, STRIDE, LOOPED_STRIDE = 30, 4, 12
# Cycles an instruction of a warp that is alone: each of its datapaths has 16 lanes.
CYCLES_ALONE = 2
# The share of the last cache that rows may fill and be found there again: the rest holds what is written.
KEPT_SHARE = 0.5
# Of a card whose last cache is not in the table: an A100's.
L2_UNKNOWN_BYTES = 40 << 20
# Lane instructions more for an operation of 64-bit integers, and for a position that is one: a product and a sum.
WIDE, POSITION = 2, 6
# From asking an idle device's memory to having it, where that was not measured: an H200's (docs/notes/007).
WAIT_US = 0.35


@dataclass(frozen=True)
class Rates:
    """What a device's times are predicted from.

    Units: ``mixes`` pairs the share of reads in what is moved with 1e9 bytes a second; 1e9 lane instructions a second;
    µs: ``start_us`` of a kernel of one wave, without its bytes and its arithmetic, ``wait_us`` from asking memory to having
    it. ``source`` says who says so.
    """

    mixes: tuple[tuple[float, float], ...]
    issue_giops: float
    special_giops: float
    start_us: float
    wait_us: float
    source: str

    def gbps(self, work: Traffic) -> float:
        """The bandwidth of the mix nearest to a kernel's."""
        share = work.read_bytes / max(1, work.bytes)
        return min(self.mixes, key=lambda m: abs(m[0] - share))[1]


def assumed(device: Device) -> Rates:
    """The rates of a device that was not calibrated."""
    copy = ((0.5, device.bandwidth_gbps),)
    return Rates(copy, device.issue_giops, device.special_giops, device.launch_us, WAIT_US, device.source)


def predicted_us(
    kernel: Kernel,
    schedule: Schedule,
    work: Traffic,
    device: Device,
    rates: Rates,
    hints: Mapping[str, int],
    resources: Resources | None = None,
) -> float:
    """The time of a kernel at typical sizes. ``resources`` are those of the compiled kernel, where there is one."""
    if isinstance(schedule, CpuSchedule):
        # Memory and arithmetic hardly overlap there: a core asks for a few lines ahead.
        memory_us = work.bytes / rates.gbps(work) / 1e3
        return rates.start_us + memory_us + work.instructions / rates.issue_giops / 1e3
    walk = _walk(kernel, schedule, work, hints, device)
    blocks_at_once = device.units * _resident(schedule, walk, device, resources)
    cache_bytes = device.l2_bytes or L2_UNKNOWN_BYTES
    if walk.loops > 1 and walk.row_bytes * min(walk.blocks, blocks_at_once) > KEPT_SHARE * cache_bytes:
        work = replace(work, read_bytes=walk.loops * work.read_bytes)
    integers = number(product(kernel.outer), hints) * number(kernel.cols, hints) * _wide(kernel)
    added = walk.threads * walk.index_instructions + integers * number(kernel.inner, hints)
    work = replace(work, instructions=work.instructions + added)
    cycles_a_us = 1e3 * rates.issue_giops / device.units / ISSUED_LANES
    alone = work.instructions / max(1, walk.threads) / walk.trips * CYCLES_ALONE / cycles_a_us
    waves = max(1.0, walk.blocks / blocks_at_once)
    waiting = waves * walk.trips * rates.wait_us if walk.trips > 1 else 0.0
    return walk.launches * rates.start_us + alone + max(_longest(work, rates), waiting)


def _wide(kernel: Kernel) -> int:
    """Lane instructions an element of 64-bit integers that the work's count, of one each, leaves out."""
    return sum(
        POSITION if isinstance(s, IotaValue) else WIDE * (isinstance(s, Compute) and s.kind == "int")
        for loop in kernel.loops
        for s in loop.body
    )


def _longest(work: Traffic, rates: Rates) -> float:
    return max(
        work.bytes / rates.gbps(work) / 1e3,
        work.instructions / rates.issue_giops / 1e3,
        work.special / rates.special_giops / 1e3,
    )


@dataclass(frozen=True)
class _Walk:
    """How threads cover a kernel's elements. ``trips``: how often a thread waits for memory, one after the other."""

    threads: int
    blocks: int
    block_threads: int
    trips: int
    index_instructions: int  # a thread
    loops: int = 1  # walks over a row that is not held
    row_bytes: int = 0  # read, of the rows of a block
    launches: int = 1  # one after the other


def _walk(
    kernel: Kernel, schedule: Schedule, work: Traffic, hints: Mapping[str, int], device: Device
) -> _Walk:
    rows, cols = max(1, number(product(kernel.outer), hints)), max(1, number(kernel.cols, hints))
    tensors, dims = len(kernel.accesses), len(kernel.outer)
    place = dims * DIVISION + tensors * (1 + dims) * STRIDE
    if isinstance(schedule, FlatSchedule):
        vectors = -(-rows * cols // schedule.width)
        threads = -(-vectors // schedule.steps)
        blocks = -(-threads // schedule.threads)
        return _Walk(threads, blocks, schedule.threads, 1, schedule.steps * place)
    if isinstance(schedule, RowSchedule):
        blocks = -(-rows // schedule.groups)
        instructions = place + schedule.steps * tensors * STRIDE
        return _Walk(blocks * schedule.threads, blocks, schedule.threads, 1, instructions)
    if isinstance(schedule, ClusterSchedule | GridSchedule):
        blocks = rows * schedule.blocks
        instructions = place + schedule.steps * tensors * STRIDE
        return _Walk(blocks * schedule.threads, blocks, schedule.threads, 1, instructions)
    if isinstance(schedule, StreamSchedule):
        parts = math.ceil(cols / schedule.part)
        shared_by, each = spread(rows, parts, device.units)
        walked = len(walks(kernel))
        reads = sum(any(isinstance(s, LoadValue) for s in w.loop) for w in walks(kernel))
        blocks = rows * shared_by
        read = work.read_bytes // blocks
        instructions = place + walked * each * schedule.steps * tensors * STRIDE
        started = walked if shared_by > 1 else 1
        return _Walk(
            blocks * schedule.lanes,
            blocks,
            schedule.lanes,
            walked * each,
            instructions,
            reads,
            read,
            started,
        )
    loops = len(kernel.loops)
    if isinstance(schedule, WalkSchedule):
        trips = loops * math.ceil(cols / schedule.lanes / schedule.width)
        read = work.read_bytes // rows
        instructions = place + trips * tensors * STRIDE
        return _Walk(rows * schedule.lanes, rows, schedule.lanes, trips, instructions, loops, read)
    if isinstance(schedule, TiledSchedule):
        down = max(1, number(kernel.outer[schedule.down], hints))
        blocks = rows // down * math.prod(schedule.tiles(down, cols))
        vectors = schedule.tall * schedule.wide // schedule.threads // min(schedule.height, schedule.width)
        return _Walk(
            blocks * schedule.threads, blocks, schedule.threads, 1, place + vectors * tensors * STRIDE
        )
    inner = max(1, number(kernel.inner, hints))
    if isinstance(schedule, SerialSchedule):
        blocks = -(-rows * inner // schedule.threads)
        instructions = place + loops * cols * tensors * LOOPED_STRIDE
        read = work.read_bytes // max(1, blocks)
        return _Walk(
            blocks * schedule.threads, blocks, schedule.threads, loops * cols, instructions, loops, read
        )
    assert isinstance(schedule, StridedSchedule)
    parts = schedule.parts or parts_of(kernel, cols, inner, device)
    blocks = schedule.blocks(rows, inner) * parts
    vectors = math.ceil(cols / schedule.lanes / parts)  # a thread, in each loop
    trips = 1 if schedule.held else loops * math.ceil(vectors / schedule.steps)
    instructions = place + loops * vectors * tensors * LOOPED_STRIDE
    read = work.read_bytes // max(1, blocks)
    reads = 1 if schedule.held else loops
    started = launches(kernel) if schedule.parts != 1 else 1
    return _Walk(
        blocks * schedule.threads, blocks, schedule.threads, trips, instructions, reads, read, started
    )


def _resident(schedule: Schedule, walk: _Walk, device: Device, resources: Resources | None) -> int:
    """Blocks of a kernel on a multiprocessor."""
    registers = resources.registers if resources else 32
    shared = resources.shared_bytes if resources else 0
    shared += (
        schedule.shared_bytes if isinstance(schedule, RowSchedule | ClusterSchedule | GridSchedule) else 0
    )
    found = resident(limits_of(device.arch), walk.block_threads, max(1, registers), shared)
    return max(1, found.blocks)
