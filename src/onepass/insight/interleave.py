"""Timing several contenders in one run, turn by turn, so that a disturbance meets all of them."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles, in the unit of the samples."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        """Summarise samples; of a single one, the quartiles are that sample."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high)

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
    """Time each contender once a round.

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


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
