"""Launching CPU kernels: threads, ranges, scratch, several callers."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from onepass.runtime import launch_cpu
from onepass.runtime.cache import DiskCache
from onepass.runtime.launch_cpu import CpuKernel, Threads, load_kernel, torch_threads

# Writes, for each item, the range it was done in and how its scratch was aligned.
SOURCE = """
struct Args { long long* begin; long long* end; long long* misaligned; long long scratch_words; };
extern "C" void ranges(const Args* a, long long begin, long long end, void* scratch) {
  long long* s = (long long*)scratch;
  for (long long i = 0; i < a->scratch_words; i++) s[i] = begin;
  for (long long i = begin; i < end; i++) {
    a->begin[i] = a->scratch_words ? s[a->scratch_words - 1] : begin;
    a->end[i] = end;
    a->misaligned[i] = (long long)scratch & 63;
  }
}
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> CpuKernel:
    return load_kernel(SOURCE, "ranges", cache=DiskCache(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def run(kernel: CpuKernel, outer: int, item_bytes: int, words: int = 0) -> tuple[torch.Tensor, ...]:
    out = torch.full((3, max(outer, 1)), -1)
    args = struct.pack("4q", *(t.data_ptr() for t in out), words)
    assert kernel.run(args, outer, item_bytes, 8 * words) is None
    return tuple(out[:, :outer])


def pieces(begin: torch.Tensor) -> int:
    return len(begin.unique())


def test_pytorch_s_own_openmp_runtime_is_used(kernel: CpuKernel) -> None:
    assert torch_threads().reason is None
    with open("/proc/self/maps") as f:
        runtimes = {line.split()[-1] for line in f if "libgomp" in line or "libiomp" in line}
    assert len(runtimes) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_torch_s_thread_count_is_honoured(
    count: int, kernel: CpuKernel, threads: Callable[[int], None]
) -> None:
    threads(count)
    begin, end, _ = run(kernel, 1000, 1 << 20)
    assert pieces(begin) == count
    assert begin.unique().tolist() == [1000 * i // count for i in range(count)]
    assert end.unique().tolist() == [1000 * (i + 1) // count for i in range(count)]


def test_small_work_stays_on_the_calling_thread(kernel: CpuKernel, threads: Callable[[int], None]) -> None:
    threads(4)
    grain = launch_cpu.GRAIN_BYTES
    assert pieces(run(kernel, 100, 2 * grain // 100 - 1)[0]) == 1
    assert pieces(run(kernel, 128, 2 * grain // 128)[0]) == 2
    assert pieces(run(kernel, 3, 100 * grain)[0]) == 3


@pytest.mark.parametrize("outer", [0, 1, 2, 7])
def test_every_item_is_done_once(outer: int, kernel: CpuKernel) -> None:
    begin, end, _ = run(kernel, outer, 1 << 22)
    item = torch.arange(outer)
    assert ((begin <= item) & (item < end)).all()


@pytest.mark.parametrize("words", [1, 1000, launch_cpu.GRAIN_BYTES // 8, 1 << 20])
def test_each_thread_has_aligned_scratch_of_its_own(
    words: int, kernel: CpuKernel, threads: Callable[[int], None]
) -> None:
    threads(3)
    begin, _, misaligned = run(kernel, 30, 1 << 20, words)
    assert begin.unique().tolist() == [0, 10, 20]
    assert (misaligned == 0).all()


def test_no_memory_for_scratch_is_a_memory_error(kernel: CpuKernel) -> None:
    with pytest.raises(MemoryError):
        kernel.run(bytes(32), 1, 1 << 20, 1 << 60)


def test_wrong_arguments_are_type_errors(kernel: CpuKernel) -> None:
    with pytest.raises(TypeError):
        kernel.run(bytes(32), 1, 1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        kernel.run("text", 1, 1, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        kernel.run(bytes(32), 1.5, 1, 0)  # type: ignore[arg-type]


def test_without_an_openmp_runtime_calls_run_on_one_thread(
    kernel: CpuKernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(launch_cpu, "torch_threads", lambda: Threads(0, 0, 0, 0, "none found"))
    serial = load_kernel(SOURCE, "ranges", cache=DiskCache(tmp_path))
    begin, _, _ = run(serial, 1000, 1 << 20)
    assert pieces(begin) == 1


def test_the_reason_is_recorded_when_no_runtime_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_cpu.torch, "__file__", "/nowhere/torch/__init__.py")
    found = torch_threads.__wrapped__()
    assert found.parallel == 0
    assert "one thread" in (found.reason or "")


def test_python_threads_call_one_kernel_at_once(kernel: CpuKernel) -> None:
    results: list[bool] = []

    def work(outer: int) -> None:
        ok = True
        for _ in range(50):
            begin, end, _ = run(kernel, outer, 1 << 20, words=64)
            item = torch.arange(outer)
            ok = ok and bool(((begin <= item) & (item < end)).all())
        results.append(ok)

    callers = [threading.Thread(target=work, args=(100 + i,)) for i in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert results == [True] * 4


def test_the_interpreter_is_free_while_a_large_call_runs(kernel: CpuKernel) -> None:
    seen = []
    flag = torch.zeros(1, dtype=torch.int64)
    spin = load_kernel(
        """
        struct Args { volatile long long* flag; };
        extern "C" void spin(const Args* a, long long, long long, void*) { while (!*a->flag) {} }
        """,
        "spin",
        cache=DiskCache(Path(kernel.entry.path).parents[2]),
    )
    caller = threading.Thread(target=lambda: spin.run(struct.pack("q", flag.data_ptr()), 1, 1 << 20, 0))
    caller.start()
    seen.append(caller.is_alive())  # reached only if the call let go of the interpreter
    flag[0] = 1
    caller.join(timeout=10)
    assert seen == [True]
    assert not caller.is_alive()


def test_a_forked_child_can_run_serial_kernels(kernel: CpuKernel) -> None:
    child = os.fork()
    if child == 0:
        begin, _, _ = run(kernel, 10, 8)
        os._exit(0 if pieces(begin) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
