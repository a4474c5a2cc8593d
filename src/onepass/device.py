"""The machine's facts that plans and reports use, and the table of GPUs by name. Each number has its source."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from onepass.errors import NoSuchArchitecture, UnknownGpu


@dataclass(frozen=True)
class Device:
    """One machine to run on.

    Units: bandwidth in GB/s (1e9 bytes), time in µs, instruction rates in 1e9 lane instructions a second,
    shared memory and L2 in bytes.
    """

    name: str
    kind: Literal["cuda", "cpu"]
    arch: str  # sm_90, x86-64, …
    bandwidth_gbps: float  # what a copy of large tensors reaches, reads plus writes
    launch_us: float  # host and device time of an empty kernel in a busy stream
    issue_giops: float  # lane instructions
    special_giops: float  # exp2, reciprocal, reciprocal square root, tanh
    units: int  # multiprocessors, or cores
    registers: int = 65536  # a multiprocessor
    threads: int = 2048  # resident, a multiprocessor
    blocks: int = 32  # resident, a multiprocessor
    shared_bytes: int = 0  # a multiprocessor
    l2_bytes: int = 0
    source: str = ""


def _cuda(
    name: str,
    arch: str,
    gbps: float,
    units: int,
    ghz: float,
    threads: int,
    shared: int,
    l2: int,
    source: str,
    blocks: int = 32,
) -> Device:
    # Four schedulers a multiprocessor issue one warp instruction of 32 lanes a cycle; 16 special-function lanes.
    return Device(
        name,
        "cuda",
        arch,
        gbps,
        2.0,
        units * 128 * ghz,
        units * 16 * ghz,
        units,
        threads=threads,
        blocks=blocks,
        shared_bytes=shared,
        l2_bytes=l2,
        source=source,
    )


KNOWN: tuple[Device, ...] = (
    _cuda(
        "NVIDIA H200",
        "sm_90",
        4300,
        132,
        1.755,
        2048,
        233472,
        60 << 20,
        "copy of 2 x 512 MiB measured 2026-11-30; H100 tuning guide",
    ),
    _cuda(
        "NVIDIA H100 80GB HBM3",
        "sm_90",
        3000,
        132,
        1.755,
        2048,
        233472,
        50 << 20,
        "datasheet 3350 GB/s x 0.9; H100 tuning guide",
    ),
    _cuda(
        "NVIDIA A100-SXM4-80GB",
        "sm_80",
        1800,
        108,
        1.41,
        2048,
        167936,
        40 << 20,
        "datasheet 2039 GB/s x 0.88; A100 tuning guide",
    ),
    _cuda(
        "Tesla V100-SXM2-16GB",
        "sm_70",
        800,
        80,
        1.53,
        2048,
        98304,
        6 << 20,
        "datasheet 900 GB/s x 0.88; Volta tuning guide",
    ),
)


@cache
def cpu() -> Device:
    """The host. Bandwidth and rates are assumptions for ranking plans, not measurements."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Device(
        "cpu",
        "cpu",
        "host",
        12.0 * max(cores, 1) ** 0.8,
        3.0,
        24.0 * cores,
        2.0 * cores,
        cores,
        source="assumed: 12 GB/s and 24 G lane instructions a core",
    )


# Blocks that a multiprocessor holds, where it is not 32. Source: cuda_occupancy.h of CUDA 13.0.
_BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24, (12, 1): 24}


@cache
def cuda(index: int = 0) -> Device:
    """The CUDA device with this index. Raises what torch raises when there is none."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    for device in KNOWN:
        if device.name == properties.name:
            return device
    major, minor = properties.major, properties.minor
    gbps = (
        0.88
        * 2
        * getattr(properties, "memory_clock_rate", 1_000_000)
        * getattr(properties, "memory_bus_width", 256)
        / 8
        / 1e6
    )
    return _cuda(
        properties.name,
        f"sm_{major}{minor}",
        gbps,
        properties.multi_processor_count,
        getattr(properties, "clock_rate", 1_500_000) / 1e6,
        properties.max_threads_per_multi_processor,
        getattr(properties, "shared_memory_per_multiprocessor", 65536),
        properties.L2_cache_size,
        "read from the driver: 88 % of clock x bus width",
        _BLOCKS.get((major, minor), 32),
    )


@cache
def of_arch(arch: str) -> Device:
    """A card of an architecture, to plan and compile for where none is present: sm_86. Raises: NoSuchArchitecture."""
    found = next((d for d in KNOWN if d.arch == arch), None)
    if found:
        return found
    limits = architectures().get(arch)
    if limits is None:
        raise NoSuchArchitecture(arch, tuple(architectures()))
    return replace(
        KNOWN[0] if _number(arch) >= 90 else KNOWN[2],
        name=arch,
        arch=arch,
        threads=limits.threads,
        blocks=limits.blocks,
        shared_bytes=limits.shared_bytes,
        source="limits of the architecture",
    )


def of(torch_device: str) -> Device:
    """The record for ``cpu`` or ``cuda:1``, of an architecture, ``sm_86``, or of an absent GPU by its full name."""
    if torch_device.startswith("sm_"):
        return of_arch(torch_device)
    if torch_device.startswith("cuda"):
        _, _, index = torch_device.partition(":")
        return cuda(int(index or 0))
    return absent(torch_device) or cpu()


@cache
def absent(name: str) -> Device | None:
    """A GPU of the table to plan for, or None for another name.

    Plans are ranked by it: a clock that is not known is taken as 1.5 GHz, a number of multiprocessors as 64.
    """
    card = next((c for c in cards() if c.name == name), None)
    if card is None or card.bandwidth_gbps is None:
        return None
    known = [d for d in KNOWN if d.name == name]
    return (
        known[0]
        if known
        else _cuda(
            name,
            card.arch,
            0.88 * card.bandwidth_gbps,
            card.units or 64,
            (card.boost_mhz or 1500) / 1000,
            card.limits.threads,
            card.limits.shared_bytes,
            int((card.l2_mib or 0) * MIB),
            "the table of GPUs: 88 % of the bandwidth; boost clock, or 1.5 GHz",
            card.limits.blocks,
        )
    )


@cache
def last_cache_bytes() -> int:
    """The size of the host's last cache; 32 MiB where the system does not say."""
    for index in (3, 2):
        try:
            text = Path(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size").read_text().strip()
            return int(text.removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    return 32 << 20


# The table, devices.toml: facts by the name of a GPU, whether one is present or not

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Limits:
    """What a multiprocessor of an architecture holds.

    Units: bytes; threads, blocks, 32-bit registers, named barriers of a multiprocessor; ``fp32_lanes`` take a
    multiply-add each cycle.
    """

    arch: str
    threads: int
    blocks: int
    shared_bytes: int
    block_shared_bytes: int  # the most a block may ask for
    carveouts_bytes: tuple[int, ...]  # the sizes that shared memory takes of what it shares with L1
    fp32_lanes: int
    registers: int = 65536  # and the most a block may take
    barriers: int = 0  # 0: they never limit

    @property
    def reserved_shared_bytes(self) -> int:
        """What the system keeps of each block's shared memory."""
        return KIB if _number(self.arch) >= 80 else 0

    @property
    def shared_unit_bytes(self) -> int:
        """What a block's shared memory is rounded up to."""
        return 128 if _number(self.arch) >= 80 else 256


@dataclass(frozen=True)
class Source:
    """Where a number was read. ``date`` is the document's, as year and month."""

    document: str
    date: str


# The numbers of a card that have a source each, and their units.
FACTS: Mapping[str, str] = {
    "units": "multiprocessors",
    "boost_mhz": "MHz",
    "fp32_tflops": "1e12 operations/s",
    "bandwidth_gbps": "1e9 bytes/s",
    "bus_bits": "bits",
    "data_rate_gbps": "1e9 bits/s a wire",
    "l2_mib": "MiB",
    "memory_gib": "GiB",
}


@dataclass(frozen=True)
class Card:
    """One GPU of the table. A number that is not known is None; ``sources`` says where each other one was read."""

    name: str  # as the driver calls it
    aliases: tuple[str, ...]
    limits: Limits
    units: int | None
    boost_mhz: int | None
    fp32_tflops: float | None
    bandwidth_gbps: float | None
    bus_bits: int | None
    data_rate_gbps: float | None
    l2_mib: float | None
    memory_gib: int | None
    note: str
    sources: Mapping[str, Source]

    @property
    def arch(self) -> str:
        return self.limits.arch

    @property
    def derived_gbps(self) -> float | None:
        """Bus width × data rate ÷ 8. Units: 1e9 bytes a second."""
        if self.bus_bits is None or self.data_rate_gbps is None:
            return None
        return self.bus_bits * self.data_rate_gbps / 8

    @property
    def derived_tflops(self) -> float | None:
        """Multiprocessors × lanes × 2 × boost clock. Units: 1e12 operations a second."""
        if self.units is None or self.boost_mhz is None:
            return None
        return self.units * self.limits.fp32_lanes * 2 * self.boost_mhz / 1e6

    @property
    def ridge(self) -> float | None:
        """The datasheet's ridge point. Units: FLOPs a byte."""
        if self.fp32_tflops is None or self.bandwidth_gbps is None:
            return None
        return 1000 * self.fp32_tflops / self.bandwidth_gbps

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of numbers that the table does not have."""
        return tuple(name for name in FACTS if getattr(self, name) is None)

    def to_dict(self) -> dict[str, Any]:
        facts = {
            name: None
            if getattr(self, name) is None
            else {"value": getattr(self, name), "unit": unit, **self.sources[name].__dict__}
            for name, unit in FACTS.items()
        }
        limits = {k: v for k, v in self.limits.__dict__.items() if k != "arch"}
        return {
            "name": self.name,
            "aliases": list(self.aliases),
            "arch": self.arch,
            **facts,
            "derived": {
                "bandwidth_gbps": self.derived_gbps,
                "fp32_tflops": self.derived_tflops,
                "ridge_flops_per_byte": self.ridge,
            },
            "multiprocessor": {
                **limits,
                "carveouts_bytes": list(self.limits.carveouts_bytes),
                "reserved_shared_bytes": self.limits.reserved_shared_bytes,
                **self.sources["limits"].__dict__,
            },
            "note": self.note,
        }


@cache
def architectures() -> Mapping[str, Limits]:
    """Limits by architecture, oldest first."""
    return {arch: _limits(arch, row) for arch, row in _table()["arch"].items()}


def limits_of(arch: str) -> Limits:
    """The limits of an architecture; of one that the table does not have, those of the next older one."""
    known = architectures()
    older = [a for a in known if _number(a) <= _number(arch)]
    return known.get(arch) or known[older[-1] if older else next(iter(known))]


@cache
def cards() -> tuple[Card, ...]:
    """All GPUs of the table."""
    return tuple(_card(row) for row in _table()["card"])


def find(name: str) -> Card:
    """A GPU by its full name, or by one that people use: ``V100``, ``3080 Ti``, ``A100 80GB``.

    Raises: UnknownGpu, with the nearest names.
    """
    keys = _keys()
    card = keys.get(_key(name))
    if card is None:
        near = difflib.get_close_matches(_key(name), keys, n=5, cutoff=0.5)
        raise UnknownGpu(name, tuple(dict.fromkeys(keys[k].name for k in near)))
    return card


@cache
def _keys() -> Mapping[str, Card]:
    return {_key(name): card for card in cards() for name in (card.name, *card.aliases)}


def _key(name: str) -> str:
    """A name without what people leave out: ``NVIDIA GeForce RTX 3080 Ti`` and ``3080ti`` are one."""
    return re.sub(r"nvidia|geforce|tesla|quadro|rtx|gpu|[^a-z0-9]", "", name.lower())


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "devices.toml").read_text())


def _limits(arch: str, row: Mapping[str, Any]) -> Limits:
    return Limits(
        arch,
        row["threads"],
        row["blocks"],
        row["shared_kib"] * KIB,
        row["block_shared_kib"] * KIB,
        tuple(n * KIB for n in row["carveouts_kib"]),
        row["fp32_lanes"],
        barriers=row.get("barriers", 0),
    )


def _card(row: Mapping[str, Any]) -> Card:
    documents = {name: Source(**source) for name, source in _table()["sources"].items()}
    exceptions = row.get("from", {})
    sources = {fact: documents[exceptions.get(fact, row["sheet"])] for fact in FACTS if fact in row}
    return Card(
        name=row["name"],
        aliases=tuple(row.get("aliases", ())),
        limits=architectures()[row["arch"]],
        **{fact: row.get(fact) for fact in FACTS},
        note=row.get("note", ""),
        sources=sources | {"limits": documents["cc"]},
    )


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch) or 0)
