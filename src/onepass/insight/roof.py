"""The measured roof: fixed stream kernels with given numbers of read and write streams, the best of which counts.

They do nothing but move memory: every read stream is combined (xor on CUDA, + on the CPU) and every write stream
gets the result. They are small on purpose, and a change to them changes every figure that refers to them.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from onepass.codegen.cpu_prelude import cpu_prelude
from onepass.runtime.cache import open_cache
from onepass.runtime.launch_cpu import CpuKernel, load_kernel
from onepass.runtime.launch_cuda import CudaKernel
from onepass.runtime.nvrtc import compile_cubin
from onepass.runtime.timer import Call

# The best on an H200 (2026-11-30) of 4 kinds of load × 5 of store × 3 block sizes, one 16-byte vector a thread: 4293 GB/s
# for 1 read and 1 write, 4442 for 2 and 1, 4290 for 2 and 2. Without lines that L2 keeps 4240, 4394, 4203. The best
# block size differs from mix to mix.
CUDA_POLICIES = ("L2::evict_last", "L2::evict_normal")
CUDA_STORES = ("st.global.cs", "st.global.L1::no_allocate")
CUDA_THREADS = (128, 256, 1024)

# Stores past the caches win for tensors beyond the last cache, plain ones below.
CPU_STORES = ("stream", "store")
# Floats of each stream in one piece of work: 64 KiB, so that threads share evenly and a piece is long for its start.
CPU_PIECE = 16384

_CUDA = r"""
struct alignas(16) quad { unsigned x, y, z, w; };
static __device__ __forceinline__ quad load(const quad* p) {
  quad r;
#if __CUDA_ARCH__ >= 800
  unsigned long long policy;
  asm("createpolicy.fractional.%(policy)s.b64 %%0;" : "=l"(policy));
  asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%%0, %%1, %%2, %%3}, [%%4], %%5;"
      : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p), "l"(policy));
#else
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%%0, %%1, %%2, %%3}, [%%4];"
      : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
#endif
  return r;
}
static __device__ __forceinline__ void store(quad* p, quad v) {
  asm volatile("%(store)s.v4.u32 [%%0], {%%1, %%2, %%3, %%4};"
               :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
struct Args { const quad* in[%(reads)d]; quad* out[%(writes)d]; long long n; };
extern "C" __global__ void __launch_bounds__(%(threads)d) roof(const __grid_constant__ Args a) {
  const long long i = (long long)blockIdx.x * %(threads)d + threadIdx.x;
  if (i >= a.n) return;
  quad v[%(reads)d];
#pragma unroll
  for (int j = 0; j < %(reads)d; ++j) v[j] = load(a.in[j] + i);
  quad s = v[0];
#pragma unroll
  for (int j = 1; j < %(reads)d; ++j) { s.x ^= v[j].x; s.y ^= v[j].y; s.z ^= v[j].z; s.w ^= v[j].w; }
#pragma unroll
  for (int j = 0; j < %(writes)d; ++j) store(a.out[j] + i, s);
}
"""

_CPU = """
struct Args { const float* in[%(reads)d]; float* out[%(writes)d]; i64 n; };
extern "C" void roof(const Args* a, i64 begin, i64 end, void*) {
  const i64 last = end * %(piece)d < a->n ? end * %(piece)d : a->n;
  i64 i = begin * %(piece)d;
  for (; i + 64 <= last; i += 64)
    for (int k = 0; k < 64; k += 16) {
      vf s = load(a->in[0] + i + k);
      for (int j = 1; j < %(reads)d; ++j) s = s + load(a->in[j] + i + k);
      for (int j = 0; j < %(writes)d; ++j) %(store)s(a->out[j] + i + k, s);
    }
  for (; i < last; ++i) {
    float s = a->in[0][i];
    for (int j = 1; j < %(reads)d; ++j) s += a->in[j][i];
    for (int j = 0; j < %(writes)d; ++j) a->out[j][i] = s;
  }
}
"""


@dataclass(frozen=True)
class Roof:
    """One stream kernel on its own buffers. ``bytes`` is what a call moves."""

    name: str
    call: Call
    bytes: int
    check: Callable[[], str]


def roofs(reads: int, writes: int, stream_bytes: int, device: torch.device, sets: int) -> list[Roof]:
    """The stream kernels of a mix, each stream of so many bytes, on random buffers: `sets` of the inputs."""
    make = _cuda if device.type == "cuda" else _cpu
    return make(reads, writes, stream_bytes, device, sets)


def _cuda(reads: int, writes: int, stream_bytes: int, device: torch.device, sets: int) -> list[Roof]:
    streams = _Streams(reads, writes, stream_bytes, device, sets, torch.int32)
    vectors = streams.numel // 4
    index = device.index or 0
    found = []
    for threads, policy, store in itertools.product(CUDA_THREADS, CUDA_POLICIES, CUDA_STORES):
        kernel = cuda_kernel(reads, writes, threads, policy, store, _arch(device))
        blocks = -(-vectors // threads)

        def call(i: int, kernel: CudaKernel = kernel, blocks: int = blocks) -> Any:
            kernel(blocks, index, (*streams.addresses(i), vectors))
            return streams.outputs[i]

        name = f"{policy} {store} × {threads}"
        found.append(Roof(name, call, streams.bytes, streams.checker(call)))
    return found


def _cpu(reads: int, writes: int, stream_bytes: int, device: torch.device, sets: int) -> list[Roof]:
    streams = _Streams(reads, writes, stream_bytes, device, sets, torch.float32)
    pieces = -(-streams.numel // CPU_PIECE)
    piece_bytes = 4 * CPU_PIECE * (reads + writes)
    pack = struct.Struct(f"{reads + writes + 1}q").pack
    found = []
    for store in CPU_STORES:
        kernel = cpu_kernel(reads, writes, store)

        def call(i: int, kernel: CpuKernel = kernel) -> Any:
            kernel.run(pack(*streams.addresses(i), streams.numel), pieces, piece_bytes, 0)
            return streams.outputs[i]

        found.append(Roof(store, call, streams.bytes, streams.checker(call)))
    return found


@cache
def cuda_kernel(reads: int, writes: int, threads: int, policy: str, store: str, arch: str) -> CudaKernel:
    """The stream kernel of one mix, block size, policy of loads and kind of store, loaded."""
    text = cuda_text(reads, writes, threads, policy, store)
    return CudaKernel(compile_cubin(text, "roof", arch).code, "roof", threads, reads + writes + 1)


def cuda_text(reads: int, writes: int, threads: int, policy: str, store: str) -> str:
    return _CUDA % {"reads": reads, "writes": writes, "threads": threads, "policy": policy, "store": store}


@cache
def cpu_kernel(reads: int, writes: int, store: str) -> CpuKernel:
    """The same for the CPU, compiled by the host's compiler and run over PyTorch's threads."""
    text = _CPU % {"reads": reads, "writes": writes, "store": store, "piece": CPU_PIECE}
    return load_kernel(cpu_prelude() + text, "roof", cache=open_cache())


def _arch(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


class _Streams:
    """`sets` of random inputs and of outputs."""

    def __init__(
        self, reads: int, writes: int, stream_bytes: int, device: torch.device, sets: int, dtype: torch.dtype
    ) -> None:
        self.numel = max(4, stream_bytes // 4 // 4 * 4)
        self.bytes = (reads + writes) * self.numel * 4
        generator = torch.Generator(device).manual_seed(1)
        random = [
            [torch.randn(self.numel, device=device, generator=generator) for _ in range(reads)]
            for _ in range(sets)
        ]
        self.inputs = [[t.view(dtype) for t in one] for one in random]
        self.outputs = [[torch.empty_like(one[0]) for _ in range(writes)] for one in self.inputs]
        both = zip(self.inputs, self.outputs, strict=True)
        self.pointers = [tuple(t.data_ptr() for t in (*one, *out)) for one, out in both]

    def addresses(self, index: int) -> tuple[int, ...]:
        return self.pointers[index]

    def checker(self, call: Call) -> Callable[[], str]:
        def check() -> str:
            for out in self.outputs[0]:
                out.view(torch.float32).fill_(torch.nan)
            call(0)
            want = self.combined()
            wrong = [out for out in self.outputs[0] if not torch.equal(out, want)]
            return "a stream kernel wrote something else than its inputs combined" if wrong else ""

        return check

    def combined(self) -> Tensor:
        total = self.inputs[0][0].clone()
        for tensor in self.inputs[0][1:]:
            total = total ^ tensor if total.dtype is torch.int32 else total + tensor
        return total
