"""Real architectures on a GPU: as exact as eager, in no more memory, no kernel built twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.models import MODELS, check, inputs, prepare
from onepass.runtime.counters import COUNTERS

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

FIRST, SECOND = (64, 48), (33, 31)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_as_exact_as_eager_in_no_more_memory(name: str, dtype: torch.dtype) -> None:
    described = MODELS[name]
    prepared = prepare(described, dtype, device="cuda")
    given = inputs(described, FIRST, dtype, "cuda")
    check(prepared, given)
    assert not prepared.backend.left
    ours, eagers = (peak(lambda f=f: f(**given)) for f in (prepared.compiled, prepared.model))
    assert ours <= eagers

    built = COUNTERS.compiled
    another = SECOND if 1 in described.dynamic else (SECOND[0], FIRST[1])  # some have a fixed length
    check(prepared, inputs(described, another, dtype, "cuda"))
    # A padding mask's sizes are symbols of their own: what agrees by accident at one size is not fused at others.
    assert COUNTERS.compiled == built or "padded" in name


def peak(run: Callable[[], Any]) -> int:
    """Bytes allocated at most during a call; what libraries allocate once is there before it."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()
