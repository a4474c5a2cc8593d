"""The drawing of a sweep over widths: a cliff is found, a slope is not, and every row is drawn in its kind."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def sweep() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "width_sweep.py"
    spec = importlib.util.spec_from_file_location("width_sweep", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(cols: int, ns_a_kilobyte: float, contender: str = "onepass", dtype: str = "bf16") -> dict[str, Any]:
    nbytes = 1000 * cols * 4
    return {
        "case": "layer_norm",
        "dtype": dtype,
        "cols": cols,
        "contender": contender,
        "median_us": nbytes * ns_a_kilobyte / 1e6,
        "ideal_bytes": nbytes,
        "attained": 0.25 / ns_a_kilobyte,
    }


def test_a_cliff_is_where_a_byte_is_a_fifth_dearer_than_beside_it(sweep: ModuleType) -> None:
    slope = [row(n, 0.25 + 0.04 * i) for i, n in enumerate((1023, 1024, 1025))]
    assert sweep.cliffs(slope) == []
    steep = [row(1023, 0.31), row(1024, 0.25), row(1025, 0.29)]
    assert sweep.cliffs(steep) == ["layer_norm bf16: 1023 columns, 1.24 × 1024"]
    # widths that are not neighbours, another contender's and another dtype's are not compared
    apart = [row(1000, 0.9), row(1024, 0.25), row(1023, 0.9, "roof"), row(1025, 0.9, dtype="fp32")]
    assert sweep.cliffs(apart) == []


def test_rows_are_drawn_by_what_divides_them(sweep: ModuleType) -> None:
    rows = [row(n, 0.25) for n in (1023, 1024, 1025, 1028)] + [row(1028, 0.25, dtype="fp32")]
    assert [sweep.kind(r) for r in rows] == [list(sweep.KINDS)[k] for k in (2, 0, 2, 1, 0)]
    text = sweep.drawn(rows)
    assert "odd (2)" in text and "in whole vectors (1)" in text and text == sweep.drawn(rows)
