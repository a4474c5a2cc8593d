"""PyTorch's op database on a real GPU: the samples that tests/opinfo chooses, of the dtypes that CUDA has.

Kernels are compiled first, in units side by side; that is most of the time. What is right is decided as on the CPU, beside
eager on the same device and float64. `OPINFO_LOG=FILE` adds a line an entry and dtype to a file, as the log of the CPU has
them (tools/opinfo_full.py; `--report --log FILE` sums it up).
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest
import torch

from opinfo.battery import STATES, Outcome, line, outcomes
from opinfo.entries import SPECIAL, chosen, entries

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

PARTS = 6
IN_KERNELS = 0.95


@pytest.mark.parametrize("part", range(PARTS))
def test_samples(part: int) -> None:
    begun = time.monotonic()
    names = sorted(entries())[part::PARTS]
    found = outcomes((s for name in names for s in chosen(name, "cuda")), device="cuda")
    note(found)
    states = Counter(o.state for o in found)
    words = ", ".join(f"{states[s]} {s}" for s in STATES)
    print(f"part {part}: {len(found)} samples in {time.monotonic() - begun:.0f} s: {words}")
    assert len(found) > 1000 / PARTS
    assert not [
        f"{o.sample.text()}, sample {o.sample.index}: {o.reason}" for o in found if o.state == "wrong"
    ]
    ran = Counter(o.state for o in found if o.sample.entry not in SPECIAL)
    left = Counter(o.reason for o in found if o.state == "left" and o.sample.entry not in SPECIAL)
    assert ran["kernels"] >= IN_KERNELS * (ran["kernels"] + ran["left"]), left.most_common()


def note(found: list[Outcome]) -> None:
    """Adds what became of samples to the log that is asked for."""
    if not (log := os.environ.get("OPINFO_LOG")):
        return
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with Path(log).open("a") as file:
        for (entry, dtype), some in groupby(found, lambda o: (o.sample.entry, o.sample.dtype)):
            file.write(json.dumps(line(entry, dtype, list(some)), ensure_ascii=False) + "\n")
