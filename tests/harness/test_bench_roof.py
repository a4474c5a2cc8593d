"""The stream kernels do what a roof must: read all, write all."""

import itertools

import pytest
import torch

from cases import Point, cases
from onepass.insight import roof
from onepass.runtime.nvrtc import compile_cubin
from roof import roofs

CPU = torch.device("cpu")
MIXES = ["layer_norm", "swiglu", "add_rms_norm"]  # 1 read and 1 write, 2 and 1, 2 and 2


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("cols", [7, 1000, 16384])
def test_cpu_streams_write_what_they_read(name: str, cols: int) -> None:
    point = Point(cases()[name], "fp32", 33, cols)
    found = roofs(point, CPU, 2)
    assert [r.name for r in found] == list(roof.CPU_STORES)
    for stream in found:
        assert stream.check() == ""
        assert abs(stream.bytes - (point.case.reads + point.case.writes) * point.tensor_bytes) < 64


def test_a_stream_that_stops_early_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    short = roof._CPU.replace("< a->n ?", "< a->n - 16 ?").replace(": a->n;", ": a->n - 16;")
    assert short != roof._CPU
    monkeypatch.setattr(roof, "_CPU", short)
    roof.cpu_kernel.cache_clear()
    try:
        (first, *_) = roofs(Point(cases()["layer_norm"], "fp32", 33, 1000), CPU, 2)
        assert "something else" in first.check()
    finally:
        roof.cpu_kernel.cache_clear()


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(("reads", "writes"), [(1, 1), (2, 1), (2, 2)])
def test_cuda_streams_compile_without_spills(arch: str, reads: int, writes: int) -> None:
    for policy, store in itertools.product(roof.CUDA_POLICIES, roof.CUDA_STORES):
        for threads in roof.CUDA_THREADS:
            cubin = compile_cubin(roof.cuda_text(reads, writes, threads, policy, store), "roof", arch)
            assert cubin.resources.spill_bytes == 0
            assert cubin.resources.registers <= 32
