"""Write the README's figures from the rows in results/: python3 benchmarks/report.py [--check]."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from record import ROOT, Row, read

README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- results: begin -->\n", "<!-- results: end -->\n"
TITLES = {
    "layer_norm": "LayerNorm",
    "rms_norm": "RMSNorm",
    "softmax": "softmax",
    "gelu_tanh_add_layer_norm": "GELU (tanh) + Add + LayerNorm",
    "gelu_erf_add_layer_norm": "GELU (erf) + Add + LayerNorm",
    "add_rms_norm": "Add + RMSNorm, sum kept",
    "bert_base": "BERT-base",
    "gpt2": "GPT-2",
    "llama_8x2048": "Llama-style, 8 layers of 2048",
}
PARTS = {
    "import": "`import onepass`, on top of `import torch`",
    "kernel_cold": "one kernel, printed and compiled",
    "kernel_cached": "one kernel, from the disk cache of another process",
    "first_call_cold": "first call of a compiled function, nothing cached",
    "first_call_cached": "the same, kernel cached",
}


def main(arguments: Sequence[str]) -> int:
    text = README.read_text()
    current = replaced(text, section(RESULTS))
    if "--check" in arguments:
        if current != text:
            print("README.md is not what benchmarks/results/ says; run python3 benchmarks/report.py")
        return int(current != text)
    README.write_text(current)
    return 0


def replaced(text: str, made: str) -> str:
    """The text with what is between the two marks exchanged."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{made}{END}{after}"


def section(results: Path) -> str:
    """Every device's figures, GPUs first."""
    folders = sorted(
        (f for f in results.iterdir() if f.is_dir()), key=lambda f: ("nvidia" not in f.name, f.name)
    )
    return (
        "\n".join(part for folder in folders for part in _device(folder)) or "No results are committed yet.\n"
    )


def _device(folder: Path) -> Iterable[str]:
    for suite in ("h200-forward", "cpu-forward"):
        if (folder / f"{suite}.jsonl").exists():
            yield _forward(read(folder / f"{suite}.jsonl"))
    if (models := folder / "models.jsonl").exists():
        yield from _models(_lines(models))
    if (startup := folder / "startup.jsonl").exists():
        yield _startup(_lines(startup))


def _forward(rows: list[Row]) -> str:
    """One line a case and dtype: onepass's bandwidth as a share of the roof at each width, and its lead over peers."""
    cols = sorted({row.cols for row in rows})
    peers = [c for c in dict.fromkeys(row.contender for row in rows) if c not in ("onepass", "roof")]
    points = {
        (row.case, row.dtype): [r for r in rows if (r.case, r.dtype) == (row.case, row.dtype)] for row in rows
    }
    body = []
    for (case, dtype), found in points.items():
        own = {row.cols: row for row in found if row.contender == "onepass"}
        shares = [f"{own[n].attained:.3f}" if n in own else "–" for n in cols]
        body.append((TITLES.get(case, case), dtype, *shares, *(_lead(own, found, peer) for peer in peers)))
    first = rows[0]
    return (
        f"**{first.device}**, forward, {_megabytes(rows)} a tensor: bandwidth as a share of what a plain stream kernel "
        f"with the same reads and writes reaches in the same run, by columns; then how many times as fast as "
        f"others, in the geometric mean (smallest).\n\n"
        + _table(("", "", *map(str, cols), *(f"× {peer}" for peer in peers)), body)
        + _from(rows[0].versions, {row.commit for row in rows}, {row.date[:10] for row in rows})
    )


def _lead(own: dict[int, Row], found: list[Row], peer: str) -> str:
    times = [
        row.median_us / own[row.cols].median_us for row in found if row.contender == peer and row.cols in own
    ]
    return f"{geometric_mean(times):.2f} ({min(times):.2f})" if times else "–"


def _megabytes(rows: list[Row]) -> str:
    sizes = {row.rows * row.cols * (4 if row.dtype == "fp32" else 2) >> 20 for row in rows}
    return " or ".join(str(n) for n in sorted(sizes)) + " MiB"


def _models(rows: list[dict[str, Any]]) -> Iterable[str]:
    names = list(dict.fromkeys(row["case"] for row in rows))
    by = {(row["case"], row["contender"]): row for row in rows}
    contenders = list(dict.fromkeys(row["contender"] for row in rows))
    body = []
    for name in names:
        own = by[name, "onepass"]
        ratio = [_ratio(by.get((name, c)), own) for c in contenders if c != "onepass"]
        steps = [_ms(by.get((name, c), {}).get("median_us")) for c in contenders]
        alone = [_ms(by[name, c].get("alone_us")) for c in ("eager", "onepass")]
        first = [f"{by[name, c]['first_s']:.1f}" for c in ("aot_eager", "onepass") if by[name, c]["first_s"]]
        body.append(
            (
                TITLES.get(name, name),
                f"{own['rows']} × {own['cols']}",
                *steps,
                *ratio,
                " / ".join(alone),
                " / ".join(first),
            )
        )
    header = (
        "",
        "batch × length",
        *(f"{c}, ms" for c in contenders),
        *(f"× {c}" for c in contenders if c != "onepass"),
        "one step between two waits, ms (eager / onepass)",
        "first result, s (aot_eager / onepass)",
    )
    yield (
        f"**{rows[0]['device']}**, whole models, {rows[0]['dtype']} inference, a step of several in a row, "
        "the host's share included:\n\n"
        + _table(header, body)
        + _from(rows[0]["versions"], {row["commit"] for row in rows}, {row["date"][:10] for row in rows})
    )
    kinds = list(dict.fromkeys(kind for row in rows for kind in (row["where_us"] or {})))
    where = [
        (
            TITLES.get(r["case"], r["case"]),
            r["contender"],
            *(_ms((r["where_us"] or {}).get(k)) for k in kinds),
        )
        for r in rows
        if r["where_us"] and r["contender"] in ("eager", "inductor", "onepass")
    ]
    if where:
        yield "Where a step's time is, ms:\n\n" + _table(("", "", *kinds), where)


def _ratio(other: dict[str, Any] | None, own: dict[str, Any]) -> str:
    return f"{other['median_us'] / own['median_us']:.2f}" if other and other["median_us"] else "–"


def _ms(us: float | None) -> str:
    return "–" if us is None else f"{us / 1e3:.2f}"


def _startup(rows: list[dict[str, Any]]) -> str:
    body = [(PARTS[row["part"]], _short(row["median_ms"]), _short(row["largest_ms"])) for row in rows]
    return (
        f"**{rows[0]['device']}**, before the first result, in fresh processes:\n\n"
        + _table(("", "ms, median", "largest"), body)
        + _from(rows[0]["versions"], {row["commit"] for row in rows}, {row["date"][:10] for row in rows})
    )


def _short(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}"


def _from(versions: Any, commits: set[str], dates: set[str]) -> str:
    made = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "onepass")
    return f"\n{made}; commit {', '.join(sorted(commits))}; {', '.join(sorted(dates))}.\n"


def _table(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
