"""Measurements as lines of JSON: one row a contender, with what is needed to judge it later."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from measure import Measured

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Row:
    """One measurement. Units: µs, bytes, GB/s (1e9 bytes); ``attained`` is gbps ÷ roof_gbps."""

    case: str
    direction: str
    dtype: str
    rows: int
    cols: int
    contender: str
    median_us: float
    iqr_us: float
    ideal_bytes: int
    gbps: float
    roof_gbps: float
    attained: float
    protocol: str
    device: str
    versions: Mapping[str, str]
    commit: str
    date: str

    @property
    def key(self) -> tuple[Any, ...]:
        """What two rows of the same measurement share."""
        where = (self.case, self.direction, self.dtype, self.rows, self.cols)
        return (*where, self.contender, self.protocol, self.device)


KEYS = tuple(f.name for f in fields(Row))


@dataclass(frozen=True)
class Machine:
    """Where and with what a run was made."""

    device: str
    versions: Mapping[str, str]
    commit: str

    @classmethod
    def here(cls, device: torch.device, named: str | None = None) -> Machine:
        """This machine; ``named`` is the commit where there is no repository."""
        return cls(device_name(device), versions(device), named or commit())


def rows_of(measured: Measured, machine: Machine) -> list[Row]:
    """The rows of a point, one a contender, the roof's too."""
    point = measured.point
    return [
        Row(
            case=point.case.name,
            direction="forward",
            dtype=point.dtype,
            rows=point.rows,
            cols=point.cols,
            contender=name,
            median_us=round(measured.spread(name).median, 3),
            iqr_us=round(measured.spread(name).iqr, 3),
            ideal_bytes=measured.bytes_of(name),
            gbps=_significant(measured.gbps(name)),
            roof_gbps=_significant(measured.roof_gbps),
            attained=round(measured.gbps(name) / measured.roof_gbps, 4),
            protocol=measured.protocol,
            device=machine.device,
            versions=machine.versions,
            commit=machine.commit,
            date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        for name in measured.us
    ]


def _significant(x: float) -> float:
    return float(f"{x:.5g}")


def read(path: Path) -> list[Row]:
    """The rows of a file. Raises: ValueError for a line that is no row."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        entry = json.loads(line)
        if tuple(entry) != KEYS:
            odd = sorted(set(entry) ^ set(KEYS))
            raise ValueError(
                f"{path}:{number}: not a row of a benchmark ({', '.join(odd) or 'order of keys'})"
            )
        found.append(Row(**entry))
    return found


def merge(path: Path, new: Iterable[Row]) -> None:
    """Write rows to a file in place of older ones of the same measurement."""
    kept = {row.key: row for row in (read(path) if path.exists() else [])}
    kept.update({row.key: row for row in new})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, (asdict(row) for row in kept.values()))


def write_lines(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.get_num_threads()} threads"


def slug(name: str) -> str:
    """A device's name as a folder's."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = dict(re.findall(r"^(model name|flags)\s*: (.*)$", text, re.MULTILINE))
    flags = found.get("flags", "").split()
    vectors = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else platform.machine()
    return f"{found.get('model name', platform.machine())} {vectors}"


@cache
def versions(device: torch.device) -> dict[str, str]:
    """Versions of what a figure depends on, as far as it is there."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("onepass", "triton", "liger-kernel", "quack-kernels", "nvidia-cutlass-dsl"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if device.type == "cuda":
        found["cuda"] = torch.version.cuda or ""
        found["driver"] = _driver()
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler:
        asked = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, check=False)
        found["c++"] = asked.stdout.strip()
    return {name: version for name, version in found.items() if version}


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    match = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", text)
    return match[1] if match else ""


def commit() -> str:
    """The commit checked out, with a plus sign when what is measured has uncommitted changes."""
    head = _git("rev-parse", "--short=12", "HEAD")
    changed = _git(
        "status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks/*.py", "benchmarks/*.toml"
    )
    return f"{head}+" if head and changed else head or "unknown"


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
