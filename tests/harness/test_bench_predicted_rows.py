"""Benchmark rows beside the time model: each row with its own shape, dtype and device."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from onepass.runtime.calibration import Calibration  # noqa: E402
from predicted_rows import main, predicted  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "nvidia-h200"


def test_committed_rows_are_predicted_by_the_committed_rates(tmp_path: Path) -> None:
    constants = Calibration.from_dict(json.loads((RESULTS / "calibration.json").read_text()))
    lines = [json.loads(line) for line in (RESULTS / "h200-forward.jsonl").read_text().splitlines()]
    rows = [
        r
        for r in lines
        if r["contender"] == "onepass" and r["case"] in ("softmax", "add_rms_norm") and r["cols"] == 1024
    ]
    assert len(rows) == 4
    for row in rows:
        assert abs(predicted(row, constants).error) < 0.05
        twice = {**row, "rows": 2 * row["rows"]}
        assert predicted(twice, constants).error > 0.8
    slow = replace(constants, memory=tuple(replace(m, gbps=m.gbps / 2) for m in constants.memory))
    assert predicted(rows[0], slow).error > 0.8

    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    for kept, code in ((constants, 0), (slow, 1)):
        file.with_name("calibration.json").write_text(json.dumps(kept.to_dict()))
        assert main([str(file)]) == code
