"""Occupancy against NVIDIA's own calculator, compiled from the header in the CUDA runtime's wheel."""

from __future__ import annotations

import ctypes
import random
import subprocess
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path

import pytest

from onepass.analysis import occupancy as rules
from onepass.analysis.occupancy import Occupancy, cliffs, curve, resident
from onepass.device import Limits, architectures, find, limits_of
from onepass.runtime.hostcc import find_compiler

WHEELS = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")
# The order of the bits and of the figures that `nvidia` below gives back.
BITS = {"threads": 1, "registers": 2, "shared memory": 4, "blocks": 8, "barriers": 16}
CASES = 2000  # of each architecture

_SHIM = """
#include "cuda_occupancy.h"
extern "C" void nvidia(const int* d, const int* cases, int n, int* out) {
  cudaOccDeviceProp p;
  p.computeMajor = d[0]; p.computeMinor = d[1]; p.maxThreadsPerBlock = 1024; p.maxThreadsPerMultiprocessor = d[2];
  p.regsPerBlock = p.regsPerMultiprocessor = d[3]; p.warpSize = 32; p.sharedMemPerBlock = 49152;
  p.sharedMemPerMultiprocessor = d[4]; p.numSms = 1; p.sharedMemPerBlockOptin = d[5];
  p.reservedSharedMemPerBlock = d[6];
  for (int i = 0; i < n; ++i, cases += 6, out += 9) {
    cudaOccFuncAttributes f; cudaOccDeviceState s; cudaOccResult r;
    f.maxThreadsPerBlock = 1024; f.numRegs = cases[1]; f.sharedSizeBytes = cases[2];
    f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; f.maxDynamicSharedSizeBytes = cases[3];
    f.numBlockBarriers = cases[4]; s.carveoutConfig = cases[5];
    out[0] = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &f, &s, cases[0], cases[3]);
    out[1] = r.activeBlocksPerMultiprocessor; out[2] = r.limitingFactors; out[3] = r.blockLimitWarps;
    out[4] = r.blockLimitRegs; out[5] = r.blockLimitSharedMem; out[6] = r.blockLimitBlocks;
    out[7] = r.allocatedRegistersPerBlock; out[8] = (int)r.allocatedSharedMemPerBlock;
  }
}
"""

Case = tuple[int, int, int, int, int, int]  # threads, registers, static, dynamic, barriers, carve-out or -1


def header() -> Path:
    for wheel in WHEELS:
        try:
            files = distribution(wheel).files or []
        except (
            ModuleNotFoundError
        ):  # importlib.metadata's error for a package that is not there is one of these
            continue
        for file in files:
            if file.name == "cuda_occupancy.h":
                return Path(str(file.locate()))
    raise AssertionError(f"install one of {WHEELS}: the test extra has it")


@pytest.fixture(scope="module")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("occupancy")
    (folder / "shim.cpp").write_text(_SHIM)
    library = folder / "shim.so"
    command = [find_compiler().path, "-O1", "-w", "-shared", "-fPIC", f"-I{header().parent}"]
    subprocess.run([*command, str(folder / "shim.cpp"), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def theirs(library: ctypes.CDLL, limits: Limits, cases: list[Case]) -> list[tuple[int, ...]]:
    number = int(limits.arch.removeprefix("sm_"))
    device = (number // 10, number % 10, limits.threads, limits.registers, limits.shared_bytes)
    facts = (ctypes.c_int * 7)(*device, limits.block_shared_bytes, limits.reserved_shared_bytes)
    flat = (ctypes.c_int * (6 * len(cases)))(*(n for case in cases for n in case))
    out = (ctypes.c_int * (9 * len(cases)))()
    library.nvidia(facts, flat, len(cases), out)
    return [tuple(out[9 * i : 9 * i + 9]) for i in range(len(cases))]


def ours(limits: Limits, case: Case) -> tuple[int, ...]:
    threads, registers, static, dynamic, barriers, carveout = case
    found = resident(
        limits,
        threads,
        registers,
        static + dynamic,
        barriers=barriers,
        carveout_percent=None if carveout < 0 else carveout,
    )
    most = 2**31 - 1
    each = [found.allowed.get(name, most) for name in ("threads", "registers", "shared memory", "blocks")]  # type: ignore[call-overload]
    # NVIDIA's bits name what would bind if there were barriers enough, and the barriers beside it where they bind.
    rest = {name: n for name, n in found.allowed.items() if name != "barriers"}
    bits = sum(BITS[name] for name, n in rest.items() if n == min(rest.values()))
    bits += BITS["barriers"] * ("barriers" in found.binding)
    return (0, found.blocks, bits, *each, found.block_registers, found.block_shared_bytes)


def drawn(limits: Limits, count: int) -> list[Case]:
    """Any block and registers, half of them whole warps; shared memory none, static, dynamic or both, and too much."""
    draw = random.Random(limits.arch)
    cases: list[Case] = []
    for _ in range(count):
        threads = draw.choice((draw.randrange(1, 1057), 32 * draw.randrange(1, 33)))
        static = draw.choice((0, 0, draw.randrange(49153), 256 * draw.randrange(193)))
        dynamic = draw.choice((0, 0, draw.randrange(limits.block_shared_bytes + 4096)))
        carveout = draw.choice((-1, -1, draw.randrange(101)))
        cases.append((threads, draw.randrange(258), static, dynamic, draw.choice((0, 1, 1, 4, 16)), carveout))
    return cases


# From NVIDIA's header by another hand: threads, registers, shared bytes, architecture, blocks.
VECTORS = (
    (224, 92, 0, "sm_80", 2),
    (128, 85, 0, "sm_86", 5),
    (192, 40, 100000, "sm_90", 2),
    (256, 32, 20480, "sm_86", 4),
    (96, 64, 0, "sm_90", 10),
    (32, 16, 0, "sm_89", 24),
    (1024, 64, 0, "sm_89", 1),
    (800, 80, 0, "sm_90", 0),
)


def differences(library: ctypes.CDLL) -> tuple[int, list[str]]:
    compared, found = 0, []
    for limits in architectures().values():
        cases = drawn(limits, CASES)
        for case, want in zip(cases, theirs(library, limits, cases), strict=True):
            compared += 1
            if ours(limits, case) != want:
                found.append(f"{limits.arch} {case}: {ours(limits, case)}, NVIDIA {want}")
    return compared, found


def test_no_case_differs_from_nvidias_calculator(nvidia: ctypes.CDLL) -> None:
    """Blocks, what binds, each limit by itself, and what is handed out, for all architectures of the table."""
    compared, found = differences(nvidia)
    assert not found, found[:5]
    assert compared >= 20_000


@pytest.mark.parametrize("change", [("REGISTER_UNIT", 128), ("SCHEDULERS", 1), ("SCHEDULERS", 2)])
def test_a_wrong_rule_is_seen(
    nvidia: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, change: tuple[str, int]
) -> None:
    monkeypatch.setattr(rules, *change)
    assert differences(nvidia)[1]


@pytest.mark.parametrize("fact", ["blocks", "carveouts_bytes"])
@pytest.mark.parametrize("arch", list(architectures()))
def test_a_wrong_limit_in_the_table_is_seen(nvidia: ctypes.CDLL, arch: str, fact: str) -> None:
    """NVIDIA's header has these of its own; threads, shared memory and registers it is told."""
    limits = limits_of(arch)
    changed = {"blocks": limits.blocks - 8, "carveouts_bytes": limits.carveouts_bytes[-1:]}
    wrong = replace(limits, **{fact: changed[fact]})
    cases = [(32, 16, 0, 1024, 1, 10), *drawn(limits, 200)]
    assert any(ours(wrong, c) != want for c, want in zip(cases, theirs(nvidia, limits, cases), strict=True))


@pytest.mark.parametrize(("threads", "registers", "shared", "arch", "blocks"), VECTORS)
def test_vectors_confirmed_elsewhere(
    threads: int, registers: int, shared: int, arch: str, blocks: int
) -> None:
    assert resident(limits_of(arch), threads, registers, shared).blocks == blocks


def v100(threads: int, registers: int = 32, shared_bytes: int = 0) -> Occupancy:
    return resident(find("V100").limits, threads, registers, shared_bytes)


def test_a_block_of_one_thread_fills_warps_and_not_threads() -> None:
    one = v100(1)
    assert (one.blocks, one.thread_share, one.warp_share) == (32, 0.015625, 0.5)
    assert one.binding == ("blocks",)
    assert v100(256).thread_share == v100(256).warp_share == 1.0


def test_cliffs_are_the_nearest_steps() -> None:
    """Each stands where it is said to, and nothing changes on the way there."""
    draw = random.Random(3)
    for limits in architectures().values():
        for _ in range(20):
            now = resident(
                limits, draw.randrange(1, 1025), draw.randrange(16, 129), draw.randrange(0, 40000), barriers=1
            )
            for cliff in cliffs(now):
                value = getattr(now, cliff.resource)
                step = 1 if cliff.direction == "up" else -1
                asked = {r: getattr(now, r) for r in ("threads", "registers", "shared_bytes")}

                def warps(n: int, asked: dict[str, int] = asked, cliff: rules.Cliff = cliff) -> int:
                    return resident(limits, **asked | {cliff.resource: n}).warps  # noqa: B023

                assert (cliff.value - value) * step > 0
                assert warps(cliff.value) == cliff.then.warps != now.warps
                low, high = sorted((value, cliff.value - step))
                if cliff.resource == "threads":  # these go from one whole warp to the next
                    between = [
                        n
                        for n in range(32, 1025, 32)
                        if min(value, cliff.value) < n < max(value, cliff.value)
                    ]
                else:
                    between = [cliff.value - step, *(draw.randint(low, high) for _ in range(10))]
                assert all(warps(n) == now.warps for n in between)


def test_the_cliffs_of_a_known_case() -> None:
    """40 registers and 256 threads on a V100: 6 blocks. 32 registers fit 8, 41 to 48 fit 5."""
    now = v100(256, 40)
    assert (now.blocks, now.binding) == (6, ("registers",))
    steps = {(c.resource, c.direction): (c.value, c.then.blocks) for c in cliffs(now)}
    assert steps["registers", "down"] == (32, 8)
    assert steps["registers", "up"] == (41, 5)
    assert steps["shared_bytes", "up"] == (16385, 5)  # 96 KiB ÷ 6


def test_the_curve_over_block_sizes() -> None:
    points = curve(v100(256, 40))
    assert [p.threads for p in points] == list(range(32, 1025, 32))
    assert points[7] == v100(256, 40)
    assert max(p.warp_share for p in points) < 1  # 40 registers never fill a V100
