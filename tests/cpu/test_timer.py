"""Interleaved timing: fair turns, paired samples, honest summaries."""

import statistics
import time

import pytest
import torch

from onepass.runtime.timer import Call, Spread, cold, interleaved, last_cache_bytes, sets_needed, turns

CPU = torch.device("cpu")


def test_spread_is_the_median_and_the_quartiles() -> None:
    samples = [5.0, 1.0, 2.0, 4.0, 3.0]
    spread = Spread.of(samples)
    assert spread.median == statistics.median(samples)
    assert (spread.low, spread.high) == (2.0, 4.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_each_goes_first_equally_often(names: list[str]) -> None:
    rounds = 4 * len(names)
    orders = list(turns(names, rounds))
    assert len(orders) == rounds
    assert all(sorted(order) == names for order in orders)
    assert [sum(order[0] == name for order in orders) for name in names] == [4] * len(names)


def test_contenders_take_turns_after_warming_up() -> None:
    calls: list[str] = []
    contenders = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    samples = interleaved(contenders, rounds=3, device=CPU, warm_up=2)
    assert calls == ["a", "a", "b", "b", "a", "b", "b", "a", "a", "b"]
    assert {name: len(taken) for name, taken in samples.items()} == {"a": 3, "b": 3}
    assert all(s > 0 for taken in samples.values() for s in taken)


def test_cold_takes_the_next_set_each_time_and_shows_results_after() -> None:
    taken: list[tuple[str, int]] = []
    shown: list[tuple[str, int, object]] = []

    def contender(name: str) -> Call:
        return lambda i: taken.append((name, i)) or f"{name}{i}"  # type: ignore[func-returns-value]

    calls = {name: contender(name) for name in ("a", "b")}
    samples = cold(calls, 3, 2, CPU, lambda name, i, result: shown.append((name, i, result)))
    warm_up, counted, last = taken[:4], taken[4:8], taken[8:]
    assert warm_up == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert counted == [("a", 1), ("b", 2), ("b", 0), ("a", 1)]
    assert last == [("a", 0), ("b", 0)]
    assert shown == [("a", 0, "a0"), ("b", 0, "b0")]
    assert {name: len(us) for name, us in samples.items()} == {"a": 2, "b": 2}


def test_cold_is_in_microseconds() -> None:
    (us,) = cold({"sleep": lambda i: time.sleep(0.02)}, 2, 1, CPU)["sleep"]
    assert 20_000 <= us < 2_000_000


def test_sets_cover_three_times_the_last_cache() -> None:
    cache = last_cache_bytes(CPU)
    assert cache > 0
    for size in (1 << 10, 1 << 20, cache // 2, 10 * cache):
        sets = sets_needed(size, CPU)
        assert sets >= 2
        assert sets * size >= 3 * cache
        assert sets == 2 or (sets - 1) * size < 3 * cache
