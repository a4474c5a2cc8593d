"""Measure a suite on this machine: python3 benchmarks/run.py --suite cpu-forward. See README.md beside this file."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from cases import Point, Suite, suites
from measure import ROOF, Measured, forget, measure, warm
from onepass.runtime.timer import keep_allocator_warm
from record import ROOT, Machine, merge, rows_of, slug, write_lines
from rules import mean_verdicts, verdicts, voids

# Some minutes: a suite must end on machines that are had for ten at a time.
BUDGET_S = 450.0
# What is not compiled ahead by then is compiled when its point is measured.
WARM_S = 180.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.suite == "models":
        from models import main as models

        return models(options)
    if options.suite == "startup":
        from startup import main as startup

        return startup(options)
    suite = _chosen(suites()[options.suite], options)
    device = torch.device(options.device or suite.device)
    _prepare(device)
    if options.warm:
        part, parts = map(int, options.warm.split("/"))
        for point in suite.points[part::parts]:
            warm(point, suite.contenders, device)
        return 0
    start = time.monotonic()
    workers = options.workers if options.workers is not None else _workers(device)
    if workers:
        _warm_all(options.suite, workers, sys.argv[1:] if arguments is None else list(arguments))
        print(f"compiled ahead by {workers} processes in {time.monotonic() - start:.0f} s", flush=True)
    run = Run(suite, Machine.here(device, options.commit), device, options.out, start + options.budget)
    run.all()
    return run.report()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description=__doc__)
    parser.add_argument("--suite", default=_default_suite(), choices=[*suites(), "models", "startup"])
    parser.add_argument(
        "--out", type=Path, help="a .jsonl file (default: benchmarks/results/DEVICE/SUITE.jsonl)"
    )
    parser.add_argument("--device", help="cpu or cuda, in place of the suite's")
    parser.add_argument("--cases", help="only these, separated by commas (of models: their names)")
    parser.add_argument("--dtypes", help="only these")
    parser.add_argument("--cols", help="only these")
    parser.add_argument("--contenders", help="only these")
    parser.add_argument("--rounds", type=int, help="samples of each contender")
    parser.add_argument("--rows", type=int, help="this many rows, in place of the suite's")
    parser.add_argument(
        "--budget", type=float, default=BUDGET_S, help="start no point after this many seconds"
    )
    parser.add_argument(
        "--workers", type=int, help="processes that compile ahead (a GPU: up to 12, a CPU: none)"
    )
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    # For processes that this one starts: a share of the points to compile, one measurement of a model.
    for hidden in ("--warm", "--one", "--lock"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser


def _default_suite() -> str:
    return "h200-forward" if torch.cuda.is_available() else "cpu-forward"


def _chosen(suite: Suite, options: argparse.Namespace) -> Suite:
    def wanted(point: Point) -> bool:
        return (
            (not options.cases or point.case.name in options.cases.split(","))
            and (not options.dtypes or point.dtype in options.dtypes.split(","))
            and (not options.cols or str(point.cols) in options.cols.split(","))
        )

    points = [replace(p, rows=options.rows) if options.rows else p for p in suite.points if wanted(p)]
    contenders = tuple(options.contenders.split(",")) if options.contenders else suite.contenders
    return replace(suite, points=tuple(points), contenders=contenders, rounds=options.rounds or suite.rounds)


def _prepare(device: torch.device) -> None:
    import torch._inductor.config

    # Tuned by each process itself: what processes that compile ahead side by side measure is of no use.
    torch._inductor.config.autotune_local_cache = False
    if device.type == "cpu" and not keep_allocator_warm():
        print("the allocator can't be kept warm here: figures hold page faults", flush=True)


def _workers(device: torch.device) -> int:
    return min(12, (os.cpu_count() or 1) - 2) if device.type == "cuda" else 0


def _warm_all(suite: str, workers: int, arguments: list[str]) -> None:
    script = [sys.executable, str(Path(__file__).resolve()), *arguments, "--suite", suite]
    # One compiler thread each: the processes are the parallelism.
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    running = [
        subprocess.Popen([*script, "--warm", f"{k}/{workers}"], env=environment, stdout=subprocess.DEVNULL)
        for k in range(workers)
    ]
    for process in running:
        try:
            process.wait(WARM_S)
        except subprocess.TimeoutExpired:
            process.kill()


class Run:
    """A suite on a device: rows are written as they come; a point that does not count is tried once more."""

    def __init__(
        self, suite: Suite, machine: Machine, device: torch.device, out: Path | None, deadline: float
    ) -> None:
        self.suite, self.machine, self.device, self.deadline = suite, machine, device, deadline
        default = ROOT / "benchmarks" / "results" / slug(machine.device) / f"{suite.name}.jsonl"
        self.out = out or default
        self.good: dict[Point, Measured] = {}  # what counts
        self.void: dict[Point, dict[str, str]] = {}
        self.samples: dict[Point, dict[str, object]] = {}

    def all(self) -> None:
        print(f"{self.suite.name} on {self.machine.device}, {len(self.suite.points)} points", flush=True)
        self.several(self.suite.points)
        again = [p for p in self.suite.points if self.void.get(p)]
        if again:
            print(f"once more, {len(again)} that do not count", flush=True)
            _drop_tuned_kernels()
            self.several(again)

    def several(self, points: Sequence[Point]) -> None:
        for number, point in enumerate(points, 1):
            start = time.monotonic()
            if start > self.deadline:
                return
            try:
                self.one(point)
                said = "; ".join(f"{name} void: {why}" for name, why in self.void[point].items())
            except Exception as e:  # noqa: BLE001  (one point's failure must not lose the others' figures)
                said = f"{type(e).__name__}: {e}"
                self.void[point] = {"all": said}
            print(f"{number}/{len(points)} {point} {time.monotonic() - start:.1f} s {said[:90]}", flush=True)
            forget()

    def one(self, point: Point) -> None:
        found = measure(point, self.suite.protocol, self.suite.rounds, self.suite.contenders, self.device)
        self.void[point] = void = voids(found, self.machine.device)
        self.good[point] = found.without(void)
        self.samples[point] = {
            "point": str(point),
            "protocol": found.protocol,
            "sets": found.sets,
            "roof_kernel": found.roof_kernel,
            "us": found.us,
            "absent": found.absent,
            "faults": found.faults,
            "void": void,
        }
        merge(self.out, rows_of(self.good[point], self.machine) if ROOF in self.good[point].us else [])
        write_lines(self.out.with_suffix(".samples.jsonl"), self.samples.values())

    def report(self) -> int:
        """Print what was found and what was asked; 0 when all was measured, counts and holds, else 1."""
        missing = [p for p in self.suite.points if p not in self.void]
        good = list(self.good.values())
        found = [*verdicts(good), *mean_verdicts("all points", good, self.suite.mean_of)]
        failed = [v for v in found if not v.holds]
        print("\nGB/s of ideal bytes, share of the roof; onepass against the fastest other")
        for m in self.good.values():
            print(_line(m))
        for reason, points in self.reasons().items():
            print(f"{reason} [{points[0]}{f' and {len(points) - 1} more' if len(points) > 1 else ''}]")
        for point in missing:
            print(f"not measured, out of time: {point}")
        print(f"{self.suite.acceptance}: {len(found) - len(failed)} of {len(found)} hold")
        for verdict in failed:
            print(f"  {verdict}")
        print(f"rows: {self.out}")
        return 1 if failed or missing or any(self.void.values()) else 0

    def reasons(self) -> dict[str, list[Point]]:
        """Why a figure is missing or does not count → where."""
        found: dict[str, list[Point]] = {}
        for point in self.void:
            m = self.good.get(point)
            kinds = {"void": self.void[point]}
            if m:
                kinds |= {"absent": dict(m.absent), "wrong": dict(m.faults)}
            for kind, entries in kinds.items():
                for name, why in entries.items():
                    found.setdefault(f"{kind}: {name}: {why}", []).append(point)
        return found


def _drop_tuned_kernels() -> None:
    """So that Inductor tunes again: a disturbed first tuning must not hold for the second try."""
    from torch._inductor.codecache import PyCodeCache

    PyCodeCache.cache_clear()


def _line(m: Measured) -> str:
    """One point in a hundred columns."""
    start = f"{m.point.case.name:24} {m.point.dtype} {m.point.rows:>7} × {m.point.cols:<5}"
    if ROOF not in m.us:
        return f"{start} does not count"
    line = f"{start} roof {m.roof_gbps:7.1f}"
    if "onepass" not in m.us:
        return f"{line}  no onepass"
    line += f"  onepass {m.gbps('onepass'):7.1f} {m.gbps('onepass') / m.roof_gbps:.3f}"
    if m.others:
        best = min(m.others, key=lambda name: m.spread(name).median)
        line += f"  {m.ratio('onepass', best):5.2f} × {best}"
    if m.protocol != "cold":
        line += f"  {m.spread('onepass').median:.2f} µs {m.protocol}"
    return line


if __name__ == "__main__":
    sys.exit(main())
