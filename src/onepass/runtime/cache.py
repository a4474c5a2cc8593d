"""The disk cache of compiled kernels: addressed by content, safe with many writers, never in the way.

A kernel is two files, `<key><suffix>` and `<key>.json`. Each is written beside its place and renamed into
it, the JSON last: an entry without its JSON does not exist. The JSON holds the binary's checksum and what the
builder wants to keep (registers, spills, decisions). One lock a key keeps two processes from compiling the
same kernel twice.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from onepass import settings
from onepass.errors import LoadError, NoCacheSpace

SCHEMA = 2  # of the files here, and of what a kernel expects of its caller: part of every key

Build = Callable[[Path], Mapping[str, Any]]
T = TypeVar("T")


class CacheWarning(UserWarning):
    """Something is wrong with the disk cache; the program goes on without it."""


@dataclass(frozen=True)
class Entry:
    """A compiled kernel on disk."""

    path: Path
    metadata: Mapping[str, Any]
    hit: bool


@dataclass
class CacheCounters:
    """What the cache did in this process."""

    hits: int = 0
    misses: int = 0
    bad_entries: int = 0
    unwritable: int = 0


def cache_key(source: str, options: tuple[str, ...], target: str, compiler: str) -> str:
    """Name a binary by all that it depends on.

    `target` is the architecture or the processor's features, `compiler` its identity and version.
    """
    digest = hashlib.sha256()
    for part in (str(SCHEMA), target, compiler, *options, source):
        digest.update(f"{len(part)}:".encode() + part.encode())
    return digest.hexdigest()


def default_directory() -> Path:
    """Where kernels are kept: ONEPASS_CACHE_DIR, or the user's cache directory."""
    named = settings.CACHE_DIR.read()
    if named:
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("onepass"))


@dataclass(eq=False)
class DiskCache:
    """Compiled kernels in one directory. Threads and processes may share it."""

    directory: Path
    enabled: bool = True
    counters: CacheCounters = field(default_factory=CacheCounters)
    _aside: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def get(self, key: str, suffix: str) -> Entry | None:
        """Return the entry of `key`, or None.

        An entry that is damaged is removed, reported by a CacheWarning and counted, and then is a miss.
        """
        binary, record = self._places(key, suffix)
        try:
            text = record.read_bytes()
        except OSError:
            return None
        try:
            kept = json.loads(text)
            if hashlib.sha256(binary.read_bytes()).hexdigest() == kept["sha256"]:
                return Entry(binary, kept["metadata"], True)
            fault = "its checksum does not match"
        except (OSError, ValueError, KeyError, TypeError) as e:
            if not record.exists():  # another process clears the cache
                return None
            fault = f"it cannot be read ({e})"
        self._discard(binary, record, fault)
        return None

    def get_or_build(self, key: str, suffix: str, build: Build) -> Entry:
        """Return the entry of `key`, building it when it is not there.

        `build(path)` writes the binary to `path` and returns its metadata (what JSON can hold); what it
        raises passes through. When the directory can't be written the binary lives in a temporary directory
        until the process ends, and this is said once.

        Raises: NoCacheSpace if no temporary directory can be written either.
        """
        if not self.enabled:
            return self._build(key, suffix, build, keep=False)
        entry = self.get(key, suffix)  # a hit needs no lock
        if entry is None:
            with self._lock(key, suffix):
                entry = self.get(key, suffix)  # another process may have built it while we waited
                if entry is None:
                    self.counters.misses += 1
                    return self._build(key, suffix, build, keep=True)
        self.counters.hits += 1
        return entry

    def entries(self) -> list[Path]:
        """The binaries kept, in no order."""
        records = self.directory.glob(f"v{SCHEMA}/*/*.json")
        return [
            p for r in records for p in r.parent.glob(f"{r.stem}.*") if p.suffix not in (".json", ".lock")
        ]

    def size_bytes(self) -> int:
        """The bytes all files of the cache take."""
        total = 0
        for path in self.directory.glob("v*/*/*"):
            with suppress(FileNotFoundError):  # another process clears the cache
                total += path.stat().st_size
        return total

    def clear(self) -> int:
        """Remove every entry and return how many binaries that were. Kernels already loaded go on working."""
        removed = len(self.entries())
        for path in self.directory.glob("v*/*/*"):
            path.unlink(missing_ok=True)
        return removed

    def _places(self, key: str, suffix: str) -> tuple[Path, Path]:
        folder = self.directory / f"v{SCHEMA}" / key[:2]
        return folder / f"{key}{suffix}", folder / f"{key}.json"

    @contextmanager
    def _lock(self, key: str, suffix: str) -> Iterator[None]:
        """Hold the lock of `key`; without one where the directory can't be written."""
        from filelock import FileLock  # here, so that a program which only hits does not import it

        binary, _ = self._places(key, suffix)
        lock = FileLock(str(binary.with_suffix(".lock")))
        try:
            binary.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except OSError as e:
            self._say_unwritable(e)
            yield
            return
        try:
            yield
        finally:
            lock.release()

    def _build(self, key: str, suffix: str, build: Build, *, keep: bool) -> Entry:
        """Build in a temporary directory, then move it in: a compiler calls a full disk a faulty source."""
        try:
            fresh = tempfile.TemporaryDirectory(prefix="onepass-")
        except OSError as e:
            raise NoCacheSpace(str(self.directory), str(e)) from e
        with fresh:
            new = Path(fresh.name) / f"{key}{suffix}"
            metadata = dict(build(new))
            if keep:
                try:
                    return Entry(self._commit(new, key, suffix, metadata), metadata, False)
                except OSError as e:
                    self._say_unwritable(e)
            return Entry(self._set_aside(new), metadata, False)

    def _commit(self, new: Path, key: str, suffix: str, metadata: Mapping[str, Any]) -> Path:
        binary, record = self._places(key, suffix)
        content = new.read_bytes()
        kept = {"sha256": hashlib.sha256(content).hexdigest(), "metadata": metadata}
        _write_atomically(binary, content)
        _write_atomically(record, json.dumps(kept, indent=1, sort_keys=True).encode())
        return binary

    def _set_aside(self, new: Path) -> Path:
        """Move a binary where it stays until the process ends."""
        try:
            with self._guard:
                if self._aside is None:
                    self._aside = tempfile.TemporaryDirectory(prefix="onepass-kernels-")
            folder = tempfile.mkdtemp(dir=self._aside.name)
            return Path(shutil.move(str(new), folder))
        except OSError as e:
            raise NoCacheSpace(str(self.directory), str(e)) from e

    def _discard(self, binary: Path, record: Path, fault: str) -> None:
        self.counters.bad_entries += 1
        warnings.warn(
            f"cached kernel {binary.name} removed: {fault}; it is built again", CacheWarning, stacklevel=4
        )
        for path in (record, binary):
            try:
                path.unlink(missing_ok=True)
            except OSError:
                return  # a read-only cache: the entry stays bad and each process builds its own

    def _say_unwritable(self, error: OSError) -> None:
        with self._guard:
            self.counters.unwritable += 1
            first = self.counters.unwritable == 1
        if first:
            warnings.warn(
                f"kernels are not kept: {self.directory} cannot be written ({error}); "
                "point ONEPASS_CACHE_DIR at a directory that can",
                CacheWarning,
                stacklevel=4,
            )


def _write_atomically(path: Path, content: bytes) -> None:
    """Write beside `path` and rename: a reader sees the old file or the new one, never a part."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(content)
        os.replace(name, path)
    except OSError:
        with suppress(OSError):
            os.unlink(name)
        raise


def with_entry(find: Callable[[], Entry], use: Callable[[Entry], T]) -> T:
    """What ``use`` makes of the entry that ``find`` gives; one that another process removed meanwhile is found again."""
    entry = find()
    try:
        return use(entry)
    except (OSError, LoadError):
        if entry.path.exists():
            raise
    return use(find())


def open_cache() -> DiskCache:
    """The cache the settings name now; one object a directory."""
    return _open_cache(default_directory(), settings.CACHE.read())


@functools.cache
def _open_cache(directory: Path, enabled: bool) -> DiskCache:
    return DiskCache(directory, enabled)
