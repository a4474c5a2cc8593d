"""What every test gets: a kernel cache of its own, and failures that are raised, not run around."""

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Point the cache at a fresh folder, one for all workers of a run: they also test two writers at once.

    Strictness is for child processes too.
    """
    base = tmp_path_factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONEPASS_CACHE_DIR", str(run / "onepass-cache"))
        patch.setenv("ONEPASS_STRICT", "1")
        patch.setenv("ONEPASS_VERIFY", "1")
        yield


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing compiled before, the same random numbers each time, no gradients."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
