"""`onepass explain --gate`: rules about a function's kernels, as they run here."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from onepass.analysis.roofline import Roof
from onepass.cli import main
from onepass.runtime import calibration

USER = """
import torch
def f(x): return torch.relu(x) + 1
def mm(x): return x @ x
def example_inputs(): return torch.randn(64, 64)
"""
ROOF = Roof("measured", 1e9, 100.0, "a test")  # whatever is timed is far below it


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("f", "--run", "--gate", "gbps>0"), 0, ""),
        (("f", "--run", "--gate", "attained<1"), 0, ""),
        (("f", "--run", "--gate", "attained>=1"), 1, "gate broken: "),
        (("f", "--gate", "attained>=0.9"), 2, "Nothing was timed: add --run."),
        (("f", "--run", "--gate", "spill_bytes==0"), 2, "Kernels for the CPU have no registers"),
        (("f", "--gate", ""), 2, "it has no rule"),
        (("f", "--gate", "iqr_us<=3"), 2, "`onepass explain` has no iqr_us"),
        (("mm", "--run", "--gate", "attained>=0.9"), 2, "no kernel that it could be about"),
    ],
)
def test_gates(
    arguments: tuple[str, ...],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "user.py").write_text(USER)
    monkeypatch.setattr(calibration, "roofs_of", lambda name: (replace(ROOF),))
    monkeypatch.setattr(
        sys, "argv", ["onepass", "explain", f"{tmp_path}/user.py:{arguments[0]}", *arguments[1:], "--json"]
    )
    try:
        got = main()
    except SystemExit as leave:
        got = leave.code if isinstance(leave.code, int) else 0
    captured = capsys.readouterr()
    assert got == code, captured.err
    assert said in captured.err
    if code < 2:
        assert bool(json.loads(captured.out)["gate"]["broken"]) == bool(code)


def test_above_the_roof_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "user.py").write_text(USER)
    monkeypatch.setattr(calibration, "roofs_of", lambda name: (replace(ROOF, bandwidth_gbps=1e-3),))
    words = ["explain", f"{tmp_path}/user.py:f", "--run", "--gate", "attained>=0.9"]
    monkeypatch.setattr(sys, "argv", ["onepass", *words])
    try:
        got = main()
    except SystemExit as leave:
        got = leave.code if isinstance(leave.code, int) else 0
    assert got == 2 and "above the measured roof" in capsys.readouterr().err
