"""Interleaved timing: fair turns, paired samples, honest summaries."""

import statistics

import pytest
import torch

from onepass.runtime.timer import Spread, interleaved, turns

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
