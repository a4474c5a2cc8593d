"""The time model: which term counts where, and that it takes the rates that were measured."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from onepass.build import Built
from onepass.capture.absent import generate
from onepass.device import of
from onepass.plan.predict import Rates, assumed, predicted_us
from onepass.plan.schedules import row_grid
from onepass.runtime.calibration import Calibration, MemoryRoof, keep, rates_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "nvidia-h200" / "predictions.jsonl"
H200 = of("NVIDIA H200")
RATES = Rates(((0.5, 4000.0), (2 / 3, 4400.0)), 30000.0, 3750.0, 2.0, 0.5, "a test")


# Plans inside it find no grid that holds a row.
NOWHERE = mock.patch.object(row_grid, "schedules", return_value="nowhere")


def kernel(function: Callable[..., Any], *inputs: torch.Tensor) -> Built:
    (built,) = generate("NVIDIA H200", function, inputs, compiled=False).kernels
    return built


def us(built: Built, rates: Rates = RATES) -> float:
    return predicted_us(built.kernel, built.schedule, built.traffic, H200, rates, {}, built.resources)


def test_much_memory_is_its_bytes_over_the_mix() -> None:
    """Half reads: 4000 GB/s. Two reads and a write: 4400."""
    x = torch.empty(1 << 16, 1 << 10)
    copy = kernel(torch.relu, x)
    assert us(copy) == pytest.approx(2.0 + 8 * x.numel() / 4000e3, rel=0.01)
    added = kernel(torch.add, x, torch.empty_like(x))
    assert us(added) == pytest.approx(2.0 + 12 * x.numel() / 4400e3, rel=0.01)


def test_little_memory_is_the_start() -> None:
    small = kernel(torch.relu, torch.empty(64, 64))
    assert 2.0 < us(small) < 2.2
    assert us(small, replace(RATES, start_us=3.0)) == pytest.approx(us(small) + 1.0)


def test_much_arithmetic_is_its_instructions() -> None:
    def heavy(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.sin(x) + torch.tanh(x)
        return x

    built = kernel(heavy, torch.empty(1 << 15, 1 << 10))
    memory = built.traffic.bytes / 4000e3
    assert us(built) > 2 * memory
    assert us(built, replace(RATES, issue_giops=60000.0, special_giops=7500.0)) < 0.6 * us(built)


def test_index_arithmetic_counts() -> None:
    x = torch.empty(16, 64, 32, 64)
    flat = kernel(torch.relu, x)
    moved = kernel(lambda t: torch.relu(t.transpose(1, 2).contiguous()), x)
    slow = replace(RATES, issue_giops=300.0)
    assert us(moved, slow) > 2 * us(flat, slow)


def test_a_long_row_is_read_again_where_the_cache_does_not_hold_it() -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:])

    with NOWHERE:
        built = kernel(norm, torch.empty(512, 1 << 20))
    assert built.schedule.family == "row-stream"
    walks = 2  # both reductions in one, and the writing
    assert us(built) > walks * built.traffic.read_bytes / 4400e3
    large = replace(H200, l2_bytes=1 << 40)
    kept = predicted_us(built.kernel, built.schedule, built.traffic, large, RATES, {}, built.resources)
    assert kept < 0.8 * us(built)


@pytest.mark.parametrize(
    ("family", "rows", "cols"), [("row-cluster", 1024, 1 << 16), ("row-grid", 512, 1 << 20)]
)
def test_a_row_that_several_blocks_hold_is_read_once(family: str, rows: int, cols: int) -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:])

    built = kernel(norm, torch.empty(rows, cols))
    assert built.schedule.family == family
    assert us(built) == pytest.approx(2.0 + built.traffic.bytes / 4000e3, rel=0.05)


def test_few_long_rows_are_a_launch_a_walk() -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:])

    with NOWHERE:
        built = kernel(norm, torch.empty(1, 1 << 20))
    assert built.schedule.family == "row-stream"
    more = us(built, replace(RATES, start_us=RATES.start_us + 1.0))
    assert more == pytest.approx(us(built) + 2.0)


def test_a_column_waits_for_memory_step_by_step() -> None:
    """2048 steps of 16 lanes, four in flight, each half a microsecond: few threads can't hide it."""
    built = kernel(lambda x: x.sum(1), torch.empty(2, 2048, 64))
    assert built.schedule.family == "row-strided"
    assert us(built) == pytest.approx(2.0 + 2048 / 16 / 4 * 0.5, rel=0.1)
    assert us(built, replace(RATES, wait_us=1.0)) > 1.8 * us(built)


def test_rows_in_registers_wait_once_and_rows_divided_start_twice() -> None:
    held = kernel(lambda x: torch.softmax(x, 1), torch.empty(2, 64, 64))
    assert held.schedule.family == "row-strided"
    assert us(held, replace(RATES, wait_us=50.0)) == us(held)
    divided = kernel(lambda x: x.sum(0), torch.empty(1 << 16, 64))
    one_start = us(divided, replace(RATES, start_us=0.0))
    assert us(divided) == pytest.approx(one_start + 2 * 2.0)


def test_reports_take_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path))
    assert rates_of(H200) == assumed(H200)
    x = torch.empty(1 << 14, 1 << 10)
    before = kernel(torch.relu, x).predicted_us
    half = (MemoryRoof(1, 1, H200.bandwidth_gbps / 2, 1.0, 1.0, "a"),)
    keep(
        Calibration(
            H200.name, "cuda", "sm_90", half, 30000.0, 0.5, 2.0, 0.6, 7.0, 1 << 29, 15, "x", "2026-11-30"
        )
    )
    assert rates_of(H200).issue_giops < assumed(H200).issue_giops
    assert kernel(torch.relu, x).predicted_us == pytest.approx(2 * before, rel=0.05)


def listed(name: str) -> set[tuple[str, str, int, int]]:
    entries = tomllib.loads((ROOT / "benchmarks" / "cases.toml").read_text())["predictions"][name]["points"]
    return {
        (op, dtype, rows, cols)
        for entry in entries
        for op in entry["ops"]
        for rows, cols in entry["shapes"]
        for dtype in entry["dtypes"]
    }


def test_what_is_held_out_was_not_developed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """No op, and no shape, is in both lists; the held-out one says what is asked of it."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("cases", "record", "measure", "predictions"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import predictions

    lists = tomllib.loads((ROOT / "benchmarks" / "cases.toml").read_text())["predictions"]
    development, held_out = (
        list(predictions.points(lists[n]["points"])) for n in ("development", "held-out")
    )
    assert not {p.op for p in development} & {p.op for p in held_out}
    assert not {(p.rows, p.cols) for p in development} & {(p.rows, p.cols) for p in held_out}
    assert {p.op for p in (*development, *held_out)} <= set(predictions.OPS)
    assert lists["held-out"]["median"] == 0.1 and lists["held-out"]["p90"] == 0.25 and len(held_out) > 100


def test_the_drawing_is_of_the_rows_and_the_errors_are_as_asked() -> None:
    """What the note says is what the committed rows give."""
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    held_out = [r for r in rows if r["list"] == "held-out"]
    errors = sorted(abs(r["predicted_us"] / r["median_us"] - 1) for r in held_out)
    measured = {(r["op"], r["dtype"], r["rows"], r["cols"]) for r in held_out}
    assert measured == listed("held-out"), "a point of the list has no row"
    asked = tomllib.loads((ROOT / "benchmarks" / "cases.toml").read_text())["predictions"]["held-out"]
    assert statistics.median(errors) <= asked["median"]
    assert statistics.quantiles(errors, n=10)[-1] <= asked["p90"]
    note = (ROOT / "docs" / "notes" / "007-time-model.md").read_text()
    assert f"median error {statistics.median(errors):.1%}".replace("%", " %") in note
    drawn = subprocess.run([sys.executable, str(ROOT / "tools" / "prediction_scatter.py"), "--check"])
    assert drawn.returncode == 0, "python tools/prediction_scatter.py draws it anew"
