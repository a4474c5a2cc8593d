"""Renders the tables of docs/ladder/ from the results of `onepass ladder all --out benchmarks/results/DEVICE`.

    python tools/ladder_tables.py

Between `<!-- table NAME -->` and `<!-- end -->` stands what the committed results say; without results, that.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "nvidia-h200"
WORDS = {
    "en": {
        "none": "Not measured yet.",
        "head": "rung | cols | µs | GB/s | of datasheet | of roof | predicted | measured | as expected",
        "near": "yes",
        "more": "faster",
        "less": "slower",
        "about": "{device}, rows = {rows}, fp32, cold, median of {rounds} rounds; {date}. Predicted and measured: speed "
        "relative to the rung below.",
    },
    "zh": {
        "none": "尚未测量。",
        "head": "级 | 列数 | µs | GB/s | 手册占比 | 屋顶占比 | 预测 | 实测 | 是否如预期",
        "near": "是",
        "more": "更快",
        "less": "更慢",
        "about": "{device}，行数 = {rows}，fp32，冷缓存，{rounds} 轮的中位数；{date}。"
        "预测与实测均为相对下一级的速度。",
    },
}
BLOCK = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def documents() -> dict[Path, str]:
    """Each tutorial as it should be."""
    return {
        path: render(path.read_text(), language(path)) for path in (ROOT / "docs" / "ladder").glob("tut*.md")
    }


def language(path: Path) -> str:
    return "zh" if ".zh" in path.name else "en"


def render(text: str, language: str) -> str:
    return BLOCK.sub(lambda m: f"{m[1]}{table(m[2], language)}\n{m[3]}", text)


def table(ladder: str, language: str) -> str:
    """The Markdown table of one ladder."""
    path, words = RESULTS / f"ladder-{ladder}.json", WORDS[language]
    if not path.is_file():
        return words["none"]
    found = json.loads(path.read_text())
    sound = [r for r in found["results"] if r["measured"] and not r["measured"]["void"]]
    times = {(r["rung"], r["cols"]) for r in sound}
    rows = [row(r, words, (r["below"], r["cols"]) in times) for r in sound]
    rows.sort(key=lambda cells: int(cells[1]))
    about = words["about"].format(
        device=found["device"]["name"],
        rows=found["rows"],
        rounds=found["run"]["rounds"],
        date=found["run"]["date"],
    )
    head = words["head"].split(" | ")
    lines = [head, ["---"] * 2 + ["---:"] * (len(head) - 3) + ["---"], *rows]
    return f"{about}\n\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def row(result: dict[str, Any], words: dict[str, str], comparable: bool) -> list[str]:
    """The cells of a row; `comparable` is whether the rung below has a time that counts."""
    m, stated = result["measured"], result["stated_relative"]
    relative = result["relative"] if comparable else None
    near = ""
    if stated and relative:
        near = "near" if abs(relative / stated - 1) <= 0.1 else "more" if relative > stated else "less"
    return [
        result["rung"],
        str(result["cols"]),
        f"{m['us']['median']:.1f}",
        f"{m['gbps']:.0f}",
        f"{m['of_datasheet']:.0%}",
        f"{m['of_roof']:.1%}",
        f"{stated:.2f} ×" if stated else "–",
        f"{relative:.2f} ×" if relative else "–",
        words[near] if near else "–",
    ]


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text)
