"""Timing: contenders in turn within one run, on inputs that no cache holds, every sample kept."""

from __future__ import annotations

import ctypes
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onepass import device as host
from onepass.errors import HostTooSlow

# Runs a contender on one of several sets of buffers, by its number.
Call = Callable[[int], Any]
# Given a contender's name, the set it ran on and what it returned.
Inspect = Callable[[str, int, Any], None]

# Sets of inputs used in turn hold this many times the last cache: what is read again was pushed out since.
CACHES = 3
# Calls in one CUDA graph. 512 of the smallest kernel take about a millisecond, far above the clock's step.
MOST_IN_GRAPH = 512

# The stream is kept busy while the host prepares a call, or the host's time would be read as the kernel's.
# torch.cuda._sleep counts clock cycles; 2 a nanosecond are enough (H200: 1.98 GHz).
_CYCLES_PER_US = 2000
_FIRST_LEAD_US = 200.0
_LONGEST_LEAD_US = 20_000.0


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles, in the unit of the samples."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Summarise samples; of a single one, the quartiles are that sample."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high)

    @property
    def iqr(self) -> float:
        """Upper quartile less lower quartile."""
        return self.high - self.low

    def to_dict(self) -> dict[str, float]:
        """Give the JSON form."""
        return {"median": self.median, "low": self.low, "high": self.high}


def timed(call: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    """Call, wait for the device, and return the result with the seconds taken, the host's share included."""
    _finish(device)
    start = time.perf_counter()
    result = call()
    _finish(device)
    return result, time.perf_counter() - start


def turns(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """Give each round's order, moved on by one name a round, so that each goes first equally often."""
    for start in range(rounds):
        shift = start % len(names)
        yield [*names[shift:], *names[:shift]]


def interleaved(
    contenders: Mapping[str, Callable[[], Any]], rounds: int, device: torch.device, warm_up: int = 3
) -> dict[str, list[float]]:
    """Time each contender once a round, the host's share included: for whole models.

    Units: seconds, one sample a round in round order, so that samples of equal index form a pair.
    """
    for call in contenders.values():
        for _ in range(warm_up):
            call()
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for order in turns(list(contenders), rounds):
        for name in order:
            samples[name].append(timed(contenders[name], device)[1])
    return samples


def cold(
    calls: Mapping[str, Call], sets: int, rounds: int, device: torch.device, inspect: Inspect | None = None
) -> dict[str, list[float]]:
    """Time each contender once a round on inputs that no cache holds.

    Each call takes the next set of buffers: with `sets_needed` of them an input was pushed out of the cache
    before it is read again. On CUDA the time is the device's alone, between two events, and the call follows one
    of its own that does not count: what a kernel leaves unwritten in the cache is paid by the next one (7 % of a
    512 MiB copy after a fill, one H200, 2026-11-30), so that each must pay its own. One more round, which does not
    count, runs on set 0 and gives each result to `inspect`.

    Units: µs, one sample a round in round order.
    Raises: HostTooSlow if a call takes the host longer than 20 ms to start.
    """
    one = _CudaClock(device) if device.type == "cuda" else _HostClock()
    for call in calls.values():
        for i in range(min(sets, 2)):
            call(i)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    at = 0
    for order in turns(list(calls), rounds):
        for name in order:
            before, at = at, (at + 1) % sets
            samples[name].append(one.time(calls[name], at, before)[1])
    if inspect:
        for name, call in calls.items():
            inspect(name, 0, one.time(call, 0)[0])
    return samples


@dataclass(frozen=True)
class Graph:
    """A contender's calls on every set of buffers, one after the other, in a CUDA graph."""

    graph: torch.cuda.CUDAGraph
    results: tuple[Any, ...]


def captured(call: Call, sets: int) -> Graph:
    """Capture a contender, each call's outputs in buffers of their own. Raises what PyTorch raises."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(min(sets, 2)):
            call(i)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = tuple(call(i) for i in range(sets))
    return Graph(graph, results)


def in_graphs(graphs: Mapping[str, Graph], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Time small work without the host: a graph of all sets once a round, the time divided.

    Units: µs a call, one sample a round in round order.
    """
    clock = _CudaClock(device)
    replays = {name: _replay(g.graph) for name, g in graphs.items()}
    for replay in replays.values():
        replay(0)
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for order in turns(list(graphs), rounds):
        for name in order:
            samples[name].append(clock.time(replays[name], 0)[1] / len(graphs[name].results))
    return samples


def _replay(graph: torch.cuda.CUDAGraph) -> Call:
    return lambda _: graph.replay()


def sets_needed(set_bytes: int, device: torch.device) -> int:
    """How many sets of inputs of this size must take turns so that each is cold again; at least 2."""
    return max(2, math.ceil(CACHES * last_cache_bytes(device) / max(1, set_bytes)))


def last_cache_bytes(device: torch.device) -> int:
    """The size of the last cache before memory."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return host.last_cache_bytes()


def keep_allocator_warm() -> bool:
    """Make glibc reuse the pages of freed buffers in this process; False where the C library can't.

    A fresh mapping costs a page fault every 4 KiB. On the CPU that hides what a kernel does, the more of it
    the faster the kernel is.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    # From glibc's malloc.h: M_MMAP_MAX is -4, M_TRIM_THRESHOLD -1.
    return bool(mallopt(-4, 0)) and bool(mallopt(-1, 2**31 - 1))


class _HostClock:
    def time(self, call: Call, index: int, before: int | None = None) -> tuple[Any, float]:
        """Without a call before it: on a CPU that would double the time of a suite of minutes."""
        start = time.perf_counter()
        result = call(index)
        return result, (time.perf_counter() - start) * 1e6


class _CudaClock:
    """Times what a call puts on the stream; the stream is kept busy until all of it is there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.lead_us = _FIRST_LEAD_US
        self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def time(self, call: Call, index: int, before: int | None = None) -> tuple[Any, float]:
        """A call on one set of buffers, after one on the set ``before``, if given, that does not count."""
        start, end = self.start, self.end
        while True:
            torch.cuda.synchronize(self.device)
            began = time.perf_counter()
            torch.cuda._sleep(int(self.lead_us * _CYCLES_PER_US))  # type: ignore[no-untyped-call]
            if before is not None:
                call(before)
            start.record()
            result = call(index)
            end.record()
            host_us = (time.perf_counter() - began) * 1e6
            end.synchronize()
            if host_us <= self.lead_us:
                return result, start.elapsed_time(end) * 1e3
            if self.lead_us >= _LONGEST_LEAD_US:
                raise HostTooSlow(host_us)
            del result
            self.lead_us = min(2 * max(host_us, self.lead_us), _LONGEST_LEAD_US)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
