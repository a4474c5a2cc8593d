"""The disk cache: hits, damage, two writers, directories that cannot be written."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from onepass.errors import NoCacheSpace
from onepass.runtime import cache as cache_module
from onepass.runtime.cache import CacheWarning, DiskCache, cache_key, default_directory, open_cache

KEY = cache_key("source", ("-O3",), "target", "compiler")


class Builder:
    """Builds a binary of random bytes and counts how often."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.count = 0
        self.seconds = seconds

    def __call__(self, path: Path) -> Mapping[str, Any]:
        self.count += 1
        time.sleep(self.seconds)
        path.write_bytes(os.urandom(1000))
        return {"registers": 40, "decisions": ["kept"]}


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


def test_a_key_depends_on_each_part() -> None:
    parts: dict[str, Any] = {"source": "a", "options": ("x", "y"), "target": "t", "compiler": "c"}
    keys = {cache_key(**parts)}
    for name, other in (("source", "b"), ("options", ("xy",)), ("target", "u"), ("compiler", "d")):
        keys.add(cache_key(**{**parts, name: other}))
    assert len(keys) == 5
    assert cache_key("ab", (), "c", "d") != cache_key("b", (), "ca", "d")


def test_a_binary_is_built_once_and_its_metadata_kept(cache: DiskCache) -> None:
    build = Builder()
    first = cache.get_or_build(KEY, ".so", build)
    again = DiskCache(cache.directory).get_or_build(KEY, ".so", build)
    assert build.count == 1
    assert (first.hit, again.hit) == (False, True)
    assert first.path == again.path
    assert again.metadata == {"registers": 40, "decisions": ["kept"]}
    assert cache.counters.misses == 1


@pytest.mark.parametrize(
    "damage", ["truncate", "flip", "empty_record", "no_binary", "not_json", "old_record"]
)
def test_a_damaged_entry_is_removed_rebuilt_and_reported(damage: str, cache: DiskCache) -> None:
    build = Builder()
    path = cache.get_or_build(KEY, ".so", build).path
    record = path.with_suffix(".json")
    content = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(content[:500])
    elif damage == "flip":
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    elif damage == "empty_record":
        record.write_bytes(b"")
    elif damage == "no_binary":
        path.unlink()
    elif damage == "not_json":
        record.write_bytes(b"\xff\xfe{")
    else:
        record.write_text(json.dumps({"checksum": 1}))
    with pytest.warns(CacheWarning, match="removed"):
        entry = cache.get_or_build(KEY, ".so", build)
    assert build.count == 2
    assert not entry.hit
    assert cache.counters.bad_entries == 1
    assert cache.get_or_build(KEY, ".so", build).hit


def test_an_entry_without_its_record_does_not_exist(cache: DiskCache) -> None:
    build = Builder()
    cache.get_or_build(KEY, ".so", build).path.with_suffix(".json").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.get_or_build(KEY, ".so", build)
    assert build.count == 2


def test_what_the_builder_raises_passes_through_and_leaves_nothing(cache: DiskCache) -> None:
    def fail(path: Path) -> Mapping[str, Any]:
        path.write_bytes(b"half")
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        cache.get_or_build(KEY, ".so", fail)
    assert cache.entries() == []
    assert cache.get_or_build(KEY, ".so", Builder()).hit is False


def test_a_directory_that_cannot_be_made_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    cache = DiskCache(tmp_path / "file" / "cache")
    build = Builder()
    with pytest.warns(CacheWarning, match="ONEPASS_CACHE_DIR"):
        first = cache.get_or_build(KEY, ".so", build)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = cache.get_or_build(KEY, ".so", build)
    assert build.count == 2
    assert first.path.stat().st_size == second.path.stat().st_size == 1000


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_still_gives_a_binary(
    code: int, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, content: bytes) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(cache_module, "_write_atomically", refuse)
    with pytest.warns(CacheWarning, match=os.strerror(code)):
        entry = cache.get_or_build(KEY, ".so", Builder())
    assert entry.path.stat().st_size == 1000
    assert cache.entries() == []


def test_no_room_anywhere_is_an_error_with_advice(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_module.tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(NoCacheSpace, match="ONEPASS_CACHE_DIR"):
        cache.get_or_build(KEY, ".so", Builder())


def test_a_write_that_fails_half_way_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="full"):
        cache_module._write_atomically(tmp_path / "x", b"content")
    assert list(tmp_path.iterdir()) == []


def test_two_threads_build_once(cache: DiskCache) -> None:
    build = Builder(seconds=0.05)
    threads = [threading.Thread(target=cache.get_or_build, args=(KEY, ".so", build)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert build.count == 1


WRITER = """
import sys, time
from pathlib import Path
from onepass.runtime.cache import DiskCache
def build(path):
    Path(sys.argv[2]).open("a").write("built\\n")
    time.sleep(0.2)
    path.write_bytes(b"x" * 5000)
    return {}
entry = DiskCache(Path(sys.argv[1])).get_or_build("ab" * 32, ".so", build)
assert entry.path.read_bytes() == b"x" * 5000
"""


def test_two_processes_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", WRITER, str(tmp_path / "cache"), str(log)]
    writers = [subprocess.Popen(command) for _ in range(2)]
    assert [w.wait() for w in writers] == [0, 0]
    assert log.read_text() == "built\n"


def test_a_disabled_cache_keeps_nothing(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, enabled=False)
    build = Builder()
    for _ in range(2):
        assert cache.get_or_build(KEY, ".so", build).path.exists()
    assert build.count == 2
    assert list(tmp_path.iterdir()) == []


def test_clear_removes_all_entries(cache: DiskCache) -> None:
    for i in range(3):
        cache.get_or_build(cache_key(str(i), (), "", ""), ".cubin", Builder())
    assert len(cache.entries()) == 3
    assert cache.size_bytes() > 3000
    assert cache.clear() == 3
    assert cache.entries() == []


@pytest.mark.parametrize("call", ["get_or_build", "size_bytes"])
def test_clearing_while_another_reads_is_no_damage(
    call: str, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Builder()
    cache.get_or_build(KEY, ".so", build)
    read, stat = Path.read_bytes, Path.stat

    def read_then_clear(path: Path) -> bytes:
        content = read(path)
        if path.suffix == ".json":
            cache.clear()
        return content

    def clear_then_stat(path: Path, **given: Any) -> os.stat_result:
        if path.suffix == ".so":
            path.unlink(missing_ok=True)
        return stat(path, **given)

    with warnings.catch_warnings(), monkeypatch.context() as patch:
        warnings.simplefilter("error")
        if call == "size_bytes":
            patch.setattr(Path, "stat", clear_then_stat)
            assert cache.size_bytes() < 1000
        else:
            patch.setattr(Path, "read_bytes", read_then_clear)
            assert not cache.get_or_build(KEY, ".so", build).hit
    assert cache.counters.bad_entries == 0


def test_the_directory_is_read_from_the_environment_at_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONEPASS_CACHE_DIR", raising=False)
    assert default_directory().name == "onepass"
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "here"))
    assert open_cache().directory == tmp_path / "here"
    assert open_cache() is open_cache()
    monkeypatch.setenv("ONEPASS_CACHE", "0")
    assert not open_cache().enabled
