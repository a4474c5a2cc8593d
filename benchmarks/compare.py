"""Compare two files of rows: python3 benchmarks/compare.py OLD NEW. Says of each measurement SAME, FASTER, SLOWER or
AMBIGUOUS, and why. Exit code 1 when one that is asked about (default: onepass) is SLOWER."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Two runs of one kernel on an undisturbed machine differ by less than this (H200, 512 MiB tensors: 1 %).
SAME_WITHIN = 0.02
# A run with a wider spread says nothing about a few per cent.
TOO_WIDE = 0.10

_KEY = ("case", "direction", "dtype", "rows", "cols", "contender", "protocol", "device")
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Judgement:
    """What became of one measurement. ``speedup`` is old time ÷ new time, the roof's drift taken out."""

    key: tuple[Any, ...]
    verdict: str
    speedup: float
    reason: str


def judge(old: Entry, new: Entry) -> Judgement:
    """Compare two rows of the same measurement."""
    by_time = old["median_us"] / new["median_us"]
    drift = _drift(old, new)
    speedup = by_time / drift
    noise = math.hypot(_relative_spread(old), _relative_spread(new)) / 2
    verdict, reason = _verdict(speedup, by_time, drift, noise)
    return Judgement(key_of(new), verdict, speedup, reason)


def _verdict(speedup: float, by_time: float, drift: float, noise: float) -> tuple[str, str]:
    change = speedup - 1
    if noise > TOO_WIDE:
        return "AMBIGUOUS", f"samples spread by ± {noise:.1%}"
    if abs(drift - 1) > SAME_WITHIN and (by_time - 1) * change < 0:
        return "AMBIGUOUS", f"the time changed by {by_time - 1:+.1%}, the roof by {drift - 1:+.1%}"
    if abs(change) <= SAME_WITHIN:
        return "SAME", f"{change:+.1%}, within {SAME_WITHIN:.0%}"
    if abs(change) <= noise:
        return "AMBIGUOUS", f"{change:+.1%}, samples spread by ± {noise:.1%}"
    return ("FASTER" if change > 0 else "SLOWER"), f"{change:+.1%}, samples spread by ± {noise:.1%}"


def _drift(old: Entry, new: Entry) -> float:
    """How much faster memory was in the new run; 1 where the roof does not bind, and for the roof itself."""
    if old.get("protocol") == "graph-warm" or new["contender"] == "roof":
        return 1.0
    before, after = old.get("roof_gbps"), new.get("roof_gbps")
    return after / before if before and after else 1.0


def _relative_spread(entry: Entry) -> float:
    return float(entry["iqr_us"]) / float(entry["median_us"])


def compare(old: Sequence[Entry], new: Sequence[Entry]) -> list[Judgement]:
    """Judge every measurement that both files have, in the new one's order."""
    before = {key_of(entry): entry for entry in old if entry["median_us"]}
    return [
        judge(before[key_of(entry)], entry) for entry in new if entry["median_us"] and key_of(entry) in before
    ]


def key_of(entry: Entry) -> tuple[Any, ...]:
    return tuple(entry.get(k) for k in _KEY)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/compare.py", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "--contender", default="onepass", help="whose slower rows set the exit code, or 'any'"
    )
    options = parser.parse_args(arguments)
    try:
        old, new = (
            [json.loads(line) for line in p.read_text().splitlines()] for p in (options.old, options.new)
        )
    except (OSError, ValueError) as e:
        print(f"can't be read: {e}", file=sys.stderr)
        return 2
    found = compare(old, new)
    if not found:
        print(
            "the two files have no measurement in common (same case, shape, contender, protocol and device)",
            file=sys.stderr,
        )
        return 2
    counts = {v: sum(j.verdict == v for j in found) for v in ("SLOWER", "FASTER", "AMBIGUOUS", "SAME")}
    alone = len(new) - len(found), len(old) - len(found)
    print(
        ", ".join(f"{n} {v}" for v, n in counts.items() if n), f"(only new: {alone[0]}, only old: {alone[1]})"
    )
    for j in sorted(found, key=lambda j: (list(counts).index(j.verdict), j.speedup)):
        case, direction, dtype, rows, cols, contender, protocol, _ = j.key
        print(
            f"{j.verdict:9} {contender:9} {case} {direction} {dtype} {rows} × {cols} {protocol}: {j.reason}"
        )
    slower = [j for j in found if j.verdict == "SLOWER" and options.contender in ("any", j.key[5])]
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
