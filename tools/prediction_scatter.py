"""Draws docs/figures/predictions.svg: predicted against measured times, from the rows of benchmarks/predictions.py.

    python tools/prediction_scatter.py [--check]

With --check it writes nothing and exits 1 where the drawing is not of these rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "benchmarks" / "results" / "nvidia-h200" / "predictions.jsonl"
FIGURE = ROOT / "docs" / "figures" / "predictions.svg"
# Schedules that walk memory once.
COLOURS = {"flat": "#0072b2", "row-warp": "#009e73", "row-block": "#e69f00", "row-smem": "#cc79a7"}
OTHER = "#d55e00"  # those that walk it again, or column by column
MARGIN = 1.25


def drawn(rows: Sequence[Mapping[str, Any]]) -> str:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "onepass", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 4.8), sharex=True, sharey=True)
    figure.subplots_adjust(left=0.07, right=0.99, top=0.94, bottom=0.1, wspace=0.04)
    for panel, name in zip(panels, ("held-out", "development"), strict=True):
        _panel(panel, name, [r for r in rows if r["list"] == name])
    panels[0].set_ylabel("predicted, µs")
    text = StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _panel(panel: Any, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    ends = [1.5, 1000]
    panel.fill_between(ends, [e / MARGIN for e in ends], [e * MARGIN for e in ends], color="#8884", lw=0)
    panel.plot(ends, ends, color="#888", lw=0.8)
    for schedule in (*COLOURS, ""):
        some = [r for r in rows if (r["schedules"][0] if r["schedules"][0] in COLOURS else "") == schedule]
        if some:
            colour = COLOURS.get(schedule, OTHER)
            label = schedule or "row-stream, row-strided"
            times = [r["median_us"] for r in some], [r["predicted_us"] for r in some]
            panel.scatter(*times, s=14, color=colour, label=f"{label} ({len(some)})", lw=0)
    panel.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal", xlabel="measured, µs")
    panel.set_title(f"{name}: {len(rows)} points; the band is 25 % each way", fontsize=9)
    panel.legend(loc="upper left", fontsize=8, frameon=False)


def main(arguments: Sequence[str]) -> int:
    text = drawn([json.loads(line) for line in ROWS.read_text().splitlines()])
    if "--check" in arguments:
        return int(not FIGURE.exists() or FIGURE.read_text() != text)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    FIGURE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
