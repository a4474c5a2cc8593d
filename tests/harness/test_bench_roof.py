"""The stream kernels do what a roof must: read all, write all."""

import itertools

import pytest
import torch

import roof
from cases import Point, cases
from onepass.insight import streams
from onepass.runtime.nvrtc import compile_cubin

CPU = torch.device("cpu")
MIXES = ["layer_norm", "swiglu", "add_rms_norm"]  # 1 read and 1 write, 2 and 1, 2 and 2


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("cols", [7, 1000, 16384])
def test_cpu_streams_write_what_they_read(name: str, cols: int) -> None:
    point = Point(cases()[name], "fp32", 33, cols)
    found = roof.roofs(point, CPU, 2)
    assert [r.name for r in found] == list(streams.CPU_STORES)
    for stream in found:
        assert stream.check() == ""
        assert abs(stream.bytes - (point.case.reads + point.case.writes) * point.tensor_bytes) < 64


def test_a_stream_that_stops_early_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    short = streams._CPU.replace("< a->n ?", "< a->n - 16 ?").replace(": a->n;", ": a->n - 16;")
    assert short != streams._CPU
    monkeypatch.setattr(streams, "_CPU", short)
    streams.cpu_kernel.cache_clear()
    try:
        (first, *_) = roof.roofs(Point(cases()["layer_norm"], "fp32", 33, 1000), CPU, 2)
        assert "something else" in first.check()
    finally:
        streams.cpu_kernel.cache_clear()


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(("reads", "writes"), [(1, 1), (2, 1), (2, 2)])
def test_cuda_streams_compile_without_spills(arch: str, reads: int, writes: int) -> None:
    for policy, store in itertools.product(streams.CUDA_POLICIES, streams.CUDA_STORES):
        for threads in streams.CUDA_THREADS:
            cubin = compile_cubin(streams.cuda_text(reads, writes, threads, policy, store), "roof", arch)
            assert cubin.resources.spill_bytes == 0
            assert cubin.resources.registers <= 32
