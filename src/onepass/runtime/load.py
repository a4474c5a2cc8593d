"""Sources → loaded kernels: each distinct source is compiled once a process and kept on disk."""

from __future__ import annotations

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from onepass.codegen.cpu_prelude import cpu_driver
from onepass.codegen.emit import Source
from onepass.runtime.counters import COUNTERS
from onepass.runtime.hostcc import compile_shared
from onepass.runtime.launch_cpu import CpuKernel, Driver, load_driver

_lock = threading.Lock()
_loaded: dict[str, Path] = {}
_driver: list[Driver] = []


def shared_object(source: Source) -> Path:
    with _lock:
        if source.text in _loaded:
            return _loaded[source.text]
    path = Path(tempfile.mkdtemp()) / "kernel.so"
    compile_shared(source.text, path, name=source.name)
    COUNTERS.compiled += 1
    with _lock:
        return _loaded.setdefault(source.text, path)


def driver() -> Driver:
    if not _driver:
        path = Path(tempfile.mkdtemp()) / "driver.so"
        compile_shared(cpu_driver(), path, name="driver")
        _driver.append(load_driver(path))
    return _driver[0]


def build_all(sources: list[Source]) -> None:
    """Compiles several sources at once."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(shared_object, {s.text: s for s in sources}.values()))


def cpu_kernel(source: Source, item_bytes: int, scratch_bytes: int) -> CpuKernel:
    return CpuKernel(shared_object(source), source.name, driver(), item_bytes=item_bytes, scratch_bytes=scratch_bytes)
