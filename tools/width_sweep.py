"""Draws docs/figures/widths.svg: the share of the roof at 300 widths, from the rows of the suite `h200-widths`.

    python tools/width_sweep.py [--check]

Prints the widths at which a byte takes more than 1.2 × what it takes at a neighbouring width, and exits 1 if there are
any. With --check it writes nothing, and exits 1 also where the drawing is not of these rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "benchmarks" / "results" / "nvidia-h200" / "h200-widths.jsonl"
FIGURE = ROOT / "docs" / "figures" / "widths.svg"
# A byte at N may take so much more than at N - 1 or N + 1.
CLIFF = 1.2
# Elements of 16 bytes.
VECTOR = {"bf16": 8, "fp16": 8, "fp32": 4}
KINDS = {
    "in whole vectors": "#0072b2",
    "in halves or quarters of vectors": "#e69f00",
    "odd": "#d55e00",
}

Row = Mapping[str, Any]


def kind(row: Row) -> str:
    """Whether vectors, parts of them or nothing but single elements divide the row."""
    names = list(KINDS)
    return (
        names[0]
        if row["cols"] % VECTOR[row["dtype"]] == 0
        else names[1]
        if row["cols"] % 2 == 0
        else names[2]
    )


def cliffs(rows: Sequence[Row]) -> list[str]:
    """Widths at which a byte is dearer than at a neighbour, with both times a byte, in units of the neighbour's."""
    found = []
    for panel in panels(rows).values():
        a_byte = {r["cols"]: r["median_us"] / r["ideal_bytes"] for r in panel}
        for cols, time in a_byte.items():
            for other in (cols - 1, cols + 1):
                if other in a_byte and time > CLIFF * a_byte[other]:
                    what = f"{panel[0]['case']} {panel[0]['dtype']}"
                    found.append(f"{what}: {cols} columns, {time / a_byte[other]:.2f} × {other}")
    return found


def panels(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Own rows of each case and dtype, by width."""
    found: dict[tuple[str, str], list[Row]] = {}
    for r in sorted(rows, key=lambda r: r["cols"]):
        if r["contender"] == "onepass":
            found.setdefault((r["case"], r["dtype"]), []).append(r)
    return found


def drawn(rows: Sequence[Row]) -> str:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "onepass", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    found = panels(rows)
    figure, axes = pyplot.subplots(
        len(found), 1, figsize=(9, 2.6 * len(found)), sharex=True, squeeze=False, layout="constrained"
    )
    for ((case, dtype), own), (axis,) in zip(found.items(), axes, strict=True):
        for name, colour in KINDS.items():
            some = [r for r in own if kind(r) == name]
            shares = [r["cols"] for r in some], [r["attained"] for r in some]
            axis.scatter(*shares, s=9, color=colour, lw=0, label=f"{name} ({len(some)})")
        axis.set(xscale="log", ylim=(0, 1.05), ylabel="share of the roof")
        axis.set_title(f"{case} {dtype}", fontsize=9)
        axis.grid(axis="y", lw=0.3)
    axes[0][0].legend(loc="lower left", fontsize=8, frameon=False)
    axes[-1][0].set_xlabel("columns")
    text = StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def main(arguments: Sequence[str]) -> int:
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    steep = cliffs(rows)
    print("\n".join(steep) or "no cliff")
    text = drawn(rows)
    if "--check" in arguments:
        return int(bool(steep) or not FIGURE.exists() or FIGURE.read_text() != text)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    FIGURE.write_text(text)
    return int(bool(steep))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
