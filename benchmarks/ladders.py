"""Measure the ladders on the present GPU at the tutorial's shapes; its tables are made of these files.

PYTHONPATH=src python3 benchmarks/ladders.py && python3 tools/ladder_tables.py
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch

from onepass.ladder.rungs import known
from record import ROOT, Machine, slug

ROWS, COLS = 65536, "256,1024,4096"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="the commit, where there is no repository")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    machine = Machine.here(torch.device("cuda", torch.cuda.current_device()), options.commit)
    out = options.out or ROOT / "benchmarks" / "results" / slug(machine.device)
    out.mkdir(parents=True, exist_ok=True)
    words = ["ladder", "all", "--rows", str(ROWS), "--cols", COLS, "--out", str(out)]
    done = subprocess.run([sys.executable, "-m", "onepass", *words], check=False)
    if done.returncode not in (0, 1):  # 1: a rung is not as its list states, which is a result
        return done.returncode
    for name in known():
        path = out / f"ladder-{name}.json"
        found = json.loads(path.read_text())
        found["run"] |= {"commit": machine.commit, "versions": machine.versions}
        path.write_text(json.dumps(found, indent=1) + "\n")
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
