"""Measured roofs: what is measured is what is said, it is kept, and what is damaged is not believed."""

from __future__ import annotations

import json
import re
import struct
import subprocess
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from onepass.codegen.cpu_prelude import cpu_prelude
from onepass.emulate import Buffer, KernelSource, compile_many
from onepass.insight import calibrate as roofs
from onepass.insight import roof as streams
from onepass.insight.calibrate import calibrate
from onepass.runtime.cache import open_cache
from onepass.runtime.calibration import Calibration, MemoryRoof, keep, kept, path_of, roofs_of
from onepass.runtime.launch_cpu import load_kernel
from onepass.runtime.nvrtc import compile_cubin

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def found() -> Calibration:
    return calibrate(CPU, rounds=5, stream_bytes=48 << 20, mixes=((1, 1),))


def test_the_memory_roof_has_its_spread(found: Calibration) -> None:
    assert 0 < found.memory[0].low_gbps <= found.memory[0].gbps <= found.memory[0].high_gbps


def test_a_roof_is_the_best_kernel_s_bytes_over_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stream kernels of 1 MB, of 100 and 50 µs in the median: 20 GB/s, the slower one's time nowhere in it."""
    kernels = [streams.Roof(name, lambda index: None, 1_000_000, lambda: "") for name in ("slow", "quick")]
    times = {"slow": [100.0, 90.0, 110.0], "quick": [50.0, 40.0, 62.5]}
    monkeypatch.setattr(roofs, "roofs", lambda *given: kernels)
    monkeypatch.setattr(roofs, "cold", lambda *given: times)
    found = roofs._memory(1, 1, 1 << 19, CPU, 3)
    assert (found.gbps, found.kernel) == (20.0, "quick")
    assert found.low_gbps == pytest.approx(1000 / 56.25) and found.high_gbps == pytest.approx(1000 / 45)


@pytest.mark.parametrize("threads", [1, 2, 12, 48, 96])
def test_each_thread_has_as_much_arithmetic(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    ran: list[int] = []
    monkeypatch.setattr(
        roofs,
        "load_kernel",
        lambda *given, **more: SimpleNamespace(run=lambda a, items, *r: ran.append(items)),
    )
    call, operations = roofs._cpu_fma(CPU, 4)
    call(0)
    (items,) = ran
    assert items % threads == 0
    assert operations == 2 * 16 * 4 * roofs._CPU_ROUNDS * items


def test_the_arithmetic_roof_is_possible(found: Calibration) -> None:
    """Above one multiply-add a cycle of 1 GHz, below two of 16 lanes at 6 GHz on each thread."""
    assert 2 < found.fp32_gflops < 2 * 2 * 16 * 6 * torch.get_num_threads()
    assert 0 < found.launch_us < 1000


@pytest.mark.parametrize("chains", roofs.CHAINS["cpu"])
def test_each_chain_makes_each_of_its_steps(chains: int) -> None:
    """2 s + 1, r times, of s = k is 2^r (k + 1) - 1: a step too few or too many would show."""
    kernel = load_kernel(cpu_prelude() + roofs.fma_text(chains), "fma_roof", cache=open_cache())
    x = torch.zeros(32)
    x[0], x[1] = 2.0, 1.0
    kernel.run(struct.pack("2q", x.data_ptr(), 5), 1, 64, 0)
    want = sum(32 * (k + 1) - 1 for k in range(chains))
    assert x[16:].tolist() == [want] * 16


def disassembled(code: bytes, folder: Path) -> str:
    (folder / "k.cubin").write_bytes(code)
    files = distribution("nvidia-cuda-nvdisasm").files or []
    program = next(str(f.locate()) for f in files if f.name == "nvdisasm")
    return subprocess.run(
        [program, str(folder / "k.cubin")], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("chains", roofs.CHAINS["cuda"])
def test_the_gpus_loop_is_multiply_adds(arch: str, chains: int, tmp_path: Path) -> None:
    """16 rounds of all chains in the loop's machine code, none folded away."""
    cubin = compile_cubin(roofs._CUDA_FMA % {"chains": chains}, "fma_roof", arch)
    assert cubin.resources.spill_bytes == 0
    count = len(re.findall(r"\bFFMA2?\b", disassembled(cubin.code, tmp_path)))
    assert count >= 16 * chains and count % (16 * chains) == 0


def test_the_gpus_chains_make_each_of_their_steps() -> None:
    """s + 1, 16 times a round, from k on: emulated, the sum that nobody would see stored where it can be read."""
    hidden = "if (t == -1.0f) a.x[2] = t;"
    texts = [roofs._CUDA_FMA % {"chains": n} for n in roofs.CHAINS["cuda"]]
    shown = [text.replace(hidden, "if (threadIdx.x == 0) a.x[2] = t;") for text in texts]
    assert all(hidden in text for text in texts)
    kernels = compile_many([KernelSource("fma_roof", text) for text in (*texts, *shown)])
    for n, quiet, loud in zip(roofs.CHAINS["cuda"], kernels[:3], kernels[3:], strict=True):
        for kernel, want in ((quiet, 0.0), (loud, n * (n - 1) / 2 + 3 * 16 * n)):
            x = torch.tensor([1.0, 1.0, 0.0])
            arguments = struct.pack("2q", x.data_ptr(), 3)
            kernel.launch(1, roofs.FMA_THREADS, 0, arguments, [Buffer.of("x", x)], 0)
            assert x[2].item() == want


def test_empty_kernels_compile() -> None:
    assert compile_cubin(roofs._CUDA_NOTHING, "nothing", "sm_90").resources.registers <= 8


def test_the_chase_waits_for_each_address() -> None:
    """One load in the loop, into the register that addresses the next: nothing to be asked for ahead."""
    resources = compile_cubin(roofs._CUDA_CHASE, "chase", "sm_90").resources
    assert resources.spill_bytes == 0 and resources.registers < 32


# Kept

SAMPLE = Calibration(
    "NVIDIA Test 1",
    "cuda",
    "sm_90",
    (
        MemoryRoof(1, 1, 4300.0, 4290.0, 4310.0, "a"),
        MemoryRoof(2, 1, 4400.0, 4390.0, 4410.0, "b"),
        MemoryRoof(2, 2, 4250.0, 4200.0, 4290.0, "c"),
    ),
    60000.0,
    1.5,
    2.25,
    0.5,
    3.0,
    512 << 20,
    15,
    "torch",
    "2026-11-30",
)


@pytest.mark.parametrize(
    "damage",
    [
        {"memory": []},
        {"fp32_gflops": 0},
        {"fp32_gflops": None},
        {"start_us": None},
        {"wait_us": float("nan")},
        {"launch_us": -1.0},
        {"device": "a card elsewhere"},
    ],
    ids=str,
)
def test_a_rate_that_is_none_is_not_believed(folder: Path, damage: dict[str, Any]) -> None:
    """A build takes its rates from here: it must not fail for what a file holds."""
    keep(SAMPLE)
    assert kept(SAMPLE.device) is not None
    path_of(SAMPLE.device).write_text(json.dumps({**SAMPLE.to_dict(), **damage}))
    assert kept(SAMPLE.device) is None


def test_a_disturbed_machine_is_told() -> None:
    assert not SAMPLE.disturbed
    wide = replace(SAMPLE.memory[0], low_gbps=3000.0)
    assert replace(SAMPLE, memory=(wide, *SAMPLE.memory[1:])).disturbed


def test_what_is_kept_comes_back(folder: Path) -> None:
    assert kept(SAMPLE.device) is None
    path = keep(SAMPLE)
    assert path == folder / "calibration" / "NVIDIA-Test-1.json"
    assert kept(SAMPLE.device) == SAMPLE
    assert json.loads(path.read_text())["schema"] == "onepass.calibrate/1"


@pytest.mark.parametrize(
    "text", ["", "{}", '{"schema": "onepass.calibrate/0"}', "[1]", '{"schema": "onepass.calibrate/1"}']
)
def test_what_is_damaged_is_not_believed(folder: Path, text: str) -> None:
    keep(SAMPLE)
    path_of(SAMPLE.device).write_text(text)
    assert kept(SAMPLE.device) is None


def test_the_roof_that_a_roofline_takes() -> None:
    roof = SAMPLE.roof
    assert (roof.kind, roof.bandwidth_gbps, roof.peak_gflops) == ("measured", 4400.0, 60000.0)
    assert roof.mix_gbps(0.7) == 4400.0 and SAMPLE.date in roof.source


def test_the_roofs_that_are_known(folder: Path) -> None:
    assert [r.kind for r in roofs_of("NVIDIA H200")] == ["datasheet"]
    assert roofs_of(SAMPLE.device) == ()
    keep(SAMPLE)
    assert roofs_of(SAMPLE.device) == (SAMPLE.roof,)
    keep(replace(SAMPLE, device="NVIDIA H200"))
    assert [r.kind for r in roofs_of("NVIDIA H200")] == ["datasheet", "measured"]


def test_a_stream_kernel_that_is_wrong_is_no_roof(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = streams._CPU.replace("s = s + load", "s = s - load")
    assert wrong != streams._CPU
    monkeypatch.setattr(streams, "_CPU", wrong)
    streams.cpu_kernel.cache_clear()
    try:
        with pytest.raises(AssertionError, match="something else"):
            calibrate(CPU, rounds=3, stream_bytes=1 << 16, mixes=((2, 1),))
    finally:
        streams.cpu_kernel.cache_clear()


def test_a_name_makes_one_file() -> None:
    assert path_of("a/../b c").name == "a-b-c.json"
    assert path_of(SAMPLE.device) != path_of(replace(SAMPLE, device="NVIDIA Test 2").device)
