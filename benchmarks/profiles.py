"""Profiles of whole models: the forecast of each memory-bound group beside what fusing it saved.

On a GPU the models of models.py in bf16, on a CPU all-MiniLM-L6-v2 over a batch of the demo's text. Exit code 0 when the
forecast held for four groups in five of each model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from models import MODELS
from onepass.insight.calibrate import calibrate
from onepass.insight.profile import Profile, profile
from onepass.runtime.calibration import keep, kept, present
from onepass.runtime.timer import keep_allocator_warm
from record import ROOT, Machine, slug, write_lines

HELD = 0.8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="the commit, where there is no repository")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    machine = Machine.here(device, options.commit)
    if kept(present(device)) is None:
        keep(calibrate(device))
    out = options.out or ROOT / "benchmarks" / "results" / slug(machine.device) / "profiles.jsonl"
    rows = []
    for name, model, inputs in subjects(device):
        torch._dynamo.reset()
        found = profile(model, inputs)
        held, of = found.held
        saved = _ms([found.saved_us or 0.0])
        print(f"{name}: forecast {_ms(found.saving_us)} ms, saved {saved} ms; held for {held} of {of} groups")
        rows.append(_row(name, found, machine))
        del model, inputs
    out.parent.mkdir(parents=True, exist_ok=True)
    write_lines(out, rows)
    print(f"rows: {out}")
    return 0 if all(r["held"] >= HELD * r["groups"] for r in rows) else 1


def subjects(device: torch.device) -> Iterator[tuple[str, torch.nn.Module, tuple[Any, ...]]]:
    """Names, models and inputs."""
    if device.type == "cpu":
        keep_allocator_warm()
        from onepass.insight.demo.encoder import batches, load_encoder
        from onepass.insight.demo.passages import passages

        batch = max(batches([p.text for p in passages()], device), key=lambda b: b.input_ids.numel())
        yield "minilm", load_encoder(device), (batch.input_ids, batch.attention_mask)
        return
    for name, described in MODELS.items():
        torch.manual_seed(0)
        with device:
            model = described.build(False).to(torch.bfloat16).eval()
            model.config.use_cache = False
            tokens = torch.randint(1000, (described.batch, described.length))
        yield name, model, (tokens,)


def _row(name: str, found: Profile, machine: Machine) -> dict[str, Any]:
    held, of = found.held
    return {
        "case": name,
        "held": held,
        "groups": of,
        "profile": found.to_dict(),
        "device": machine.device,
        "versions": machine.versions,
        "commit": machine.commit,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _ms(times_us: Any) -> str:
    return " – ".join(f"{us / 1e3:.2f}" for us in times_us)


if __name__ == "__main__":
    raise SystemExit(main())
