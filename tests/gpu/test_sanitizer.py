"""No kernel reads or writes what is not its own, and no two threads race for shared memory: compute-sanitizer says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

HERE = Path(__file__).parent
CLEAN = {"memcheck": "ERROR SUMMARY: 0 errors", "racecheck": "RACECHECK SUMMARY: 0 hazards displayed"}


@pytest.mark.parametrize("tool", CLEAN)
def test_each_schedule_is_clean(tool: str) -> None:
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed: it comes with the CUDA toolkit")
    source = HERE.parents[1] / "src"
    done = subprocess.run(
        [sanitizer, "--tool", tool, sys.executable, str(HERE / "each_schedule.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert CLEAN[tool] in done.stdout, done.stdout[-4000:]
