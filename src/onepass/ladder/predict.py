"""How long a rung should take on a device, from what it moves, how often it waits and what is resident.

The constants are assumptions about current data-centre GPUs, not measurements of the device; reports say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from onepass.ladder.emulated import Counts
from onepass.ladder.expression import evaluate
from onepass.ladder.machine import Machine, Occupied
from onepass.ladder.rungs import FLOAT_BYTES, Operator, Rung
from onepass.ladder.steps import Step

Bound = Literal["memory", "latency", "atomics", "arithmetic"]

# From asking memory to having it, in a busy device. An idle one takes 0.3 (V100) to 0.5 µs (H100).
# Source: Jia et al., Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking, 2018, table 3.1, and scaled up.
WAIT_US = 0.7
# A barrier of 256 threads that arrive together, with the shared-memory step before it.
BARRIER_US = 0.025
# Additions to one address that L2 takes, a clock and multiprocessor's share of its slices.
ATOMICS_A_CLOCK = 0.7
# The least that a row waits: for its own elements, and a little for row vectors in a cache.
ONE_WAIT = 1.2
# Accesses of a loop that a thread has in flight: compilers unroll by four.
IN_FLIGHT = 4


@dataclass(frozen=True)
class Prediction:
    """Units: µs. ``limits`` are the times that each resource alone would need, ``bound`` the longest."""

    us: float
    bound: Bound
    limits: Mapping[Bound, float]


def step_bytes(step: Step, operator: Operator, scratch: Mapping[str, int], rows: int, cols: int) -> int:
    """Each tensor that a kernel takes, once."""
    sizes = {n: operator.numel(e, rows, cols) for n, e in {**operator.inputs, **operator.outputs}.items()}
    sizes |= scratch
    return FLOAT_BYTES * sum(sizes[a] for a in step.arguments if isinstance(a, str))


def predict(
    rung: Rung,
    operator: Operator,
    steps: Sequence[Step],
    kernel_bytes: int,
    counts: Counts | None,
    resident: Occupied,
    machine: Machine,
    rows: int,
    cols: int,
    beside: float | None = None,
) -> Prediction:
    """The time at a shape; `resident` is the occupancy of the kernel that walks rows, the last one.

    `beside` are the accesses a thread of the rung that a learner's is judged against: see `waits`.
    """
    device = machine.device
    names = rung.names(rows, cols)
    rows_resident = max(1.0, device.units * resident.blocks * max(1.0, rows / steps[-1].grid))
    barriers = counts.barriers if counts else 0.0
    waited = waits(rung, names, accesses_a_thread(steps[-1], counts, rows), beside)
    a_row = waited * WAIT_US + barriers * BARRIER_US
    clock_ghz = device.issue_giops / device.units / 128
    limits: dict[Bound, float] = {
        "memory": kernel_bytes / device.bandwidth_gbps / 1e3,
        "latency": rows / rows_resident * a_row,
        "atomics": float(evaluate(rung.atomics, names)) / (ATOMICS_A_CLOCK * device.units * clock_ghz) / 1e3,
    }
    if machine.fp32_gflops is not None:
        limits["arithmetic"] = operator.count_flops(rows, cols) / machine.fp32_gflops / 1e3
    bound = max(limits, key=lambda name: limits[name])
    return Prediction(limits[bound] + len(steps) * device.launch_us, bound, limits)


def accesses_a_thread(last: Step, counts: Counts | None, rows: int) -> float:
    """What a thread of the kernel that walks rows loads and stores, of one row."""
    threads = max(1.0, last.grid * last.block / rows)
    return (counts.lane_accesses if counts else 0.0) / threads


def waits(rung: Rung, names: Mapping[str, int], accesses: float, beside: float | None = None) -> float:
    """Times that a row waits for memory: as stated, or guessed from what each of its threads accesses.

    A learner's rung has the statement of the rung it is judged against; it waits more or less than that one as its
    threads access more or less, so that a copy is as quick as what it is a copy of.
    """
    if not rung.waits:
        return max(ONE_WAIT, accesses / IN_FLIGHT)
    stated = float(evaluate(rung.waits, names))
    return max(min(stated, ONE_WAIT), stated * accesses / beside) if beside else stated
