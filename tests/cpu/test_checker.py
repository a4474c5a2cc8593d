"""The checker: every planted fault found at its line, no alarm on right kernels, counts that agree with counting by hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from onepass.cli.check import _reference
from onepass.emulate import compile_handwritten
from onepass.errors import BadLaunch, CannotCheck, NoSuchKernel, OnepassError
from onepass.insight.check import CheckReport, check_built, check_kernel, difference
from onepass.insight.launch_line import cases_of, launch_of, pairs_of

CORPUS = Path(__file__).parents[1] / "faults"
WRONG, RIGHT = sorted(CORPUS.glob("wrong/*.cu")), sorted(CORPUS.glob("right/*.cu"))
MARK = re.compile(r"// FAULT: ([\w-]+)")
CLASSES = {
    "barrier-divergence",
    "missing-lane",
    "warp-divergence",
    "shared-race",
    "out-of-bounds",
    "misaligned",
    "unwritten-shared",
    "write-to-read-only",
    "wrong-result",
    "order-dependent",
}


def marks(text: str) -> dict[int, str]:
    """The lines that a corpus file calls faulty, and what is wrong there."""
    found = {n: MARK.search(line) for n, line in enumerate(text.splitlines(), 1)}
    return {n: m.group(1) for n, m in found.items() if m}


def checked(path: Path, text: str | None = None, cache_dir: Path | None = None) -> list[CheckReport]:
    """Every case of a file."""
    text = path.read_text() if text is None else text
    cases = cases_of(text, str(path))
    built = compile_handwritten(text, cases[0].pairs.get("kernel"), path.name, cache_dir=cache_dir)
    reports = []
    for case in cases:
        at = launch_of(case, built.parameters, path.name)
        reference = _reference(case, path, False)
        reports.append(
            check_built(
                built,
                at.arguments,
                at.grid,
                at.block,
                shared_bytes=at.shared_bytes,
                reference=reference,
                file=path.name,
                case=case.name,
                rtol=at.rtol,
            )
        )
    return reports


def test_the_corpus_has_every_class() -> None:
    kinds = [kind for p in WRONG for kind in set(marks(p.read_text()).values())]
    assert len(kinds) >= 16
    assert set(kinds) == CLASSES


@pytest.mark.parametrize("path", WRONG, ids=lambda p: p.stem)
def test_a_planted_fault_is_found_at_its_line(path: Path) -> None:
    expected = marks(path.read_text())
    faults = [f for r in checked(path) for f in r.faults]
    assert faults
    for f in faults:
        assert expected.get(f.line) == f.kind, f
        assert not f.other_line or f.other_line in expected or f.kind != "shared-race", f
        assert f.text
        assert f.advice
    seen = {n for f in faults for n in (f.line, f.other_line)}
    one_is_enough = {"barrier-divergence", "warp-divergence", "shared-race"}  # marked at both of two places
    assert set(expected) <= seen or set(expected.values()) <= one_is_enough


@pytest.mark.parametrize("path", RIGHT, ids=lambda p: p.stem)
def test_a_right_kernel_raises_no_alarm(path: Path) -> None:
    for report in checked(path):
        assert report.compared
        assert report.clean, report.faults
