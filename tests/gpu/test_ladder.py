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

NEAR_THE_ROOF = {"layer_norm": ("v5", "v6", "generated"), "fusion": ("f3", "generated")}
CLEAN = {"memcheck": "ERROR SUMMARY: 0 errors", "racecheck": "RACECHECK SUMMARY: 0 hazards displayed"}


@pytest.mark.parametrize("name", known())
def test_a_ladder_is_as_stated_on_the_device(name: str) -> None:
    machine = present()
    assert machine is not None
    found = study(load(HERE / name), machine, 65536, [1024], on_device=True)
    assert not found.surprises, [(e.rung.name, e.failed, e.measured) for e in found.surprises]
    shares = {e.rung.name: e.measured.of_roof for e in found.entries if e.measured}
    assert all(shares[rung] >= 0.95 for rung in NEAR_THE_ROOF.get(name, ())), shares


@pytest.mark.parametrize("tool", CLEAN)
def test_right_rungs_are_clean(tool: str) -> None:
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed: it comes with the CUDA toolkit")
    source = Path(__file__).parents[2] / "src"
    words = ["-m", "onepass", "ladder", "all", "--rows", "37", "--cols", "100,1024"]
    done = subprocess.run(
        [sanitizer, "--tool", tool, "--target-processes", "all", sys.executable, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout[-4000:] + done.stderr[-4000:]
    assert CLEAN[tool] in done.stdout, done.stdout[-4000:]
