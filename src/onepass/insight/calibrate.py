"""Measure the present machine's roofs, and keep them: memory by number of streams, fp32 arithmetic, starting a kernel.

A datasheet's figures are out of reach, by how much differs from machine to machine; reports hold kernels against these.
"""

from __future__ import annotations

import os
import platform
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch

from onepass import device as devices
from onepass.capture.backend import Backend
from onepass.codegen.cpu_prelude import cpu_prelude
from onepass.insight.roof import roofs
from onepass.plan.predict import predicted_us
from onepass.runtime.cache import open_cache
from onepass.runtime.calibration import Calibration, MemoryRoof, present
from onepass.runtime.launch_cpu import load_kernel
from onepass.runtime.launch_cuda import CudaKernel
from onepass.runtime.nvrtc import compile_cubin
from onepass.runtime.timer import (
    MOST_IN_GRAPH,
    Spread,
    captured,
    cold,
    in_graphs,
    keep_allocator_warm,
    sets_needed,
)

# Streams read and written: a copy; a residual add; three inputs; a fused add and norm; dropout with a mask.
MIXES = ((1, 1), (2, 1), (3, 1), (2, 2), (1, 2))
ROUNDS = 15

# Several times the largest last cache there is (126 MiB, a B200), and long enough that starting does not show.
CUDA_STREAM_BYTES = 512 << 20
CPU_STREAM_BYTES = 64 << 20
# Of the memory that is free, what all buffers of a mix may take together.
MOST_OF_FREE = 0.5


def calibrate(
    device: torch.device,
    *,
    rounds: int = ROUNDS,
    stream_bytes: int | None = None,
    mixes: tuple[tuple[int, int], ...] = MIXES,
    progress: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Measure a device's roofs: about a minute.

    ``stream_bytes`` is the size of each stream; by default far beyond the last cache, less where memory is short.
    """
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        return _calibrate(device, rounds, stream_bytes, mixes, progress)


def _calibrate(
    device: torch.device,
    rounds: int,
    stream_bytes: int | None,
    mixes: tuple[tuple[int, int], ...],
    progress: Callable[[str], None],
) -> Calibration:
    if device.type == "cpu":
        keep_allocator_warm()
    size = stream_bytes or _stream_bytes(device)
    memory = []
    for reads, writes in mixes:
        progress(f"memory: {reads} read and {writes} write streams of {size / 2**20:.0f} MiB")
        memory.append(_memory(reads, writes, size, device, rounds))
    progress("fp32 multiply-adds, and starting a kernel")
    gflops = max(_gflops(device, chains, rounds) for chains in CHAINS[device.type])
    launch_us, host_us = _launch(device, rounds)
    found = Calibration(
        present(device),
        device.type,
        arch_of(device) if device.type == "cuda" else platform.machine(),
        tuple(memory),
        gflops,
        launch_us,
        launch_us if device.type == "cpu" else 0.0,
        0.0 if device.type == "cpu" else _wait(device, rounds),
        host_us,
        size,
        rounds,
        _machine(device),
        datetime.now(UTC).strftime("%Y-%m-%d"),
    )
    return found if device.type == "cpu" else replace(found, start_us=_start(device, rounds, found))


def _stream_bytes(device: torch.device) -> int:
    most = max(reads + writes for reads, writes in MIXES)
    if device.type == "cuda":
        free, wanted = torch.cuda.mem_get_info(device)[0], CUDA_STREAM_BYTES
    else:
        free, wanted = _free_memory(), max(CPU_STREAM_BYTES, devices.last_cache_bytes())
    return int(min(wanted, MOST_OF_FREE * free / (2 * most))) & -4096


def _free_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 4 << 30


def _memory(reads: int, writes: int, size: int, device: torch.device, rounds: int) -> MemoryRoof:
    sets = sets_needed((reads + writes) * size, device)
    found = roofs(reads, writes, size, device, sets)
    for roof in found:
        wrong = roof.check()
        if wrong:
            raise AssertionError(f"{roof.name}: {wrong}")
    times = {
        name: Spread.of(us)
        for name, us in cold({r.name: r.call for r in found}, sets, rounds, device).items()
    }
    best = min(found, key=lambda r: times[r.name].median)
    us = times[best.name]
    low, median, high = (best.bytes / t / 1000 for t in (us.high, us.median, us.low))
    return MemoryRoof(reads, writes, median, low, high, best.name)


# fp32: chains of multiply-adds that depend on nothing but themselves, as many as hide the latency of one. How many that
# is differs from processor to processor, and more than fit in its registers are slower: the best of these counts.
CHAINS = {"cuda": (4, 8, 16), "cpu": (4, 6, 8, 12)}
FMA_THREADS = 256
FMA_BLOCKS = 32  # for each multiprocessor: several waves, so that the last one does not show

_CUDA_FMA = r"""
struct Args { float* x; long long rounds; };
extern "C" __global__ void __launch_bounds__(256) fma_roof(const __grid_constant__ Args a) {
  float s[%(chains)d];
  const float m = a.x[0], c = a.x[1];
#pragma unroll
  for (int k = 0; k < %(chains)d; ++k) s[k] = m * (threadIdx.x + k);
  for (long long i = 0; i < a.rounds; ++i) {
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int k = 0; k < %(chains)d; ++k) s[k] = fmaf(s[k], m, c);
  }
  float t = 0;
#pragma unroll
  for (int k = 0; k < %(chains)d; ++k) t += s[k];
  if (t == -1.0f) a.x[2] = t;
}
"""

_CPU_FMA = """
struct Args { float* x; i64 rounds; };
extern "C" void fma_roof(const Args* a, i64 begin, i64 end, void*) {
  const vf m(a->x[0]), c(a->x[1]);
  for (i64 item = begin; item < end; ++item) {
    vf %(names)s;
    for (i64 i = 0; i < a->rounds; ++i) { %(steps)s }
    store(a->x + 16 * (item + 1), %(sum)s);
  }
}
"""
_VECTOR = 16  # floats of a `vf`
_CPU_ROUNDS, _CUDA_ROUNDS = 20_000, 256
_ITEMS_A_THREAD = 16


def _gflops(device: torch.device, chains: int, rounds: int) -> float:
    """What one number of chains reaches."""
    call, operations = (_cuda_fma if device.type == "cuda" else _cpu_fma)(device, chains)
    samples = cold({"fma": call}, 2, rounds, device)["fma"]
    return operations / statistics.median(samples) / 1000


def _cuda_fma(device: torch.device, chains: int) -> tuple[Callable[[int], Any], int]:
    code = compile_cubin(_CUDA_FMA % {"chains": chains}, "fma_roof", arch_of(device)).code
    kernel = CudaKernel(code, "fma_roof", FMA_THREADS, 2)
    x = torch.tensor([0.5, 0.25, 0.0], device=device)
    blocks = FMA_BLOCKS * torch.cuda.get_device_properties(device).multi_processor_count

    def call(_: int) -> Any:
        kernel(blocks, device.index or 0, (x.data_ptr(), _CUDA_ROUNDS))
        return x

    return call, 2 * 16 * chains * _CUDA_ROUNDS * blocks * FMA_THREADS


def fma_text(chains: int) -> str:
    """The CPU's kernel with so many chains."""
    names = [f"s{k}" for k in range(chains)]
    return _CPU_FMA % {
        "names": ", ".join(f"{n}({k}.0f)" for k, n in enumerate(names)),
        "steps": " ".join(f"{n} = op_fma({n}, m, c);" for n in names),
        "sum": " + ".join(names),
    }


def _cpu_fma(device: torch.device, chains: int) -> tuple[Callable[[int], Any], int]:
    kernel = load_kernel(cpu_prelude() + fma_text(chains), "fma_roof", cache=open_cache())
    items = _ITEMS_A_THREAD * torch.get_num_threads()  # a whole number for each, or the last ones would wait
    x = torch.zeros(_VECTOR * (items + 1))
    x[0], x[1] = 0.5, 0.25
    arguments = struct.pack("2q", x.data_ptr(), _CPU_ROUNDS)

    def call(_: int) -> Any:
        kernel.run(arguments, items, 1 << 20, 0)  # so many bytes an item that all threads take part
        return x

    return call, 2 * _VECTOR * chains * _CPU_ROUNDS * items


# Starting

_CUDA_NOTHING = (
    'struct Args { long long n; }; extern "C" __global__ void nothing(const __grid_constant__ Args a) {}'
)
_CPU_NOTHING = 'extern "C" void nothing(const void*, i64, i64, void*) {}'
_STARTS = 1000


def _launch(device: torch.device, rounds: int) -> tuple[float, float]:
    """µs of an empty kernel on the device, and of starting one on the host."""
    call = _cuda_nothing(device) if device.type == "cuda" else _cpu_nothing()
    host = min(_host_us(call, device) for _ in range(5))
    if device.type == "cpu":
        return host, host
    samples = in_graphs({"nothing": captured(call, 512)}, rounds, device)["nothing"]
    return statistics.median(samples), host


# One wave on the smallest device there is, and so many of them that none is in a cache.
_START_SHAPE = (64, 1024)


def _start(device: torch.device, rounds: int, found: Calibration) -> float:
    """µs of a small generated kernel beyond what its bytes and its arithmetic take by the rates found so far."""
    inputs = [torch.randn(_START_SHAPE, device=device) for _ in range(MOST_IN_GRAPH)]
    backend = Backend(whole="relu", keep=True)
    compiled = torch.compile(torch.relu, backend=backend, dynamic=False)
    with torch.no_grad():
        compiled(inputs[0])
        graph = captured(lambda i: compiled(inputs[i]), len(inputs))
        samples = in_graphs({"relu": graph}, rounds, device)["relu"]
    (built,) = (k for program in backend.compiled for k in program.plan.kernels)
    rates = found.rates(built.device)
    return statistics.median(samples) - predicted_us(
        built.kernel, built.schedule, built.traffic, built.device, rates, {}, built.resources
    )


_CUDA_CHASE = r"""
struct Args { const long long* next; long long* last; long long steps; };
extern "C" __global__ void chase(const __grid_constant__ Args a) {
  long long at = a.last[0];
  for (long long i = 0; i < a.steps; ++i) at = a.next[at];
  a.last[0] = at;
}
"""
_CHASED_BYTES = 1 << 30
_CHASE_STEP_BYTES = 8192 + 128  # another line of another page of memory each time
_CHASE_STEPS = 2000


def _wait(device: torch.device, rounds: int) -> float:
    """µs from asking memory to having it: one thread that asks for the next address of a chain, of lines in no cache."""
    size = min(_CHASED_BYTES, int(MOST_OF_FREE * torch.cuda.mem_get_info(device)[0]) // 4) // 8
    following = (torch.arange(size, device=device) + _CHASE_STEP_BYTES // 8) % size
    last = torch.zeros(1, device=device, dtype=torch.int64)
    kernel = CudaKernel(compile_cubin(_CUDA_CHASE, "chase", arch_of(device)).code, "chase", 1, 3)

    def call(_: int) -> Any:
        kernel(1, device.index or 0, (following.data_ptr(), last.data_ptr(), _CHASE_STEPS))
        return last

    return statistics.median(cold({"chase": call}, 2, rounds, device)["chase"]) / _CHASE_STEPS


def _host_us(call: Callable[[int], Any], device: torch.device) -> float:
    for _ in range(10):
        call(0)
    _finish(device)
    start = time.perf_counter()
    for _ in range(_STARTS):
        call(0)
    us = (time.perf_counter() - start) * 1e6 / _STARTS
    _finish(device)
    return us


def _cuda_nothing(device: torch.device) -> Callable[[int], Any]:
    kernel = CudaKernel(compile_cubin(_CUDA_NOTHING, "nothing", arch_of(device)).code, "nothing", 32, 1)
    return lambda _: kernel(1, device.index or 0, (0,))


def _cpu_nothing() -> Callable[[int], Any]:
    kernel = load_kernel(cpu_prelude() + _CPU_NOTHING, "nothing", cache=open_cache())
    return lambda _: kernel.run(b"", 1, 1, 0)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def arch_of(device: torch.device) -> str:
    """``sm_90``, as the driver says."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _machine(device: torch.device) -> str:
    return ", ".join(_facts(device))


def _facts(device: torch.device) -> Iterator[str]:
    yield f"torch {torch.__version__}"
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        yield f"CUDA {torch.version.cuda}"
        yield f"{properties.multi_processor_count} multiprocessors"
        yield f"L2 {properties.L2_cache_size / 2**20:g} MiB"
    else:
        yield f"{torch.get_num_threads()} threads"
        yield f"last cache {devices.last_cache_bytes() / 2**20:g} MiB"
