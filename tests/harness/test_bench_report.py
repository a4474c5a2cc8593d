"""The README's figures are those of the committed rows."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

import record
import report

ROW = record.Row(
    case="softmax",
    direction="forward",
    dtype="bf16",
    rows=1 << 18,
    cols=1024,
    contender="onepass",
    median_us=100.0,
    iqr_us=1.0,
    ideal_bytes=1 << 30,
    gbps=4000.0,
    roof_gbps=4200.0,
    attained=0.952,
    protocol="cold",
    device="GPU X",
    versions={"torch": "2"},
    commit="abc",
    date="2026-01-02T00:00:00Z",
)
STEP = {
    "case": "bert_base",
    "dtype": "bf16",
    "rows": 32,
    "cols": 512,
    "device": "GPU X",
    "versions": {"torch": "2"},
    "commit": "abc",
    "date": "2026-01-02T00:00:00Z",
}


def test_readme_holds_what_the_rows_say() -> None:
    assert report.main(["--check"]) == 0


def test_a_changed_row_or_a_figure_by_hand_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "README.md"
    changed.write_text(report.README.read_text().replace(report.END, f"1.99 × everything\n{report.END}"))
    monkeypatch.setattr(report, "README", changed)
    assert report.main(["--check"]) == 1
    assert report.main([]) == 0
    assert report.main(["--check"]) == 0
    assert "1.99 × everything" not in changed.read_text()


def test_forward_rows_become_shares_and_ratios(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia-x"
    folder.mkdir()
    peer = {**asdict(ROW), "contender": "eager", "median_us": 150.0}
    record.write_lines(folder / "h200-forward.jsonl", [asdict(ROW), peer])
    text = report.section(tmp_path)
    assert "**GPU X**" in text and "| softmax | bf16 | 0.952 | 1.50 (1.50) |" in text
    assert "torch 2; commit abc; 2026-01-02" in text


def test_models_become_steps_ratios_and_where_time_goes(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia-x"
    folder.mkdir()
    found = [
        {
            **STEP,
            "contender": name,
            "median_us": us,
            "alone_us": us + 500,
            "first_s": first,
            "where_us": {"matmul": us / 2},
        }
        for name, us, first in (("eager", 3000.0, None), ("aot_eager", 3300.0, 2.0), ("onepass", 2000.0, 2.5))
    ]
    (folder / "models.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    text = report.section(tmp_path)
    assert "| BERT-base | 32 × 512 | 3.00 | 3.30 | 2.00 | 1.50 | 1.65 | 3.50 / 2.50 | 2.0 / 2.5 |" in text
    assert "| BERT-base | onepass | 1.00 |" in text
