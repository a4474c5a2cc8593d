"""Two files of measurements compared: the four verdicts and their reasons."""

import json
from pathlib import Path
from typing import Any

import pytest

import compare
from onepass.insight import compare as rules


def entry(us: float | None = 100.0, iqr: float = 0.5, roof: float = 4260.0, **more: Any) -> dict[str, Any]:
    row = {
        "case": "softmax",
        "direction": "forward",
        "dtype": "fp32",
        "rows": 8,
        "cols": 64,
        "contender": "onepass",
        "median_us": us,
        "iqr_us": iqr,
        "roof_gbps": roof,
        "protocol": "cold",
        "device": "some device",
    }
    return {**row, **more}


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (entry(), entry(), "SAME"),
        (entry(), entry(101.5), "SAME"),
        (entry(), entry(80), "FASTER"),
        (entry(), entry(125), "SLOWER"),
        # 5 % between runs whose samples spread by 5 %.
        (entry(iqr=8), entry(105, iqr=8), "AMBIGUOUS"),
        # Nothing is said of a few per cent by samples this wide, nor of half.
        (entry(iqr=40), entry(60, iqr=40), "AMBIGUOUS"),
        # Slower by the clock, but so was all memory: by the roof it is as before.
        (entry(), entry(110, roof=4260 / 1.1), "SAME"),
        # The same time at a lower roof is a faster kernel only if one trusts the roof.
        (entry(), entry(99, roof=4260 * 1.2), "AMBIGUOUS"),
        # The roof of memory does not bind what stays in the cache.
        (entry(protocol="graph-warm"), entry(100, roof=5000, protocol="graph-warm"), "SAME"),
    ],
)
def test_verdicts(old: dict[str, Any], new: dict[str, Any], verdict: str) -> None:
    found = rules.judge(old, new)
    assert found.verdict == verdict, found
    assert "%" in found.reason


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_exit_code_is_of_the_contender_asked_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = {"contender": "eager"}
    old = write(tmp_path / "old.jsonl", entry(), entry(**peer))
    new = write(tmp_path / "new.jsonl", entry(99), entry(150, **peer), entry(cols=128))
    assert compare.main([str(old), str(new)]) == 0
    assert compare.main([str(old), str(new), "--contender", "any"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("1 SLOWER, 1 SAME (only new: 1, only old: 0)\nSLOWER    eager")


def test_a_model_without_a_figure_is_left_out() -> None:
    assert rules.compare([entry(us=None)], [entry()]) == compare.compare([entry()], [entry(us=None)]) == []


def test_nothing_in_common_is_misuse(tmp_path: Path) -> None:
    old = write(tmp_path / "old.jsonl", entry())
    new = write(tmp_path / "new.jsonl", entry(device="another device"))
    assert compare.main([str(old), str(new)]) == 2
    assert compare.main([str(old), str(tmp_path / "none.jsonl")]) == 2
