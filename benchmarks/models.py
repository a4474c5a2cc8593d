"""Whole models, bf16 inference: eager, aot_eager, Inductor and onepass in one run, and where the time goes.

Called by run.py --suite models. Each model is measured in a process of its own; the time to the first result in
further ones, one for each compiler, with empty caches. Past the budget what still runs is stopped.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from onepass.runtime.timer import Spread, interleaved, keep_allocator_warm
from record import ROOT, Machine, slug, write_lines

ROUNDS = 9
# Steps of a sample, one after the other without waiting between them.
STEPS = 5
COMPILED = ("aot_eager", "inductor", "onepass")
CONTENDERS = ("eager", *COMPILED)
# What is measured of a model, each in a process of its own.
_KINDS_OF_RUN = (("all", ""), *(("first", name) for name in COMPILED))
# Files by which a process says that it could start, and is told to.
READY, GO = "ready", "go"


@dataclass(frozen=True)
class Model:
    """A model of the reference figures; `small` is the same at a size for a CPU, to see that all runs."""

    name: str
    batch: int
    length: int
    build: Callable[[bool], torch.nn.Module]
    over_eager: float = 1.0  # asked of onepass: times eager's speed

    def size(self, small: bool) -> tuple[int, int]:
        return (2, 64) if small else (self.batch, self.length)


def _bert(small: bool) -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(
        BertConfig(num_hidden_layers=2, hidden_size=256, num_attention_heads=4, intermediate_size=512)
        if small
        else BertConfig()
    )


def _gpt2(small: bool) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    # A multiple of 64: with GPT-2's own 50257 the head's matmul, which no one here changes, takes most of the time.
    size = {"n_layer": 2, "n_embd": 256, "n_head": 4} if small else {}
    return GPT2LMHeadModel(GPT2Config(vocab_size=512 if small else 50304, **size))


def _llama(small: bool) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    small_size = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    }
    full_size = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    }
    return LlamaForCausalLM(LlamaConfig(**(small_size if small else full_size)))


MODELS = {
    m.name: m
    for m in (
        Model("bert_base", 32, 512, _bert, over_eager=1.15),
        Model("gpt2", 16, 1024, _gpt2),
        Model("llama_8x2048", 4, 2048, _llama),
    )
}


def main(options: argparse.Namespace) -> int:
    """Measure the models and print what was found; 0 when what was asked of onepass holds."""
    if options.one:
        kind, name, contender = options.one.split(":")
        device = torch.device(options.device or "cuda")
        subject = _Subject(MODELS[name], device)
        with _turn(Path(options.lock), options.out.parent / READY):
            found = subject.first(contender) if kind == "first" else subject.all(options.rounds or ROUNDS)
        options.out.write_text(json.dumps(found))
        return 0
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    machine = Machine.here(device, options.commit)
    out = options.out or ROOT / "benchmarks" / "results" / slug(machine.device) / "models.jsonl"
    chosen = [m for m in MODELS.values() if not options.cases or m.name in options.cases.split(",")]
    holds = True
    with _Processes(chosen, device, options.rounds, time.monotonic() + options.budget) as processes:
        processes.let_go()
        for model in chosen:
            rows = _model_rows(model, processes, device, machine)
            _merge(out, rows)
            holds = _print_model(model, rows) and holds
    print(f"rows: {out}")
    return 0 if holds else 1


def _merge(out: Path, new: Sequence[Mapping[str, Any]]) -> None:
    """Write rows in place of older ones of the same model and contender; one without a figure takes no one's place."""
    lines = out.read_text().splitlines() if out.exists() else []
    rows = {(row["case"], row["contender"]): row for row in map(json.loads, lines)}
    rows.update({(row["case"], row["contender"]): row for row in new if row["median_us"] is not None})
    out.parent.mkdir(parents=True, exist_ok=True)
    write_lines(out, rows.values())


def _model_rows(
    model: Model, processes: _Processes, device: torch.device, machine: Machine
) -> list[dict[str, Any]]:
    whole = processes.result(f"all:{model.name}:")
    firsts = {name: processes.result(f"first:{model.name}:{name}") for name in COMPILED}
    batch, length = model.size(device.type == "cpu")
    rows = []
    for name in CONTENDERS:
        found = whole.get(name, {"fault": whole.get("fault", "no result")})
        first = firsts.get(name, {})
        spread = Spread.of(found["us"]) if "us" in found else None
        rows.append(
            {
                "case": model.name,
                "direction": "forward",
                "dtype": "bf16",
                "rows": batch,
                "cols": length,
                "contender": name,
                "median_us": round(spread.median, 1) if spread else None,
                "iqr_us": round(spread.iqr, 1) if spread else None,
                "alone_us": found.get("alone_us"),
                "first_s": first.get("first_s"),
                "peak_bytes": found.get("peak_bytes"),
                "error": found.get("error"),
                "where_us": found.get("where_us"),
                "launches": found.get("launches"),
                "fault": found.get("fault") or first.get("fault"),
                "protocol": f"{STEPS} steps in turn, host's share included; alone: one step",
                "device": machine.device,
                "versions": machine.versions,
                "commit": machine.commit,
                "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        )
    return rows


class _Processes:
    """Every measurement in a fresh process with empty caches: the steps of all contenders, and each first result.

    They start together, so that imports and weights take their time once, and are timed one at a time, none before
    all are ready: what is timed includes the host's share.
    """

    def __init__(
        self, models: Sequence[Model], device: torch.device, rounds: int | None, deadline: float
    ) -> None:
        self.deadline = deadline
        self.root = Path(tempfile.mkdtemp(prefix="onepass-bench-"))
        ones = [f"{kind}:{m.name}:{c}" for m in models for kind, c in _KINDS_OF_RUN]
        self.folders = {one: self.root / str(k) for k, one in enumerate(ones)}
        self.running = {one: self.start(one, device, rounds) for one in ones}

    def __enter__(self) -> _Processes:
        return self

    def let_go(self) -> None:
        """Waits until all are ready, or have ended, and lets the first begin."""
        while not all(
            (self.folders[one] / READY).exists() or process.poll() is not None
            for one, process in self.running.items()
        ):
            if time.monotonic() > self.deadline:
                break
            time.sleep(0.1)
        (self.root / GO).touch()

    def __exit__(self, *error: object) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()
        shutil.rmtree(self.root)

    def start(self, one: str, device: torch.device, rounds: int | None) -> subprocess.Popen[str]:
        folder = self.folders[one]
        folder.mkdir()
        caches = ("ONEPASS_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        command = [sys.executable, str(Path(__file__).parent / "run.py"), "--suite", "models", "--one", one]
        command += ["--out", str(folder / "out.json"), "--lock", str(self.root), "--device", str(device)]
        if rounds:
            command += ["--rounds", str(rounds)]
        environment = {**os.environ, **{cache: str(folder / cache) for cache in caches}}
        with (folder / "errors").open("w") as errors:
            return subprocess.Popen(command, env=environment, stdout=errors, stderr=errors, text=True)

    def result(self, one: str) -> dict[str, Any]:
        """What was found, or the fault."""
        process, folder = self.running[one], self.folders[one]
        try:
            process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return {"fault": "out of time"}
        out = folder / "out.json"
        if out.exists():
            return json.loads(out.read_text())  # type: ignore[no-any-return]
        lines = (folder / "errors").read_text().strip().splitlines()
        return {"fault": (lines or ["no message"])[-1]}


@contextmanager
def _turn(root: Path, ready: Path) -> Iterator[None]:
    """Waits until every process is ready, then for its own turn; ends with the process that would let it go."""
    parent = os.getppid()
    ready.touch()
    while not (root / GO).exists():
        if os.getppid() != parent:
            sys.exit("left alone")
        time.sleep(0.01)
    with (root / "lock").open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


class _Subject:
    """One model in this process."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self.device = device
        small = device.type == "cpu"
        if small:
            keep_allocator_warm()
        torch.manual_seed(0)
        self.model = model.build(small).to(device=device, dtype=torch.bfloat16).eval()
        vocabulary = self.model.config.vocab_size
        self.ids = torch.randint(0, vocabulary, model.size(small), device=device)

    def run(self, model: torch.nn.Module) -> torch.Tensor:
        """The last hidden state or the logits. A key-value cache is built as the model's default has it."""
        with torch.no_grad():
            return model(input_ids=self.ids)[0]

    def compiled(self, name: str) -> tuple[torch.nn.Module, Any]:
        """The model under one contender, and onepass's back end, which knows its kernels."""
        if name == "eager":
            return self.model, None
        if name == "onepass":
            from onepass.capture.backend import Backend

            backend = Backend()
            return torch.compile(self.model, backend=backend), backend
        return torch.compile(self.model, backend=name), None

    def first(self, name: str) -> dict[str, Any]:
        """Seconds from asking for a compiled model to its first result; eager has run before."""
        self.run(self.model)
        self.synchronize()
        start = time.perf_counter()
        self.run(self.compiled(name)[0])
        self.synchronize()
        return {"first_s": round(time.perf_counter() - start, 2)}

    def all(self, rounds: int) -> dict[str, Any]:
        """Every contender in turn; then for each its memory, its error and where its time goes."""
        found: dict[str, Any] = {}
        models: dict[str, tuple[torch.nn.Module, Any]] = {}
        for name in CONTENDERS:
            try:
                models[name] = self.compiled(name)
                for _ in range(2):
                    self.run(models[name][0])
            except Exception as e:  # noqa: BLE001  (one contender's failure must not lose the others' figures)
                found[name] = {
                    "fault": f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e) else ''}"
                }
                models.pop(name, None)
        seconds = interleaved({n: _steps(self, m) for n, (m, _) in models.items()}, rounds, self.device)
        alone = interleaved({n: _step(self, m) for n, (m, _) in models.items()}, rounds, self.device)
        for name, (model, backend) in models.items():
            us = [s / STEPS * 1e6 for s in seconds[name]]
            where, launches = _where(
                _step(self, model), Spread.of(us).median, self.device, _kernel_names(backend)
            )
            found[name] = {
                "us": us,
                "alone_us": round(Spread.of(alone[name]).median * 1e6, 1),
                "peak_bytes": self.peak(model),
                "where_us": where,
                "launches": launches,
            }
            if backend and backend.left:
                found[name]["fault"] = f"left to PyTorch: {'; '.join(backend.left)}"
        self.errors(models, found)
        return found

    def peak(self, model: torch.nn.Module) -> int | None:
        """Bytes allocated at most during a step, weights included."""
        if self.device.type != "cuda":
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.run(model)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    def errors(self, models: Mapping[str, tuple[torch.nn.Module, Any]], found: dict[str, Any]) -> None:
        """Distance from float64, relative, of each contender's result."""
        exact = self.run(copy.deepcopy(self.model).double())
        size = exact.norm().item()
        for name, (model, _) in models.items():
            result = self.run(model)
            parts = [
                (r.double() - e).norm().item() for r, e in zip(result, exact, strict=True)
            ]  # one a sequence
            error = math.hypot(*parts) / size
            found[name]["error"] = error if error == error else math.inf

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _step(subject: _Subject, model: torch.nn.Module) -> Callable[[], Any]:
    return lambda: subject.run(model)


def _steps(subject: _Subject, model: torch.nn.Module) -> Callable[[], None]:
    def run() -> None:
        for _ in range(STEPS):
            subject.run(model)

    return run


def _kernel_names(backend: Any) -> frozenset[str]:
    compiled = getattr(backend, "compiled", ())
    return frozenset(k.source.name for c in compiled for k in c.plan.kernels)


# Kernels by what they do; the first that matches counts. Names of cuBLAS, CUTLASS, cuDNN, FlashAttention, Triton.
_KINDS = (
    ("attention", re.compile(r"flash|fmha|sdpa|attention|attn", re.IGNORECASE)),
    (
        "matmul",
        re.compile(r"gemm|gemv|cutlass|xmma|nvjet|cublas|splitk|addmm|::mm|::bmm|linear", re.IGNORECASE),
    ),
    ("triton", re.compile(r"^triton_")),
    ("copies", re.compile(r"^Mem(cpy|set)")),
)


# Spans of the profiler's own, which lie over the kernels inside them.
_NOT_KERNELS = ("##", "ProfilerStep", "Torch-Compiled Region", "Activity Buffer")


def _where(
    step: Callable[[], Any], step_us: float, device: torch.device, onepass: frozenset[str], steps: int = 3
) -> tuple[dict[str, float], dict[str, float]]:
    """Microseconds and launches of a step by kind of work; the gaps are what the step takes beyond its kernels."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    cuda = device.type == "cuda"
    for _ in range(2 * STEPS):  # at the clocks of the steps that were timed: a device at rest starts faster
        step()
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            step()
        if cuda:
            torch.cuda.synchronize()
    where: dict[str, float] = {}
    launches: dict[str, float] = {}
    for e in profiler.events():
        if cuda and (e.device_type != DeviceType.CUDA or e.name.startswith(_NOT_KERNELS)):
            continue
        us = e.time_range.elapsed_us() if cuda else e.self_cpu_time_total
        kind = _kind(e.name, onepass)
        where[kind] = where.get(kind, 0.0) + us / steps
        launches[kind] = launches.get(kind, 0.0) + 1 / steps
    # On a CPU onepass's kernels are not seen by the profiler: they are in the gaps.
    where["gaps"] = max(0.0, step_us - sum(where.values()))
    return {k: round(v, 1) for k, v in where.items()}, {k: round(v, 1) for k, v in launches.items()}


def _kind(name: str, onepass: frozenset[str]) -> str:
    if name in onepass:
        return "onepass"
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other ATen")


def _print_model(model: Model, rows: Sequence[Mapping[str, Any]]) -> bool:
    by = {r["contender"]: r for r in rows}
    kinds = list(dict.fromkeys(k for r in rows for k in (r["where_us"] or {})))
    print(
        f"\n{model.name} b{rows[0]['rows']} s{rows[0]['cols']} bf16: ms a step, first result, peak, error, "
        "and where a step's time is (ms)"
    )
    print(
        "  ".join(
            [
                f"{'':10}",
                f"{'step':>8} {'± IQR/2':>7}",
                f"{'alone':>7}",
                f"{'first s':>7}",
                f"{'GiB':>6}",
                f"{'error':>8}",
                *(f"{k:>10}" for k in kinds),
            ]
        )
    )
    for name, r in by.items():
        if r["median_us"] is None:
            print(f"{name:10}  {r['fault']}")
            continue
        cells = [f"{name:10}", f"{r['median_us'] / 1e3:8.2f} {r['iqr_us'] / 2e3:7.2f}"]
        cells.append(f"{r['alone_us'] / 1e3:7.2f}")
        cells.append(f"{r['first_s']:7.1f}" if r["first_s"] is not None else " " * 7)
        cells.append(f"{r['peak_bytes'] / 2**30:6.2f}" if r["peak_bytes"] is not None else " " * 6)
        cells.append(f"{r['error']:8.1e}")
        cells += [f"{r['where_us'].get(k, 0.0) / 1e3:10.2f}" for k in kinds]
        print("  ".join(cells) + (f"  ({r['fault']})" if r["fault"] else ""), flush=True)
    return _verdict(model, by)


def _verdict(model: Model, by: Mapping[str, Mapping[str, Any]]) -> bool:
    own, eager = by["onepass"], by["eager"]
    if own["median_us"] is None or eager["median_us"] is None:
        print("no verdict: a figure is missing")
        return False
    asked = [("× eager", eager["median_us"] / own["median_us"], model.over_eager, True)]
    first = by["aot_eager"]["first_s"]
    if own["first_s"] and first:
        asked.append(("× aot_eager's time to the first result", own["first_s"] / first, 1.5, False))
    if own["peak_bytes"] and eager["peak_bytes"]:
        asked.append(("× eager's peak memory", own["peak_bytes"] / eager["peak_bytes"], 1.0, False))
    asked.append(("× eager's error", own["error"] / max(eager["error"], 1e-12), 1.2, False))
    if by["inductor"]["median_us"]:
        print(f"onepass is {by['inductor']['median_us'] / own['median_us']:.2f} × Inductor")
    good = True
    for what, found, limit, least in asked:
        holds = found >= limit if least else found <= limit
        good = good and holds
        print(
            f"onepass {found:.3f} {what}: asked {'≥' if least else '≤'} {limit}{'' if holds else '  NOT MET'}"
        )
    return good
