"""Compare two files of rows: python3 benchmarks/compare.py OLD NEW. Says of each measurement SAME, FASTER, SLOWER or
AMBIGUOUS, and why. Exit code 1 when one that is asked about (default: onepass) is SLOWER."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from onepass.insight.compare import compare


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
