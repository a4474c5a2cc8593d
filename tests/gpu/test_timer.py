"""The device's time is told from the host's, and from what lay in the cache."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from onepass.errors import HostTooSlow
from onepass.runtime import timer
from onepass.runtime.timer import Spread

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

MIB = 1 << 20


def copies(mib: int, sets: int) -> timer.Call:
    sources = [torch.randn(mib * MIB // 4, device="cuda") for _ in range(sets)]
    return lambda i: sources[i].clone()


def gbps(us: float, mib: int) -> float:
    return 2 * mib * MIB / us / 1e3


def test_a_copy_is_not_faster_than_memory() -> None:
    """Past the cache a copy stays below what any memory gives, and above a tenth of this device's."""
    device = torch.device("cuda")
    us = timer.cold({"copy": copies(256, 2)}, timer.sets_needed(256 * MIB, device), 9, device)["copy"]
    assert 50 < gbps(Spread.of(us).median, 256) < 8500


def test_the_hosts_time_does_not_count() -> None:
    """A call that keeps the host busy for 2 ms takes the device as long as one that does not."""
    device = torch.device("cuda")
    quick = copies(64, 4)

    def slow(i: int) -> Any:
        time.sleep(0.002)
        return quick(i)

    us = timer.cold({"quick": quick, "slow": slow}, 4, 15, device)
    quick_us, slow_us = (Spread.of(us[name]).median for name in ("quick", "slow"))
    assert slow_us < 1000
    assert 0.8 < slow_us / quick_us < 1.25


def test_a_host_that_is_too_slow_is_refused() -> None:
    with pytest.raises(HostTooSlow):
        timer.cold({"sleeps": lambda i: time.sleep(0.03)}, 2, 1, torch.device("cuda"))


def test_a_graph_times_one_call_of_many() -> None:
    """The time of a call in a graph of eight is what a call takes, not what eight take."""
    device = torch.device("cuda")
    call = copies(64, 8)
    graph = timer.captured(call, 8)
    in_graph = Spread.of(timer.in_graphs({"copy": graph}, 9, device)["copy"]).median
    alone = Spread.of(timer.cold({"copy": call}, 8, 9, device)["copy"]).median
    assert 0.7 < in_graph / alone < 1.4
    assert torch.equal(graph.results[3], call(3))
