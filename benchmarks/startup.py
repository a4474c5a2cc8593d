"""What onepass costs before the first result: importing it, compiling one kernel, and taking it from the disk cache.

Each figure comes from fresh processes, on random inputs of one shape. Called by run.py as the suite `startup`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import torch

from record import ROOT, Machine, slug, write_lines

PROCESSES = 7

# The parts: what is asked of each, in milliseconds (None: reported only), and how a fresh process finds it.
PARTS = ("import", "kernel_cold", "kernel_cached", "first_call_cold", "first_call_cached")
ASKED_MS = {"import": 50.0, "kernel_cold": 1000.0, "kernel_cached": 20.0}

IMPORT = """
import time, torch
start = time.perf_counter()
import onepass
print('{"import": %f}' % (1e3 * (time.perf_counter() - start)))
"""


def main(options: argparse.Namespace) -> int:
    device = torch.device(options.device or "cpu")
    machine = Machine.here(device, options.commit)
    samples: dict[str, list[float]] = {part: [] for part in PARTS}
    for _ in range(options.rounds or PROCESSES):
        with tempfile.TemporaryDirectory(prefix="onepass-startup-") as cache:
            for state in ("cold", "cached"):
                samples["import"].append(_fresh_process(cache, "-c", IMPORT)["import"])
                found = _fresh_process(cache, __file__, str(device))
                samples[f"kernel_{state}"].append(found["kernel"])
                samples[f"first_call_{state}"].append(found["first_call"])
    out = options.out or ROOT / "benchmarks" / "results" / slug(machine.device) / "startup.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    write_lines(out, (_row(part, samples[part], machine) for part in PARTS))
    return _report(samples, out)


def _row(part: str, ms: list[float], machine: Machine) -> dict[str, object]:
    return {
        "part": part,
        "median_ms": round(statistics.median(ms), 3),
        "largest_ms": round(max(ms), 3),
        "processes": len(ms),
        "device": machine.device,
        "versions": dict(machine.versions),
        "commit": machine.commit,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _report(samples: dict[str, list[float]], out: Path) -> int:
    late: list[str] = []
    for part, ms in samples.items():
        asked, median = ASKED_MS.get(part), statistics.median(ms)
        note = f"asked: at most {asked:g}" if asked else ""
        print(f"{part:18} {median:8.1f} ms   {note}")
        if asked and median > asked:
            late.append(part)
    print(f"rows: {out}")
    return bool(late)


def _fresh_process(cache: str, *arguments: str) -> dict[str, float]:
    environment = {**os.environ, "ONEPASS_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measure(device: str) -> Iterable[tuple[str, float]]:
    """In a fresh process: milliseconds of each part."""
    from onepass.capture.backend import Backend

    def block(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        gelu = torch.nn.functional.gelu(x, approximate="tanh")
        return torch.nn.functional.layer_norm(gelu + y, (x.shape[-1],))

    x, y = torch.randn(2, 512, 1024, device=device)
    backend = Backend()
    start = time.perf_counter()
    with torch.no_grad():
        torch.compile(block, backend=backend)(x, y)
    yield "first_call", 1e3 * (time.perf_counter() - start)
    (compiled,) = backend.compiled
    assert len(compiled.plan.kernels) == 1
    yield "kernel", 1e-3 * compiled.plan.stage_us["compile"]


if __name__ == "__main__":
    print(json.dumps(dict(_measure(sys.argv[1]))))
