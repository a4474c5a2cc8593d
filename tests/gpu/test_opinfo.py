"""PyTorch's op database on a real GPU: the samples that tests/opinfo chooses, of the dtypes that CUDA has.

Kernels are compiled first, side by side; that is most of the time. What is right is decided as on the CPU, beside eager on
the same device and float64.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from opinfo.battery import outcomes
from opinfo.entries import SPECIAL, chosen, entries

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

PARTS = 6
IN_KERNELS = 0.95


@pytest.mark.parametrize("part", range(PARTS))
def test_samples(part: int) -> None:
    names = sorted(entries())[part::PARTS]
    found = outcomes((s for name in names for s in chosen(name, "cuda")), device="cuda")
    assert len(found) > 1000 / PARTS
    assert not [
        f"{o.sample.text()}, sample {o.sample.index}: {o.reason}" for o in found if o.state == "wrong"
    ]
    ran = Counter(o.state for o in found if o.sample.entry not in SPECIAL)
    left = Counter(o.reason for o in found if o.state == "left" and o.sample.entry not in SPECIAL)
    assert ran["kernels"] >= IN_KERNELS * (ran["kernels"] + ran["left"]), left.most_common()
