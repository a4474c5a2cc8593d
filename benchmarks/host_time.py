"""What the host spends on a kernel and on a functional, beside PyTorch's own ops: python3 benchmarks/host_time.py.

Tensors are tiny, so that the host's work is all there is. Two calls of one compiled graph, with one kernel and with 21,
differ by twenty kernels: a twentieth of that is what a kernel costs once the call is entered. On CUDA it is the time until
the work is enqueued: the clock stops before the device has finished, and the device is waited for before it starts again.
All take turns in one run; a ratio is the median of the ratios of each round.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.nn.functional as F

import onepass.functional as OF
from onepass.capture.backend import Backend
from onepass.runtime.timer import Spread, turns
from record import ROOT, Machine, slug, write_lines

ROWS, COLS = 4, 64
MORE = 20  # kernels by which two calls differ
CALLS = 24  # in one sample: 21 kernels each stay below the 1024 launches that a CUDA stream holds
ROUNDS = 200

Call = Callable[[], object]


@dataclass(frozen=True)
class Asked:
    """A quotient of two times, and the most it may be."""

    what: str
    beside: str
    most: float


# 1.2: a kernel's launch replaces at least one op's. 1.5: a functional finds its plan by the arguments, in Python.
KERNELS = tuple(Asked(f"kernel: {name}", "torch.add", 1.2) for name in ("add", "layer_norm", "odd_add"))
FUNCTIONALS = tuple(
    Asked(f"functional: {name}", "F.layer_norm", 1.5)
    for name in ("layer_norm", "rms_norm", "softmax", "swiglu", "bias_gelu", "add_layer_norm")
)


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    device = torch.device(options.device)
    machine = Machine.here(device, options.commit)
    torch.set_num_threads(
        1
    )  # F.layer_norm shares four rows out among threads: the wait for them is not the host's work
    with torch.no_grad():
        us = measured(device, options.rounds)
    out = options.out or ROOT / "benchmarks" / "results" / slug(machine.device) / "host_time.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    write_lines(out, (_row(asked, us, machine) for asked in (*KERNELS, *FUNCTIONALS)))
    return report(us, out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/host_time.py", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each contender")
    parser.add_argument("--out", type=Path, help="a .jsonl file (default: results/DEVICE/host_time.jsonl)")
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    return parser


def measured(device: torch.device, rounds: int) -> dict[str, list[float]]:
    """µs of every contender, and of one kernel of each kind, a sample a round."""
    us = _samples(_calls(device), rounds, device)
    for asked in KERNELS:
        few, many = us.pop(f"1 {asked.what}"), us.pop(f"{1 + MORE} {asked.what}")
        us[asked.what] = [(b - a) / MORE for a, b in zip(few, many, strict=True)]
    return us


def _calls(device: torch.device) -> dict[str, Call]:
    x, y = torch.randn(2, ROWS, COLS, device=device)
    w, b = torch.randn(2, COLS, device=device)
    odd = torch.randn(ROWS, COLS - 1, device=device)
    calls: dict[str, Call] = {
        "torch.add": lambda: torch.add(x, y),
        "F.layer_norm": lambda: F.layer_norm(x, (COLS,), w, b),
        "functional: layer_norm": lambda: OF.layer_norm(x, (COLS,), w, b),
        "functional: rms_norm": lambda: OF.rms_norm(x, (COLS,), w),
        "functional: softmax": lambda: OF.softmax(x),
        "functional: swiglu": lambda: OF.swiglu(x, y),
        "functional: bias_gelu": lambda: OF.bias_gelu(x, b),
        "functional: add_layer_norm": lambda: OF.add_layer_norm(x, y, w, b),
    }
    one: Mapping[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
        "add": (lambda k, x, y: torch.add(x, y, alpha=k), (x, y)),
        "layer_norm": (lambda k, x, w, b: F.layer_norm(x, (COLS,), w, b, eps=k * 1e-5), (x, w, b)),
        "odd_add": (lambda k, x: torch.add(x, k), (odd,)),
    }
    for name, (op, given) in one.items():
        for count in (1, 1 + MORE):
            calls[f"{count} kernel: {name}"] = _compiled(op, given, count)
    return calls


def _compiled(op: Callable[..., torch.Tensor], given: tuple[torch.Tensor, ...], kernels: int) -> Call:
    """A compiled call of so many kernels on the same arguments, entered where AOTAutograd enters it."""

    def function(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(op(k, *arguments) for k in range(1, kernels + 1))

    backend = Backend()
    torch.compile(function, backend=backend, dynamic=False, options={"fuel": 0})(*given)  # nothing is merged
    torch._dynamo.reset()
    (compiled,) = backend.compiled
    found = len(compiled.plan.kernels)
    assert found == kernels and not compiled.plan.calls, f"{found} kernels, {kernels} are meant"
    return lambda: compiled.run(list(given))


def _samples(calls: Mapping[str, Call], rounds: int, device: torch.device) -> dict[str, list[float]]:
    us: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        _sample(call, device)
    for order in turns(list(calls), rounds):
        for name in order:
            us[name].append(_sample(calls[name], device))
    return us


def _sample(call: Call, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    call()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS * 1e6


def ratio(asked: Asked, us: Mapping[str, list[float]]) -> Spread:
    """How many times what it is held against, round by round."""
    return Spread.of([own / other for own, other in zip(us[asked.what], us[asked.beside], strict=True)])


def _row(asked: Asked, us: Mapping[str, list[float]], machine: Machine) -> dict[str, object]:
    own, other, found = Spread.of(us[asked.what]), Spread.of(us[asked.beside]), ratio(asked, us)
    return {
        "what": asked.what,
        "median_us": round(own.median, 3),
        "iqr_us": round(own.iqr, 3),
        "beside": asked.beside,
        "beside_us": round(other.median, 3),
        "ratio": round(found.median, 3),
        "ratio_iqr": round(found.iqr, 3),
        "at_most": asked.most,
        "rounds": len(us[asked.what]),
        "device": machine.device,
        "versions": dict(machine.versions),
        "commit": machine.commit,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def report(us: Mapping[str, list[float]], out: Path) -> int:
    """Print each ratio beside what is asked; 0 when all hold, else 1."""
    late = 0
    for asked in (*KERNELS, *FUNCTIONALS):
        found, own = ratio(asked, us).median, Spread.of(us[asked.what]).median
        late += found > asked.most
        beside = f"{found:.2f} × {asked.beside} ({Spread.of(us[asked.beside]).median:.2f} µs)"
        print(f"{asked.what:28} {own:6.2f} µs  {beside}, asked: at most {asked.most:g}")
    print(f"rows: {out}")
    return bool(late)


if __name__ == "__main__":
    sys.exit(main())
