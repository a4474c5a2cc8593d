"""Write both READMEs' figures from the rows in results/: python3 benchmarks/report.py [--check]."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from record import ROOT, Row, read

READMES = {"en": ROOT / "README.md", "zh": ROOT / "README.zh-CN.md"}
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- results: begin -->\n", "<!-- results: end -->\n"
Words = dict[str, str]
# What both languages call the same.
TITLES = {
    "layer_norm": "LayerNorm",
    "rms_norm": "RMSNorm",
    "softmax": "softmax",
    "gelu_tanh_add_layer_norm": "GELU (tanh) + Add + LayerNorm",
    "gelu_erf_add_layer_norm": "GELU (erf) + Add + LayerNorm",
    "bias_gelu": "Bias + GELU (tanh)",
    "swiglu": "SwiGLU",
    "bert_base": "BERT-base",
    "gpt2": "GPT-2",
}
WORDS: dict[str, Words] = {
    "en": {
        "none": "No results are committed yet.",
        "forward": "**{device}**, forward, {mebibytes} MiB a tensor: bandwidth as a share of what a plain stream "
        "kernel with the same reads and writes reaches in the same run, by columns; then how many times as fast as "
        "others, in the geometric mean (smallest).",
        "or": " or ",
        "threads": r", \1 threads",
        "made": "{versions}; commit {commits}; {dates}.",
        "comma": ", ",
        "add_rms_norm": "Add + RMSNorm, sum kept",
        "llama_8x2048": "Llama-style, 8 layers of 2048",
        "models": "**{device}**, whole models, {dtype} inference, a step of several in a row, the host's share included:",
        "shape": "batch × length",
        "step": "{contender}, ms",
        "alone": "one step between two waits, ms (eager / onepass)",
        "first": "first result, s (aot_eager / onepass)",
        "where": "Where a step's time is, ms:",
        "other ATen": "other ATen",
        "copies": "copies",
        "matmul": "matmul",
        "attention": "attention",
        "gaps": "gaps",
        "startup": "**{device}**, before the first result, in fresh processes:",
        "median": "ms, median",
        "largest": "largest",
        "import": "`import onepass`, on top of `import torch`",
        "kernel_cold": "one kernel, printed and compiled",
        "kernel_cached": "one kernel, from the disk cache of another process",
        "first_call_cold": "first call of a compiled function, nothing cached",
        "first_call_cached": "the same, kernel cached",
    },
    "zh": {
        "none": "尚无已提交的结果。",
        "forward": "**{device}**，前向，每个张量 {mebibytes} MiB。按列数给出带宽占比："
        "以同一次运行中读写流数相同的纯流式内核所达到的带宽为 1；其后是相对各对手的加速比，取几何平均（括号内为最小值）。",
        "or": " 或 ",
        "threads": r"，\1 线程",
        "made": "{versions}；提交 {commits}；{dates}。",
        "comma": "，",
        "add_rms_norm": "Add + RMSNorm，保留和",
        "llama_8x2048": "Llama 结构，8 层，宽 2048",
        "models": "**{device}**，整个模型，{dtype} 推理；连续执行多步，取每步时间，含主机端开销：",
        "shape": "批 × 长度",
        "step": "{contender}，ms",
        "alone": "单步前后各同步一次，ms（eager / onepass）",
        "first": "首个结果，s（aot_eager / onepass）",
        "where": "一步的时间花在哪里，ms：",
        "other ATen": "其他 ATen 算子",
        "copies": "拷贝",
        "matmul": "矩阵乘",
        "attention": "注意力",
        "gaps": "间隙",
        "startup": "**{device}**，得到首个结果之前的开销，均在新进程中测得：",
        "median": "ms，中位数",
        "largest": "最大值",
        "import": "`import onepass`（已 `import torch`）",
        "kernel_cold": "一个内核，生成源码并编译",
        "kernel_cached": "一个内核，取自另一进程写下的磁盘缓存",
        "first_call_cold": "编译后函数的首次调用，无任何缓存",
        "first_call_cached": "同上，内核已缓存",
    },
}


def main(arguments: Sequence[str]) -> int:
    current = {
        path: replaced(path.read_text(), section(RESULTS, WORDS[language]))
        for language, path in READMES.items()
    }
    if "--check" in arguments:
        stale = [path.name for path, text in current.items() if path.read_text() != text]
        for name in stale:
            print(f"{name} is not what benchmarks/results/ says; run python3 benchmarks/report.py")
        return int(bool(stale))
    for path, text in current.items():
        path.write_text(text)
    return 0


def replaced(text: str, made: str) -> str:
    """The text with what is between the two marks exchanged."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{made}{END}{after}"


def section(results: Path, words: Words) -> str:
    """Every device's figures, GPUs first, in the language of the words."""
    folders = sorted(
        (f for f in results.iterdir() if f.is_dir()), key=lambda f: ("nvidia" not in f.name, f.name)
    )
    return "\n".join(part for folder in folders for part in _device(folder, words)) or f"{words['none']}\n"


def _device(folder: Path, words: Words) -> Iterable[str]:
    for suite in ("h200-forward", "cpu-forward"):
        if (folder / f"{suite}.jsonl").exists():
            yield _forward(read(folder / f"{suite}.jsonl"), words)
    if (models := folder / "models.jsonl").exists():
        yield from _models(_lines(models), words)
    if (startup := folder / "startup.jsonl").exists():
        yield _startup(_lines(startup), words)


def _forward(rows: list[Row], words: Words) -> str:
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
        body.append((_title(case, words), dtype, *shares, *(_lead(own, found, peer) for peer in peers)))
    caption = words["forward"].format(
        device=_named(rows[0].device, words), mebibytes=words["or"].join(map(str, _mebibytes(rows)))
    )
    return (
        f"{caption}\n\n"
        + _table(("", "", *map(str, cols), *(f"× {peer}" for peer in peers)), body)
        + _from(rows[0].versions, {row.commit for row in rows}, {row.date[:10] for row in rows}, words)
    )


def _title(case: str, words: Words) -> str:
    return TITLES.get(case) or words.get(case, case)


def _named(device: str, words: Words) -> str:
    return re.sub(r", (\d+) threads$", words["threads"], device)


def _lead(own: dict[int, Row], found: list[Row], peer: str) -> str:
    times = [
        row.median_us / own[row.cols].median_us for row in found if row.contender == peer and row.cols in own
    ]
    return f"{geometric_mean(times):.2f} ({min(times):.2f})" if times else "–"


def _mebibytes(rows: list[Row]) -> list[int]:
    """Sizes of a tensor: rows of 1000 columns fill a little less."""
    sizes = (row.rows * row.cols * (4 if row.dtype == "fp32" else 2) for row in rows)
    return sorted({round(n / 2**20) for n in sizes})


def _models(rows: list[dict[str, Any]], words: Words) -> Iterable[str]:
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
                _title(name, words),
                f"{own['rows']} × {own['cols']}",
                *steps,
                *ratio,
                " / ".join(alone),
                " / ".join(first),
            )
        )
    header = (
        "",
        words["shape"],
        *(words["step"].format(contender=c) for c in contenders),
        *(f"× {c}" for c in contenders if c != "onepass"),
        words["alone"],
        words["first"],
    )
    caption = words["models"].format(device=_named(rows[0]["device"], words), dtype=rows[0]["dtype"])
    yield (
        f"{caption}\n\n"
        + _table(header, body)
        + _from(
            rows[0]["versions"], {row["commit"] for row in rows}, {row["date"][:10] for row in rows}, words
        )
    )
    kinds = list(dict.fromkeys(kind for row in rows for kind in (row["where_us"] or {})))
    where = [
        (
            _title(r["case"], words),
            r["contender"],
            *(_ms((r["where_us"] or {}).get(k)) for k in kinds),
        )
        for r in rows
        if r["where_us"] and r["contender"] in ("eager", "inductor", "onepass")
    ]
    if where:
        header = ("", "", *(words.get(kind, kind) for kind in kinds))
        yield f"{words['where']}\n\n" + _table(header, where)


def _ratio(other: dict[str, Any] | None, own: dict[str, Any]) -> str:
    return f"{other['median_us'] / own['median_us']:.2f}" if other and other["median_us"] else "–"


def _ms(us: float | None) -> str:
    return "–" if us is None else f"{us / 1e3:.2f}"


def _startup(rows: list[dict[str, Any]], words: Words) -> str:
    body = [(words[row["part"]], _short(row["median_ms"]), _short(row["largest_ms"])) for row in rows]
    return (
        words["startup"].format(device=_named(rows[0]["device"], words))
        + "\n\n"
        + _table(("", words["median"], words["largest"]), body)
        + _from(
            rows[0]["versions"], {row["commit"] for row in rows}, {row["date"][:10] for row in rows}, words
        )
    )


def _short(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}"


def _from(versions: Any, commits: set[str], dates: set[str], words: Words) -> str:
    made = words["comma"].join(f"{name} {version}" for name, version in versions.items() if name != "onepass")
    commits_and_dates = {"commits": ", ".join(sorted(commits)), "dates": ", ".join(sorted(dates))}
    return "\n" + words["made"].format(versions=made, **commits_and_dates) + "\n"


def _table(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
