"""Launching CUDA kernels without a GPU: a driver that notes what it is asked for, in the place of NVIDIA's."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.oracle import capture
from harness.shipping import H200, planning_for
from onepass import build as pipeline
from onepass.build import Built
from onepass.capture import launch, runner
from onepass.capture.normalize import Captured
from onepass.capture.runner import Compiled, compile_runner
from onepass.codegen.emit import Source
from onepass.errors import DriverError
from onepass.runtime import allocate, launch_cuda
from onepass.runtime.counters import COUNTERS
from onepass.runtime.hostcc import compile_shared
from onepass.runtime.launch_cuda import CudaKernel

# Notes a launch's numbers and the first words of its block; answers with `codes`, one after the other, then with 0.
DRIVER = """
extern "C" {
long long noted[8 + 64], words, calls, entered;
int codes[4], answered;
int cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
  *library = (void*)1; return 0;
}
int cuLibraryGetKernel(void** function, void*, const char*) {
  static long long kernels;
  *function = (void*)++kernels;
  return 0;
}
int cuKernelSetAttribute(int, int, void*, int) { return 0; }
int cuDeviceGet(int* handle, int device) { *handle = device; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)(1000ll + device); return 0; }
int cuCtxSetCurrent(void* context) { entered = (long long)context; return 0; }
int cuGetErrorString(int, const char** text) { *text = "out of something"; return 0; }
struct Attribute { int id, pad; long long value[8]; };
struct Config { unsigned grid[3], block[3], shared; void* stream; Attribute* attributes; unsigned attribute_count; };
int cuLaunchKernelEx(const Config* c, void* function, void** pointers, void** extra) {
  long long begin = c->attribute_count ? c->attributes[0].id * 10 + c->attributes[0].value[0] : 0;
  long long numbers[8] = {(long long)function, c->grid[0], c->grid[1] * c->grid[2], begin, c->block[0], c->shared,
                          (long long)c->stream, (long long)extra};
  for (int i = 0; i < 8; i++) noted[i] = numbers[i];
  for (int i = 0; i < words; i++) noted[8 + i] = ((long long*)pointers[0])[i];
  calls++;
  return answered < 4 ? codes[answered++] : 0;
}
}
"""
STREAM = 5


class FakeDriver:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def number(self, name: str) -> Any:
        return ctypes.c_longlong.in_dll(self.library, name)

    def answer(self, *codes: int) -> None:
        """What launches return from now on; then 0."""
        (ctypes.c_int * 4).in_dll(self.library, "codes")[:] = (*codes, 0, 0, 0, 0)[:4]
        ctypes.c_int.in_dll(self.library, "answered").value = 0

    def noted(self, words: int, call: Callable[..., Any], *given: int) -> tuple[int, ...]:
        """The numbers of a call's launch and the words of its block; none if it launches nothing."""
        self.number("words").value, before = words, self.number("calls").value
        call(*given)
        launches = self.number("calls").value - before
        assert launches <= 1
        return tuple((ctypes.c_longlong * 72).in_dll(self.library, "noted")[: 8 + words]) if launches else ()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("driver") / "driver.so"
    compile_shared(DRIVER, path, name="driver")
    return ctypes.PyDLL(str(path))


@pytest.fixture
def driver(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Kernels go to the fake driver; cuda:0 is current and its stream is number 5."""
    made: dict[str, CudaKernel] = {}

    def kernel(source: Source, arch: str, threads: int, shared_bytes: int = 0) -> CudaKernel:
        new = CudaKernel(b"", source.name, threads, len(source.block), shared_bytes, "early")
        return made.setdefault(source.text, new)

    monkeypatch.setattr(launch_cuda, "driver", lambda: library)
    monkeypatch.setattr(launch, "cuda_kernel", kernel)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM, raising=False)
    fake = FakeDriver(library)
    fake.answer()
    return fake


def graph(f: Callable[..., Any], inputs: Sequence[Tensor]) -> Captured:
    with planning_for(H200):
        return capture(f, inputs, pipeline.fit)


def built(f: Callable[..., Any], *inputs: Tensor) -> Built:
    with planning_for(H200):
        (kernel,) = pipeline.build(graph(f, inputs).program, {}, run=False).kernels
    return kernel


KINDS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "flat": (lambda x, w: F.gelu(x) * w, (torch.ones(9, 512), torch.ones(512))),
    "flat, odd": (lambda x: F.gelu(x), (torch.ones(9, 511)[:, :509],)),
    "row-warp": (lambda x, w: F.rms_norm(x, (512,), w), (torch.ones(9, 512), torch.ones(512))),
    "row-block, bf16": (lambda x: F.softmax(x, -1), (torch.ones(9, 8192, dtype=torch.bfloat16),)),
    "row-serial": (lambda x: x.mean(1), (torch.ones(3, 50, 64).double(),)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_code_launches_what_python_does(kind: str, driver: FakeDriver) -> None:
    kernel = built(*(KINDS[kind][0], *KINDS[kind][1]))
    assert kernel.schedule.family == kind.split(",")[0]
    plan = launch.launch_plan(kernel)
    assert plan.at_once is not None
    fields = [f for f in kernel.source.block if f.kind != "extra"]
    words = len(kernel.source.block)
    launched = 0
    for rows in (0, 1, 7, 4096, 1 << 33):
        for extent in (1, 8, 1023, 1024):
            for step in (0, 2, 4, 16):  # bytes that addresses and strides are off by, one after the other
                for off in range(len(fields)):
                    values = [(1 << 40) + 64 * i for i in range(len(fields))]
                    values[off] += step
                    before = COUNTERS.launched
                    expected = driver.noted(words, plan.call, rows, extent, *values)
                    between = COUNTERS.launched
                    found = driver.noted(words, plan.at_once, STREAM, rows, extent, *values)
                    assert found == expected
                    assert COUNTERS.launched - between == between - before == bool(expected)
                    launched += bool(expected)
    assert launched > 100


def test_a_wrong_grid_is_noticed(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number of a grid, changed, makes the test above fail."""
    right = launch._grid
    for kind, change in (
        ("row-warp", {"per_block": 3}),
        ("row-warp", {"aligned_only": False}),
        ("flat", {"width": 2}),
        ("flat", {"extras": "wide"}),
        ("row-serial", {"of": "rows"}),
    ):
        monkeypatch.setattr(launch, "_grid", lambda s, change=change: replace(right(s), **change))
        with pytest.raises(AssertionError):
            test_compiled_code_launches_what_python_does(kind, driver)


def test_sizes_that_are_no_numbers_are_type_errors(driver: FakeDriver) -> None:
    plan = launch.launch_plan(built(*(KINDS["row-warp"][0], *KINDS["row-warp"][1])))
    assert plan.at_once is not None
    with pytest.raises(TypeError, match="rows, extent"):
        plan.at_once(STREAM, 1, 512)
    with pytest.raises(TypeError):
        plan.at_once(STREAM, 1, 512, *["text"] * 30)


def test_an_error_of_the_driver_is_told_with_its_name(driver: FakeDriver) -> None:
    kernel = built(*(KINDS["row-warp"][0], *KINDS["row-warp"][1]))
    plan = launch.launch_plan(kernel)
    values = [1 << 40] * sum(f.kind != "extra" for f in kernel.source.block)
    driver.answer(2, 2)  # to compiled code, and to Python, which asks again to tell what is wrong
    with pytest.raises(DriverError, match=f"cuLaunchKernelEx.{kernel.source.name}.*out of something"):
        plan.at_once(STREAM, 9, 512, *values)  # type: ignore[misc]


def test_a_thread_without_a_context_gets_pytorchs(driver: FakeDriver) -> None:
    kernel = built(*(KINDS["row-warp"][0], *KINDS["row-warp"][1]))
    plan = launch.launch_plan(kernel)
    values = [1 << 40] * sum(f.kind != "extra" for f in kernel.source.block)
    driver.number("entered").value = 0
    driver.answer(201, 201)
    plan.at_once(STREAM, 9, 512, *values)  # type: ignore[misc]
    assert driver.number("entered").value == 1000
    driver.answer(201, 201, 201)  # a context that stays wrong is no endless loop
    with pytest.raises(DriverError):
        plan.at_once(STREAM, 9, 512, *values)  # type: ignore[misc]


def test_without_a_compiler_python_launches(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_cuda, "launcher", lambda: None)
    plan = launch.launch_plan(built(*(KINDS["row-warp"][0], *KINDS["row-warp"][1])))
    assert plan.at_once is None


# A whole run's text


def program(
    monkeypatch: pytest.MonkeyPatch, f: Callable[..., Any], inputs: Sequence[Tensor], devices: Sequence[str]
) -> Compiled:
    """A program whose kernels are said to be on some devices; its memory is the host's."""
    captured = graph(f, inputs)
    with planning_for(H200):
        plan = pipeline.build(captured.program, {}, fuel=0, run=False)
    items = []
    for item in plan.items:
        if isinstance(item, Built):
            device = devices[len(items) % len(devices)]
            item = replace(item, cluster=replace(item.cluster, device=device))
        items.append(item)
    on_host = lambda device: allocate.dispatched(torch.device("cpu"))  # noqa: E731
    monkeypatch.setattr(runner, "allocator", on_host)
    monkeypatch.setattr(runner, "dispatched", on_host)
    return compile_runner(replace(plan, items=tuple(items)), captured)


def test_a_run_makes_its_gpu_the_current_one(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]

    class device:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            self.before, current[0] = current[0], self.index

        def __exit__(self, *_: Any) -> None:
            current[0] = self.before

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0])
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 40 + index)
    x = torch.ones(4, 64)
    compiled = program(monkeypatch, lambda x: (x + 1, x * 2), (x,), ["cuda:1"])
    assert compiled.text.count("current_stream(1)") == 1
    seen = []
    given = compiled.scope[compiled.launchers[-1]]
    compiled.scope[compiled.launchers[-1]] = lambda stream, *rest: (
        seen.append((stream, current[0])),
        given(stream, *rest),
    )
    compiled.run([x])
    assert seen == [(41, 1)]
    assert current == [0]


def test_a_run_on_whichever_gpu_is_current_is_noticed(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = runner._Writer.on_gpu
    monkeypatch.setattr(runner._Writer, "on_gpu", lambda self: lines(self)[2:])
    with pytest.raises(AssertionError):
        test_a_run_makes_its_gpu_the_current_one(driver, monkeypatch)


def test_kernels_of_two_gpus_are_each_launched_on_their_own(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []
    monkeypatch.setattr(torch.cuda, "device", lambda index: entered.append(index) or nullcontext())
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: entered[-1] if entered else 0)
    x = torch.ones(4, 64)
    compiled = program(monkeypatch, lambda x: (x + 1, x * 2), (x,), ["cuda:0", "cuda:1"])
    assert "stream" not in compiled.text
    compiled.run([x])
    assert entered == [1]


def test_threads_launch_at_once(driver: FakeDriver) -> None:
    kernel = built(*(KINDS["row-warp"][0], *KINDS["row-warp"][1]))
    plan = launch.launch_plan(kernel)
    values = [1 << 40] * sum(f.kind != "extra" for f in kernel.source.block)
    before, calls = COUNTERS.launched, driver.number("calls").value

    def work() -> None:
        for _ in range(200):
            plan.at_once(STREAM, 9, 512, *values)  # type: ignore[misc]

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert COUNTERS.launched - before == driver.number("calls").value - calls == 800


@pytest.mark.parametrize(("begin", "noted"), [("after", 0), ("early", 61), ("together", 21)])
def test_a_launch_says_when_its_grid_begins(begin: launch_cuda.Begin, noted: int, driver: FakeDriver) -> None:
    """In the driver's numbers, times ten, and the value 1."""
    kernel = CudaKernel(b"", "kernel", 128, 3, 1024, begin)
    found = driver.noted(3, kernel, 7, 0, (1, 2, 3))
    assert found[1:] == (7, 1, noted, 128, 1024, STREAM, 0, 1, 2, 3)
    at_once = kernel.at_once(launch_cuda.Grid(1, "rows"), 3, (), lambda *values: None)
    assert at_once is not None
    assert driver.noted(3, at_once, STREAM, 7, 1, 1, 2, 3) == found


def test_grids_begin_early_where_graphs_and_the_chip_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_cuda, "driver_version", lambda: 12030)
    assert [launch_cuda.may_begin_early(a) for a in ("sm_80", "sm_90", "sm_120")] == [False, True, True]
    monkeypatch.setattr(launch_cuda, "driver_version", lambda: 12020)
    assert not launch_cuda.may_begin_early("sm_90")
