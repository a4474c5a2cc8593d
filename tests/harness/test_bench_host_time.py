"""The benchmark of host time: what it divides, what it says of a ratio that is too large, and a run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import host_time
from host_time import FUNCTIONALS, KERNELS, Asked


def times(**changed: float) -> dict[str, list[float]]:
    """A microsecond for everything, in three rounds."""
    names = {a.what for a in (*KERNELS, *FUNCTIONALS)} | {"torch.add", "F.layer_norm"}
    return {name: [changed.get(name, 1.0)] * 3 for name in names}


def test_a_ratio_pairs_the_samples_of_a_round() -> None:
    us = {"own": [2.0, 20.0, 6.0], "other": [1.0, 10.0, 2.0]}
    assert host_time.ratio(Asked("own", "other", 1.0), us).median == 2.0


@pytest.mark.parametrize("what", [KERNELS[0], FUNCTIONALS[0]], ids=lambda a: a.what)
def test_what_takes_longer_than_asked_fails(what: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    assert host_time.report(times(), Path("rows")) == 0
    assert host_time.report(times(**{what.what: what.most + 0.01}), Path("rows")) == 1
    assert host_time.report(times(**{what.what: what.most - 0.01}), Path("rows")) == 0
    assert f"at most {what.most:g}" in capsys.readouterr().out


def test_a_kernel_is_a_twentieth_of_twenty_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def samples(calls: Any, rounds: int, device: torch.device) -> dict[str, list[float]]:
        return {name: [50.0 if name.startswith("21 ") else 10.0] * rounds for name in calls}

    monkeypatch.setattr(host_time, "_samples", samples)
    monkeypatch.setattr(
        host_time,
        "_calls",
        lambda device: {"torch.add": None} | {f"{n} {a.what}": None for n in (1, 21) for a in KERNELS},
    )
    us = host_time.measured(torch.device("cpu"), 2)
    assert {us[a.what][0] for a in KERNELS} == {2.0}


def test_a_run_writes_a_row_for_each(tmp_path: Path) -> None:
    """Two rounds say nothing of speed: only that each contender runs, and that kernels are what is launched."""
    threads = torch.get_num_threads()
    try:
        host_time.main(
            ["--device", "cpu", "--rounds", "2", "--out", str(tmp_path / "rows.jsonl"), "--commit", "test"]
        )
    finally:
        torch.set_num_threads(threads)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["what"] for row in rows] == [a.what for a in (*KERNELS, *FUNCTIONALS)]
    assert all(row["median_us"] > 0 and row["beside_us"] > 0 and row["commit"] == "test" for row in rows)
