"""The ladders on a GPU: right, near the roof where they should be, and clean under compute-sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onepass.ladder.machine import present
from onepass.ladder.rungs import HERE, known, load
from onepass.ladder.study import study

pytestmark = pytest.mark.skipif(present() is None, reason="needs a CUDA GPU of the table")

OF_ROOF, OF_DATASHEET = 0.95, 0.85
# Rows of 1024 are short for a block, rows of 4096 are what models have; 65536 of either do not stay in a cache.
COLS = (1024, 4096)
NEAR_THE_ROOF = {"layer_norm": ("v5", "v6", "generated"), "fusion": ("generated",), "softmax": ("generated",)}
# What a ladder promises of its datasheet: SPEC A7. The fused rung of `fusion` is v6.
NEAR_THE_DATASHEET = {"layer_norm": ("v5", "v6", "generated")}
# What each tool ends with where it found nothing. memcheck, initcheck and synccheck count alike.
NO_ERRORS = "ERROR SUMMARY: 0 errors"
CLEAN = {
    "memcheck": NO_ERRORS,
    "initcheck": NO_ERRORS,
    "synccheck": NO_ERRORS,
    "racecheck": "RACECHECK SUMMARY: 0 hazards displayed",
}


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("name", known())
def test_a_ladder_is_as_stated_on_the_device(name: str, cols: int) -> None:
    machine = present()
    assert machine is not None
    found = study(load(HERE / name), machine, 65536, [cols], on_device=True)
    assert not found.surprises, [(e.rung.name, e.failed, e.measured) for e in found.surprises]
    measured = {e.rung.name: e.measured for e in found.entries if e.measured}
    of_roof = {rung: m.of_roof for rung, m in measured.items()}
    assert all(of_roof[rung] >= OF_ROOF for rung in NEAR_THE_ROOF.get(name, ())), of_roof
    of_datasheet = {rung: m.of_datasheet for rung, m in measured.items()}
    assert all(of_datasheet[rung] >= OF_DATASHEET for rung in NEAR_THE_DATASHEET.get(name, ())), of_datasheet


def test_what_is_wrong_is_not_launched() -> None:
    machine = present()
    assert machine is not None
    found = study(load(HERE / "layer_norm"), machine, 1024, [256], on_device=True)
    assert [e.rung.name for e in found.entries if e.measured is None] == ["wrong_divergent_shuffle"]


@pytest.mark.parametrize("tool", CLEAN)
def test_right_rungs_are_clean(tool: str) -> None:
    """initcheck sees global memory that nobody wrote: outputs and what lies between kernels are handed over so."""
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed: it comes with the CUDA toolkit")
    source = Path(__file__).parents[2] / "src"
    words = ["-m", "onepass", "ladder", "all", "--rows", "37", "--cols", "100,1024"]
    # Memory that PyTorch keeps for later was written once: to initcheck it is never fresh again.
    fresh = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if tool == "initcheck" else {}
    path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sanitizer, "--tool", tool, "--target-processes", "all", sys.executable, *words],
        env={**os.environ, **fresh, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout[-4000:] + done.stderr[-4000:]
    assert CLEAN[tool] in done.stdout, done.stdout[-4000:]
