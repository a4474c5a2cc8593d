"""The time model beside a suite's committed rows: python3 benchmarks/predicted_rows.py FILE.jsonl … No GPU.

Each of onepass's rows is planned for its device, as an absent one, and predicted from the rates in `calibration.json`
beside the file. Exit code 0 where the median error is within what is asked.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from cases import TORCH_DTYPES, Case, cases
from onepass.build import Built
from onepass.capture.absent import generate
from onepass.plan.cost import traffic
from onepass.plan.predict import Rates, predicted_us
from onepass.runtime.calibration import Calibration

ASKED = 0.15  # of the median error
PLANNED_ROWS = 64  # their number is open: a plan serves any


@dataclass(frozen=True)
class Predicted:
    """One row of a suite. Units: µs."""

    row: Mapping[str, Any]
    families: str
    predicted_us: float

    @property
    def error(self) -> float:
        """Relative to the measured time, with its sign."""
        return self.predicted_us / self.row["median_us"] - 1

    def __str__(self) -> str:
        r = self.row
        point = f"{r['case']} {r['dtype']} {r['rows']} × {r['cols']}"
        times = f"predicted {self.predicted_us:9.2f} µs, measured {r['median_us']:9.2f} µs"
        return f"{point:48} {self.families:14} {times}, {self.error:+.0%}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    found = [p for file in options.files for p in predictions(file)]
    for p in found:
        print(p)
    errors = sorted(abs(p.error) for p in found)
    median = statistics.median(errors)
    worst = statistics.quantiles(errors, n=10)[-1]
    print(f"{len(found)} points: median error {median:.1%} (asked {ASKED:.0%}), 90th percentile {worst:.1%}")
    return 0 if median <= ASKED else 1


def predictions(file: Path) -> Iterable[Predicted]:
    constants = Calibration.from_dict(json.loads(file.with_name("calibration.json").read_text()))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        if row["contender"] == "onepass":
            yield predicted(row, constants)


def predicted(row: Mapping[str, Any], constants: Calibration) -> Predicted:
    kernels = planned(row["device"], row["case"], row["dtype"], row["cols"])
    us = sum(_us(k, row["rows"] // cases()[row["case"]].together, constants.rates(k.device)) for k in kernels)
    return Predicted(row, "+".join(k.schedule.family for k in kernels), us)


def _us(built: Built, rows: int, rates: Rates) -> float:
    sizes = dict.fromkeys(_sizes(built), rows)
    work = traffic(built.cluster, sizes)
    return predicted_us(built.kernel, built.schedule, work, built.device, rates, sizes, built.resources)


def _sizes(built: Built) -> set[str]:
    """The names of a kernel's open sizes: the number of rows."""
    return {name for size in built.kernel.outer if not isinstance(size, int) for name in size.names}


@cache
def planned(device: str, case: str, dtype: str, cols: int) -> tuple[Built, ...]:
    found = cases()[case]
    inputs = _inputs(found, TORCH_DTYPES[dtype], cols)
    return tuple(generate(device, found.function, inputs).kernels)


def _inputs(case: Case, dtype: torch.dtype, cols: int) -> list[torch.Tensor]:
    full = [torch.zeros(PLANNED_ROWS * case.together, cols, dtype=dtype) for _ in range(case.reads)]
    for tensor in full:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return [*full, *(torch.zeros(cols, dtype=dtype) for _ in range(case.vectors))]


if __name__ == "__main__":
    raise SystemExit(main())
