"""Suites, rows and rules of the benchmarks, and a run from the command line to the file."""

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import cases
import record
import rules
import run
from baselines import Absent, call_of
from cases import Inputs, Point, Targets
from measure import ROOF, Measured

# Whoever reads rows relies on these, in this order.
KEYS = [
    "case",
    "direction",
    "dtype",
    "rows",
    "cols",
    "contender",
    "median_us",
    "iqr_us",
    "ideal_bytes",
    "gbps",
    "roof_gbps",
    "attained",
    "protocol",
    "device",
    "versions",
    "commit",
    "date",
]


def test_rows_have_the_keys_that_readers_rely_on() -> None:
    assert list(record.KEYS) == KEYS


def test_every_suite_is_complete() -> None:
    for suite in cases.suites().values():
        assert suite.points, suite.name
        assert len(set(suite.points)) == len(suite.points)
        assert suite.protocol in ("cold", "graph")
    file = tomllib.loads((Path(cases.__file__).parent / "cases.toml").read_text())
    assert all(entry["why"] for suite in file["suites"].values() for entry in suite["points"])
    assert set(file["cases"]) == set(cases.FUNCTIONS)


def test_the_acceptance_points_are_there() -> None:
    """60 points on the H200, 64 on the CPU, with what is asked of each: shares of the roof and of the fastest other."""
    gpu, cpu = (cases.suites()[name].points for name in ("h200-forward", "cpu-forward"))
    assert len(gpu) == 60 and len(cpu) == 8 * 2 * 4
    assert all(p.tensor_bytes == 512 << 20 and p.targets.of_peers == 0.97 for p in gpu)
    erf = {p.cols: p.targets.attained for p in gpu if p.case.name == "gelu_erf_add_layer_norm"}
    assert erf == {256: 0.92, 1024: 0.92, 4096: 0.92, 8192: 0.85, 16384: 0.85}
    assert {p.targets.attained for p in gpu if p.case.name != "gelu_erf_add_layer_norm"} == {0.95}
    assert {round(p.tensor_bytes / 2**20) for p in cpu if p.dtype == "fp32"} == {64}
    assert {round(p.tensor_bytes / 2**20) for p in cpu if p.dtype == "bf16"} == {32}
    assert {p.cols for p in cpu} == {256, 1000, 1024, 4096}
    assert all(p.targets.of_peers == 1.0 for p in cpu)
    assert cases.suites()["cpu-forward"].mean_of == {"inductor": 2.0}
    assert all(cases.suites()[s].acceptance for s in cases.suites())


def test_ideal_bytes_count_each_input_and_output_once() -> None:
    point = Point(cases.cases()["gelu_tanh_add_layer_norm"], "bf16", 10, 100)
    assert point.ideal_bytes == 2 * (3 * 10 * 100 + 2 * 100)


def test_reference_figures_name_points_that_are_measured() -> None:
    measured = {(p.case.name, p.dtype, p.cols) for p in cases.suites()["h200-forward"].points}
    for device in rules.anchors().values():
        for case, dtypes in device["forward"].items():
            for dtype, entry in dtypes.items():
                assert all(len(v) == len(entry["cols"]) for v in entry.values())
                assert {(case, dtype, c) for c in entry["cols"]} <= measured


def sample(us: dict[str, list[float]], targets: Targets, cols: int = 64) -> Measured:
    point = replace(Point(cases.cases()["softmax"], "fp32", 512, cols), targets=targets)
    return Measured(point, "cold", 2, us, point.ideal_bytes, "stream", {}, {})


def test_verdicts_hold_what_was_asked_and_no_more() -> None:
    us = {
        ROOF: [10.0] * 3,
        "eager": [20.0, 22.0, 24.0],
        "inductor": [30.0] * 3,
        "onepass": [10.0, 11.0, 12.0],
    }
    asked = Targets(attained=0.95, of_peers=1.9, of={"inductor": 3.0, "quack": 1.0})
    found = {v.asked: v for v in rules.verdicts([sample(us, asked)])}
    assert found["share of the roof"].found == pytest.approx(10 / 11)
    assert not found["share of the roof"].holds
    assert found["× eager, the best other"].found == pytest.approx(2.0)
    assert found["× eager, the best other"].holds
    assert found["× inductor"].found == pytest.approx(30 / 11)
    assert not found["× inductor"].holds
    assert len(found) == 3  # QuACK is not there: nothing to compare


def test_the_mean_over_a_group_is_geometric() -> None:
    targets = Targets(mean_of={"eager": 2.5})
    fast = {ROOF: [1.0], "eager": [40.0], "onepass": [10.0]}
    slow = {ROOF: [1.0], "eager": [10.0], "onepass": [10.0]}
    (verdict,) = rules.verdicts([sample(fast, targets, 64), sample(slow, targets, 128)])
    assert verdict.found == pytest.approx(math.sqrt(4))
    assert not verdict.holds
    points = [sample(fast, Targets(), 64), sample(slow, Targets(), 128)]
    (over_all,) = rules.mean_verdicts("all points", points, {"eager": 1.9, "inductor": 9.0})
    assert over_all.found == pytest.approx(math.sqrt(4))
    assert over_all.holds


def test_no_figure_is_not_a_pass() -> None:
    (verdict,) = rules.verdicts([sample({ROOF: [1.0], "eager": [2.0]}, Targets(attained=0.1))])
    assert not verdict.holds


def test_other_libraries_that_need_a_gpu_say_so() -> None:
    point = Point(cases.cases()["layer_norm"], "fp32", 2, 8)
    inputs = Inputs(point, torch.device("cpu"), 1)
    for name in ("liger", "quack"):
        with pytest.raises(Absent, match="needs a GPU"):
            call_of(name, point.case, inputs)


@pytest.fixture
def one_run(tmp_path: Path) -> Path:
    out = tmp_path / "rows.jsonl"
    arguments = ["--suite", "cpu-small", "--cases", "softmax,swiglu", "--dtypes", "bf16", "--rows", "64"]
    assert run.main(
        [*arguments, "--contenders", "eager,onepass,liger", "--rounds", "2", "--out", str(out)]
    ) in (0, 1)
    return out


def test_a_run_writes_rows_and_samples(one_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = record.read(one_run)
    assert {r.contender for r in rows} <= {"roof", "eager", "onepass"}
    assert {(r.case, r.dtype, r.rows, r.cols, r.direction) for r in rows} == {
        ("swiglu", "bf16", 64, 1000, "forward")
    }
    assert all(json.loads(line).keys() == set(KEYS) for line in one_run.read_text().splitlines())
    roof = next(r for r in rows if r.contender == "roof")
    assert roof.attained == 1.0
    for row in rows:
        assert row.gbps == pytest.approx(row.ideal_bytes / row.median_us / 1e3, rel=0.01)
        assert row.attained == pytest.approx(row.gbps / row.roof_gbps, rel=0.01)
    samples = json.loads(one_run.with_suffix(".samples.jsonl").read_text())
    assert {len(us) for us in samples["us"].values()} == {2}
    assert "Liger needs a GPU" in samples["absent"]["liger"]


def test_a_second_run_replaces_its_own_rows_only(one_run: Path) -> None:
    first = record.read(one_run)
    other = replace(first[0], cols=77)
    changed = replace(first[0], median_us=1.0)
    record.merge(one_run, [other, changed])
    after = record.read(one_run)
    assert len(after) == len(first) + 1
    assert after[0].median_us == 1.0


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"case": "softmax"}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: not a row"):
        record.read(path)


def test_what_was_not_measured_in_time_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    assert run.main(["--suite", "cpu-small", "--budget", "-1", "--out", str(out)]) == 1
    assert "not measured, out of time: layer_norm fp32 512 × 1000" in capsys.readouterr().out
