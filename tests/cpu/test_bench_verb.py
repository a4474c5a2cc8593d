"""`onepass bench`: what voids a row, what a row holds, and how two are compared."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from onepass.cli import main
from onepass.errors import BadUserFile
from onepass.insight import bench as benching
from onepass.insight.compare import diff
from onepass.runtime.timer import Spread

USER = """
import torch
import torch.nn.functional as F

print("a print of the user's")

def norm(x, r):
    return F.layer_norm(x + r, x.shape[-1:])

def wrong_epsilon(x, r):
    return F.layer_norm(x + r, x.shape[-1:], eps=1e-2)

def kept(x, r, made={}):
    if "y" not in made:
        made["y"] = norm(x, r)
    return made["y"]

def careless(x, r):
    y = norm(x, r)
    x[0, 0] = 0
    return y

def broken(x, r):
    raise RuntimeError("out of cheese")

def into(x, r, y):
    torch.add(x, r, out=y)

def half(x, r, y):
    torch.add(x[:100], r[:100], out=y[:100])

def norm_and_sum(x, r):
    return norm(x, r), x + r

def total(x, r):
    return x + r

def example_inputs():
    return torch.randn(512, 1000), torch.randn(512, 1000)
"""
OUT = USER.replace("1000), torch.randn(512, 1000)", "1000), torch.randn(512, 1000), torch.empty(512, 1000)")
SAME = USER.replace(
    "return torch.randn(512, 1000), torch.randn(512, 1000)", "return (torch.randn(512, 1000),) * 2"
)

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "out.py").write_text(OUT)
    (tmp_path / "same.py").write_text(SAME)
    monkeypatch.chdir(tmp_path)
    # The smallest number of sets that still takes turns: what is tested is not how cold a cache is.
    monkeypatch.setattr(benching.timer, "sets_needed", lambda *_: 2)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["onepass", "bench", *arguments, "--rounds", "3"])
        try:
            code = main()
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def asked(target: str, ref: str, writes: str = "y") -> tuple[str, ...]:
    return target, "--reads", "x,r", "--writes", writes, "--ref", f"user.py:{ref}", "--json"


def test_a_row(invoke: Invoke) -> None:
    code, out, err = invoke(*asked("user.py:norm", "norm"))
    row = json.loads(out)
    assert row["schema"] == "onepass.bench/1" and row["verdict"] in err and "a print of the user's" in err
    assert row["ideal_bytes"] == 3 * 4 * 512 * 1000
    assert row["roof"]["read_streams"] == 2 and row["roof"]["write_streams"] == 1
    assert row["tensors"] == dict.fromkeys("xry", "float32 512 × 1000")
    assert len(row["samples_us"]) == 3
    if code == 0:  # on a machine that is disturbed between two samples the row may be void, and says why
        assert row["median_us"] == Spread.of(row["samples_us"]).median
        assert row["gbps"] == pytest.approx(row["ideal_bytes"] / row["median_us"] / 1e3)
        assert row["attained"] == pytest.approx(row["gbps"] / row["roof_gbps"])
    else:
        assert code == 1 and "of the measured roof" in row["void"]


@pytest.mark.parametrize(
    ("target", "ref", "writes", "said"),
    [
        ("user.py:wrong_epsilon", "norm", "y", "values are too far from float64"),
        ("user.py:kept", "norm", "y", "on new values: y: "),
        ("user.py:careless", "norm", "y", "it changed x, which --writes does not name"),
        ("user.py:broken", "norm", "y", "it raised RuntimeError: out of cheese"),
        ("user.py:norm", "norm_and_sum", "y,s", "it returned 1 results instead of 2"),
        ("out.py:half", "total", "y", "412000 of 512000 values were never written"),
    ],
)
def test_a_wrong_result_voids_the_row(invoke: Invoke, target: str, ref: str, writes: str, said: str) -> None:
    code, out, _ = invoke(*asked(target, ref, writes))
    row = json.loads(out)
    assert code == 1
    assert said in row["void"]
    assert row["median_us"] is row["gbps"] is row["attained"] is None


@pytest.mark.parametrize(
    ("target", "ref", "writes"),
    [("out.py:into", "total", "y"), ("user.py:norm_and_sum", "norm_and_sum", "y,s")],
)
def test_outputs_that_are_parameters_and_several_results(
    invoke: Invoke, target: str, ref: str, writes: str
) -> None:
    _, out, _ = invoke(*asked(target, ref, writes))
    row = json.loads(out)
    assert not row["void"] or "of the measured roof" in row["void"]
    assert row["ideal_bytes"] == (2 + len(writes.split(","))) * 4 * 512 * 1000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("user.py:norm", "--reads", "x,q", "--writes", "y", "--ref", "user.py:norm"),
            "Its tensors are x, r",
        ),
        (
            ("user.py:norm", "--reads", "x", "--writes", "x", "--ref", "user.py:norm"),
            "read and written in place",
        ),
        (
            ("user.py:norm", "--reads", "x", "--writes", "", "--ref", "user.py:norm"),
            "must each name something",
        ),
        (
            ("user.py:norm", "--reads", "x", "--writes", "a,b", "--ref", "user.py:norm"),
            "--ref gives 1 results",
        ),
        (("user.py:norm", "--reads", "x", "--writes", "y", "--ref", "user.py:nrm"), "has no `nrm`"),
        (
            ("user.py:into", "--reads", "x", "--writes", "y", "--ref", "user.py:norm", "--gate", ""),
            "it has no rule",
        ),
        (("out.py:norm", "--reads", "x", "--writes", "y", "--ref", "user.py:norm"), "no arguments of `norm`"),
    ],
)
def test_misuse(invoke: Invoke, arguments: tuple[str, ...], said: str) -> None:
    code, _, err = invoke(*arguments)
    assert code == 2
    assert said in err


def test_a_gate_judges_the_row_and_refuses_what_it_lacks(invoke: Invoke) -> None:
    void = "of the measured roof"
    code, _, err = invoke(*asked("user.py:norm", "norm"), "--gate", "attained<=0.0001")
    assert code == 1 and ("gate broken: norm: attained is" in err or void in err)
    code, _, err = invoke(*asked("user.py:norm", "norm"), "--gate", "spill_bytes==0")
    assert code == 2 and "`onepass bench` has no spill_bytes" in err


def test_comparing_holds_results_to_their_own_rounding() -> None:
    exact = torch.randn(64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert benching.compared(exact.to(dtype), exact) == ""
        assert (
            benching.compared((exact * (1 + 40 * torch.finfo(dtype).eps)).to(dtype), exact)
            or dtype is torch.float32
        )
        assert "too far" in benching.compared((exact * 1.1).to(dtype), exact)
    assert "shape" in benching.compared(exact[:1], exact)
    assert (
        benching.compared(torch.tensor([torch.inf, torch.nan]), torch.tensor([torch.inf, torch.nan]).double())
        == ""
    )
    assert "too far" in benching.compared(
        torch.tensor([torch.inf, 0.0]), torch.tensor([-torch.inf, 0.0]).double()
    )


@pytest.mark.parametrize("huge", [1e6, -1e9, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("count", [1, 1500])
def test_huge_values_do_not_hide_what_is_wrong(huge: float, count: int) -> None:
    """An outlier, and a mask: with a mean of magnitudes all else may be anything."""
    exact = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).double()
    exact.view(-1)[:count] = huge
    made = exact.float()
    assert benching.compared(made, made.double()) == ""
    made[60, 60] += 0.01
    assert "1 of 4096 values are too far" in benching.compared(made, exact)


def test_a_task_names_its_results() -> None:
    def f(x: Any, y: Any) -> None: ...

    x = torch.ones(3)
    job = benching.task("f.py", f, (x, x.clone()), ["x"], ["y", "z"], f)
    assert job.results == ("z",)
    with pytest.raises(BadUserFile):
        benching.task("f.py", f, (x,), ["y"], ["z"], f)


def row(us: float = 100.0, iqr: float = 0.5, roof: float = 4000.0, **more: Any) -> dict[str, Any]:
    common = {
        "schema": "onepass.bench/1",
        "target": "f",
        "void": "",
        "device": "d",
        "protocol": "cold",
        "versions": {},
    }
    rates = {"median_us": us, "iqr_us": iqr, "roof_gbps": roof, "gbps": 3e5 / us, "attained": 3e5 / us / roof}
    return {**common, **rates, "tensors": {"x": "float32 8"}, **more}


def test_an_upgrade_is_measured_and_named() -> None:
    old, new = (
        row(versions={"torch": "2.12", "cuda": "13.0"}),
        row(80, versions={"torch": "2.13", "cuda": "13.0"}),
    )
    (found,) = diff(old, new)
    assert found.verdict == "better" and "torch 2.12 → 2.13" in found.changes
    (found,) = diff(row(versions={"torch": "2.13"}), row(125, versions={"torch": "2.13", "liger": "1.0"}))
    assert found.verdict == "worse" and "liger none → 1.0" in found.changes


def relu(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


SAMPLES_US, ROOF_US = (2000.0, 2500.0, 2400.0), (1500.0, 1600.0, 2000.0)


def test_a_row_of_known_samples_has_the_rates_computed_by_hand() -> None:
    x = torch.zeros(8)
    job = benching.task("f.py", relu, (x,), ["x"], ["y"], relu)
    # 6 000 000 bytes in the median's 2400 µs are 2.5 GB/s; the roof's 8 000 000 in 1600 µs are 5 GB/s.
    made = benching.Row(job, SAMPLES_US, 6_000_000, (1, 1), "copy", ROOF_US, 8_000_000, {}, "a card", "")
    assert made.gbps == pytest.approx(2.5)
    assert made.roof_gbps == pytest.approx(5.0)
    assert made.attained == pytest.approx(0.5)
    assert "2400.0 µs and moves 2.5 GB/s, 50% of the 5.0 GB/s" in made.verdict
    document = made.to_dict()
    assert [document[k] for k in ("gbps", "roof_gbps", "attained")] == pytest.approx([2.5, 5.0, 0.5])
    assert (document["median_us"], document["iqr_us"]) == (2400.0, Spread.of(SAMPLES_US).iqr)


def test_a_bench_takes_the_best_roof_and_all_of_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(256, 1000)
    job = benching.task("f.py", relu, (x,), ["x"], ["y"], relu)

    def samples(calls: dict[str, Any], *_: Any) -> dict[str, list[float]]:
        for call in calls.values():
            call(0)
        times = [100.0 * (1 + i) for i in range(len(calls) - 1)]
        return {"this": [400.0] * 3, **{n: [t] * 3 for n, t in zip(list(calls)[1:], times, strict=True)}}

    monkeypatch.setattr(benching.timer, "cold", samples)
    monkeypatch.setattr(benching.timer, "sets_needed", lambda *_: 2)
    made = benching.bench(job, 3)
    assert not made.void, made.void
    # As many bytes as the function: 2 × 256 × 1000 floats in 400 µs, and in the fastest roof's 100 µs.
    assert made.gbps == pytest.approx(5.12)
    assert made.roof_gbps == pytest.approx(20.48, rel=0.01)
    assert made.attained == pytest.approx(0.25, rel=0.01)


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (row(), row(80), "better"),
        (row(), row(125), "worse"),
        (row(), row(101), "cannot tell"),
        (row(iqr=40), row(60, iqr=40), "cannot tell"),
        (row(), row(80, device="e"), "not comparable"),
        (row(), row(80, tensors={"x": "float32 9"}), "not comparable"),
        (row(), row(80, void="y: 3 of 8 values are too far from float64"), "not comparable"),
        (row(), {**row(80), "schema": "onepass.inspect/1"}, "not comparable"),
        (row(), row(80, target="g"), "better"),  # another function on the same tensors
    ],
)
def test_two_rows_compared(old: dict[str, Any], new: dict[str, Any], verdict: str) -> None:
    (found,) = diff(old, new)
    assert found.verdict == verdict, found.reason
