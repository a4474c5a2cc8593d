"""docs/spec.md: every row of the two texts, and nothing named that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from onepass.cli.app import _application

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| ([AB]\d+) \|(.*)\|(.*)\|(.*)\|$", (ROOT / "docs" / "spec.md").read_text(), re.MULTILINE
)


def test_every_row_is_there_once() -> None:
    assert [name for name, *_ in ROWS] == [f"A{n}" for n in range(1, 15)] + [f"B{n}" for n in range(1, 11)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_a_row_names_exists(row: tuple[str, ...]) -> None:
    _, _, command, held = row
    names = re.findall(r"`([^`]+)`", held)
    assert names, "nothing holds it"
    for name in names:
        path, _, test = name.partition("::")
        assert (ROOT / path).is_file(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(), name
    verbs = set(get_command(_application()).commands)  # type: ignore[attr-defined]
    for verb in re.findall(r"`onepass (\w+)", command):
        assert verb in verbs, verb
