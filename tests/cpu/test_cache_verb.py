"""`onepass cache`: it counts what is there and removes that and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from onepass.cli import cache as verb
from onepass.runtime.cache import DiskCache, cache_key


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with three entries, and a file beside them that is not the cache's."""
    cache = DiskCache(tmp_path)
    for i in range(3):
        key = cache_key(f"source {i}", (), "target", "compiler")
        cache.get_or_build(key, ".so", lambda path: (path.write_bytes(b"\x7fELF" * 100), {})[1])
    (tmp_path / "notes.txt").write_text("not the cache's")
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path))
    return tmp_path


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_info(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verb.info(json=True)
    found = document(capsys)
    assert found["directory"] == str(folder)
    assert found["kernels"] == 3
    assert found["enabled"] is True
    assert found["size_bytes"] >= 3 * 400
    verb.info(json=False)
    assert capsys.readouterr().out.startswith("3 kernels, 0.0 MB, in ")


def test_clear(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as leave:
        verb.clear(json=True)
    assert leave.value.exit_code == 0
    found = document(capsys)
    assert (found["removed"], found["kernels"], found["size_bytes"]) == (3, 0, 0)
    assert found["freed_bytes"] >= 3 * 400
    assert (folder / "notes.txt").read_text() == "not the cache's"


def test_clear_of_nothing_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "absent"))
    with pytest.raises(typer.Exit) as leave:
        verb.clear()
    assert leave.value.exit_code == 0


def test_what_could_not_be_removed_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: DiskCache) -> int:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(DiskCache, "clear", refuse)
    with pytest.raises(typer.Exit) as leave:
        verb.clear(json=True)
    assert leave.value.exit_code == 1
    found = document(capsys)
    assert found["problem"] == f"{folder} can't be removed: Permission denied"
    assert (found["kernels"], found["freed_bytes"]) == (3, 0)
