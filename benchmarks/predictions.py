"""The time model against the clock: every point of a list in cases.toml is predicted, then measured.

Predicted from what `onepass calibrate` measured on this machine, now or before; nothing is fitted to a point. Small work
and large alike run in a CUDA graph, all sets of inputs one after the other, so that the host has no share. Exit code 0
where the errors are within what the list asks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cases import TORCH_DTYPES, cases
from onepass.build import Built
from onepass.capture.backend import Backend
from onepass.insight.calibrate import calibrate
from onepass.runtime.calibration import Calibration, keep, kept, present
from onepass.runtime.timer import MOST_IN_GRAPH, Spread, captured, in_graphs, sets_needed
from record import ROOT, Machine, slug, write_lines

ROUNDS = 11
HEADS, INNER = 16, 64  # of ops on tensors with more than two dimensions
# The output against eager's: 16-bit results are rounded once or more often.
CLOSE = {"fp32": 1e-4, "bf16": 6e-2, "fp16": 1e-2}


def _norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    heads = x.unflatten(-1, (-1, INNER))
    one, other = heads.chunk(2, -1)
    c, s = cos[:INNER], sin[:INNER]
    return (heads * c + torch.cat((-other, one), -1) * s).flatten(-2)


def _causal(x: Tensor) -> Tensor:
    rows, cols = (torch.arange(n, device=x.device) for n in x.shape)
    return torch.where(rows[:, None] >= cols, x, torch.finfo(x.dtype).min)


@dataclass(frozen=True)
class Op:
    """``full`` tensors of rows × cols and ``vectors`` of cols, which the function takes in this order."""

    function: Callable[..., Any]
    full: int = 1
    vectors: int = 0


OPS: Mapping[str, Op] = {
    **{name: Op(case.function, case.reads, case.vectors) for name, case in cases().items()},
    "relu": Op(torch.relu),
    "add": Op(torch.add, 2),
    "row_sum": Op(lambda x: x.sum(-1)),
    "heads_add": Op(
        lambda x, y: x.unflatten(-1, (HEADS, -1)).transpose(0, 1) + y.view(HEADS, x.shape[0], -1), 2
    ),
    "column_mean": Op(lambda x: x.unflatten(0, (-1, INNER)).mean(1)),
    "column_norm": Op(lambda x: torch.softmax(x.unflatten(0, (-1, INNER)), 1)),
    # Held out
    "log_softmax": Op(lambda x: F.log_softmax(x, -1)),
    "silu": Op(F.silu),
    "geglu": Op(lambda gate, up: F.gelu(gate) * up, 2),
    "bias_add_layer_norm": Op(lambda x, y, b, w, c: _norm(x + b + y, w, c), 2, 3),
    "cast": Op(lambda x: x.to(torch.float32 if x.dtype is not torch.float32 else torch.bfloat16)),
    "masked_softmax": Op(lambda x, mask: torch.softmax(x * 0.125 + mask, -1), 2),
    "clamped_scale": Op(lambda x, w: (x * w).clamp(-1, 1), 1, 1),
    "normalize": Op(lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)),
    "variance": Op(lambda x: x.var(-1)),
    "rotary": Op(_rotary, 1, 2),
    "column_var": Op(lambda x: x.unflatten(0, (-1, INNER)).var(1)),
    "concatenated": Op(lambda x, y: torch.relu(torch.cat((x, y), -1)), 2),
    "heads_scale": Op(lambda x: (x.unflatten(-1, (HEADS, -1)).transpose(0, 1) * 0.125).contiguous()),
    "causal": Op(_causal),
    "widened_rms_norm": Op(
        lambda x, w: (x.float() * torch.rsqrt(x.float().square().mean(-1, True) + 1e-6)).to(x.dtype) * w, 1, 1
    ),
    "transcendental": Op(lambda x: torch.sin(torch.exp(-x * x)) + torch.tanh(x) * torch.log1p(x.abs())),
}


@dataclass(frozen=True)
class Point:
    op: str
    dtype: str
    rows: int
    cols: int

    def __str__(self) -> str:
        return f"{self.op} {self.dtype} {self.rows} × {self.cols}"


@dataclass(frozen=True)
class Found:
    """A point predicted and measured. Units: µs; ``fault`` is empty, or why it does not count."""

    point: Point
    kernels: tuple[Built, ...]
    us: Spread
    sets: int
    fault: str

    @property
    def predicted_us(self) -> float:
        return sum(k.predicted_us for k in self.kernels)

    @property
    def error(self) -> float:
        """Relative to the measured time, with its sign."""
        return self.predicted_us / self.us.median - 1


def main(arguments: Sequence[str] | None = None) -> int:
    lists = tomllib.loads((Path(__file__).parent / "cases.toml").read_text())["predictions"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", choices=[*sorted(lists), "all"], default="held-out")
    parser.add_argument("--commit", help="the commit, where there is no repository")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    names = sorted(lists) if options.list == "all" else [options.list]
    device = torch.device("cuda", torch.cuda.current_device())
    constants = kept(present(device)) or _calibrated(device)
    machine = Machine.here(device, options.commit)
    out = options.out or ROOT / "benchmarks" / "results" / slug(machine.device) / "predictions.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_name("calibration.json").write_text(json.dumps(constants.to_dict(), indent=1) + "\n")
    rows: list[dict[str, Any]] = []
    worst = 0
    for name in names:
        found = []
        for point in points(lists[name]["points"]):
            found.append(measured(point, device))
            print(_line(found[-1]), flush=True)
        rows += [_row(name, f, constants, machine) for f in found if not f.fault]
        write_lines(out, rows)
        worst = max(worst, _judge(found, lists[name], out))
    return worst


def points(entries: Sequence[Mapping[str, Any]]) -> Iterator[Point]:
    for entry in entries:
        for op in entry["ops"]:
            for rows, cols in entry["shapes"]:
                for dtype in entry["dtypes"]:
                    yield Point(op, dtype, rows, cols)


def measured(point: Point, device: torch.device) -> Found:
    op, dtype = OPS[point.op], TORCH_DTYPES[point.dtype]
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype, generator=generator)

    set_bytes = op.full * point.rows * point.cols * dtype.itemsize
    sets = min(max(4, sets_needed(set_bytes, device)), MOST_IN_GRAPH)
    vectors = [random(point.cols) for _ in range(op.vectors)]
    inputs = [[*(random(point.rows, point.cols) for _ in range(op.full)), *vectors] for _ in range(sets)]
    backend = Backend(whole=point.op, keep=True)
    compiled = torch.compile(_fresh(op.function), backend=backend, dynamic=False)
    with torch.no_grad():
        graph = captured(lambda i: compiled(*inputs[i]), sets)
        samples = in_graphs({point.op: graph}, ROUNDS, device)[point.op]
        fault = _fault(graph.results[0], op.function(*inputs[0]), CLOSE[point.dtype])
    kernels = tuple(k for program in backend.compiled for k in program.plan.kernels)
    torch._dynamo.reset()
    return Found(point, kernels, Spread.of(samples), sets, fault)


def _fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *tensors: function(*tensors)


def _fault(result: Any, expected: Any, close: float) -> str:
    ours, theirs = (x if isinstance(x, tuple) else (x,) for x in (result, expected))
    for one, other in zip(ours, theirs, strict=True):
        if not torch.allclose(one.float(), other.float(), rtol=close, atol=close):
            return "not eager's result"
    return ""


def _calibrated(device: torch.device) -> Calibration:
    found = calibrate(device, progress=lambda step: print(step, flush=True))
    keep(found)
    return found


def _line(found: Found) -> str:
    families = "+".join(k.schedule.family for k in found.kernels)
    times = f"predicted {found.predicted_us:9.2f} µs, measured {found.us.median:9.2f} µs"
    return f"{found.point!s:44} {families:14} {times}, {found.error:+.0%} {found.fault}"


def _row(name: str, found: Found, constants: Calibration, machine: Machine) -> dict[str, Any]:
    return {
        "list": name,
        "op": found.point.op,
        "dtype": found.point.dtype,
        "rows": found.point.rows,
        "cols": found.point.cols,
        "schedules": [k.schedule.family for k in found.kernels],
        "bytes": sum(k.traffic.bytes for k in found.kernels),
        "predicted_us": round(found.predicted_us, 3),
        "median_us": round(found.us.median, 3),
        "iqr_us": round(found.us.iqr, 3),
        "error": round(found.error, 4),
        "sets": found.sets,
        "constants": constants.source,
        "device": machine.device,
        "versions": machine.versions,
        "commit": machine.commit,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _judge(found: Sequence[Found], asked: Mapping[str, Any], out: Path) -> int:
    good = [f for f in found if not f.fault]
    errors = sorted(abs(f.error) for f in good)
    median, last = statistics.median(errors), statistics.quantiles(errors, n=10)[-1]
    wanted = asked.get("median", 1.0), asked.get("p90", 1.0)
    print(
        f"{len(good)} of {len(found)} points: median error {median:.1%} (asked {wanted[0]:.0%}), 90th percentile "
        f"{last:.1%} (asked {wanted[1]:.0%}); rows: {out}"
    )
    return 0 if len(good) == len(found) and median <= wanted[0] and last <= wanted[1] else 1


if __name__ == "__main__":
    raise SystemExit(main())
