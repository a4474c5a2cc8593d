"""CUDA C++ on the CPU: right results for a right kernel, and each planted fault found in its place."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.kernels import fill, layer_norm
from onepass.emulate import EmulatedKernel, KernelSource, compile_for_host, compile_many
from onepass.errors import CompileError, KernelFault

STORAGE = {"float": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

# dtype, cols, lanes, groups, width: lanes within a warp and across warps; one and several groups; a last
# vector that some lanes do not have; widths of 16 bytes, of 32 (two accesses) and of 2 (one element).
SHAPES = [
    ("bf16", 1024, 128, 2, 8),
    ("bf16", 256, 32, 4, 8),
    ("f16", 1000, 64, 4, 8),
    ("float", 96, 16, 4, 4),
    ("float", 760, 32, 1, 8),
    ("bf16", 33, 8, 16, 1),
    ("float", 8192, 1024, 1, 4),
]
ROWS = 37


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture(scope="module")
def kernels(folder: Path) -> list[EmulatedKernel]:
    return compile_many([KernelSource("layer_norm", layer_norm(*s)) for s in SHAPES], cache_dir=folder)


def run_layer_norm(kernel: EmulatedKernel, shape: tuple, seed: int, order_seed: int = 0):
    dtype, cols, lanes, groups, _ = shape
    torch.manual_seed(seed)
    x = (torch.randn(ROWS, cols) + 3).to(STORAGE[dtype])  # a mean far from 0 shows an unmasked lane
    w, b = torch.randn(cols), torch.randn(cols)
    y = torch.full_like(x, float("nan"))
    args = struct.pack("QQQQqd", *(t.data_ptr() for t in (x, w, b, y)), ROWS, 1e-5)
    report = kernel.launch(
        -(-ROWS // groups), lanes * groups, 0, args, {"x": x, "w": w, "b": b, "y": y}, order_seed
    )
    reference = torch.nn.functional.layer_norm(x.double(), (cols,), w.double(), b.double(), 1e-5)
    return x, w, b, y, reference, report


def error_in_bounds(y: torch.Tensor, reference: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> float:
    """Largest error as a share of what it may be; NaN counts as infinite.

    The final cast may round by half an ulp. Before it, |x| <= 8 and a deviation near 1 make mean, deviation,
    scale and shift each err by about one 2^-24 of 8 |w| + |b|: six such steps.
    """
    bound = torch.finfo(y.dtype).eps / 2 * reference.abs() + 6 * 2.0**-24 * (8 * w.abs() + b.abs()) + 2.0**-25
    return float(torch.nan_to_num((y.double() - reference).abs() / bound, nan=float("inf")).max())


@pytest.mark.parametrize("index", range(len(SHAPES)), ids=lambda i: "-".join(map(str, SHAPES[i])))
def test_layer_norm_matches_float64(kernels: list[EmulatedKernel], index: int) -> None:
    shape = SHAPES[index]
    x, w, b, y, reference, report = run_layer_norm(kernels[index], shape, index)
    assert error_in_bounds(y, reference, w, b) <= 1
    # Bytes: x read once, y written once.
    assert report["x"].read_bytes == x.numel() * x.element_size()
    assert report["y"].written_bytes == y.numel() * y.element_size()
    assert report["y"].read_bytes == report["x"].written_bytes == 0


def test_order_of_blocks_and_lanes_does_not_matter(kernels: list[EmulatedKernel]) -> None:
    runs = [run_layer_norm(kernels[0], SHAPES[0], 5, order)[3] for order in (0, 1, 2, 3)]
    assert all(torch.equal(runs[0], r) for r in runs[1:])


def test_a_kernel_that_drops_one_element_is_wrong(folder: Path) -> None:
    text = layer_norm(*SHAPES[0]).replace(
        "sum += element(x_r[v], i)", "if (lane || i) sum += element(x_r[v], i)"
    )
    kernel = compile_for_host(text, "layer_norm", cache_dir=folder)
    _, w, b, y, reference, _ = run_layer_norm(kernel, SHAPES[0], 0)
    assert error_in_bounds(y, reference, w, b) > 1


def test_a_row_of_nan_stays_nan_and_alone(kernels: list[EmulatedKernel]) -> None:
    shape = SHAPES[0]
    x = torch.randn(4, shape[1]).bfloat16()
    x[1, 7], x[2, 3] = float("nan"), float("inf")
    w, b, y = torch.ones(shape[1]), torch.zeros(shape[1]), torch.zeros_like(x)
    args = struct.pack("QQQQqd", *(t.data_ptr() for t in (x, w, b, y)), 4, 1e-5)
    kernels[0].launch(2, 256, 0, args, {"x": x, "w": w, "b": b, "y": y})
    assert torch.equal(y.isnan(), torch.nn.functional.layer_norm(x.float(), (shape[1],)).isnan())


# Each text below is right except for one thing.
ONE_BUFFER = r"""
struct Args { float* x; long long n; };
extern "C" __global__ void __launch_bounds__(64) k(const __grid_constant__ Args a) {
"""
FAULTS: dict[str, tuple[str, str, str]] = {  # name: (fault, body, text of the faulty line)
    "reads one past the end": (
        "out-of-bounds",
        "float v = a.x[threadIdx.x + 1];\na.x[threadIdx.x] = v;",
        "threadIdx.x + 1",
    ),
    "writes before the start": ("out-of-bounds", "a.x[(int)threadIdx.x - 1] = 1.0f;", "- 1"),
    "wide load past the end": (
        "out-of-bounds",
        "auto v = load<plain, 4>(a.x + 4 * threadIdx.x);\nif (v.w[0] == 1) a.x[0] = 0;",
        "piece<16>::load",
    ),
    "null pointer": ("out-of-bounds", "((float*)0)[threadIdx.x] = 1.0f;", "((float*)0)"),
    "16 bytes at a 4-byte address": (
        "misaligned",
        "store<stream>(a.x + 1, load<plain, 4>(a.x));",
        "piece<16>::store",
    ),
    "float at an odd address": ("misaligned", "*(float*)((char*)a.x + 2) = 1.0f;", "+ 2"),
    "barrier in a branch": (
        "barrier-divergence",
        "if (threadIdx.x < 40)\n__syncthreads();\na.x[0] = 1;\n__syncthreads();",
        "__syncthreads",
    ),
    "two barriers that never meet": (
        "barrier-divergence",
        "if (threadIdx.x < 32) { __syncthreads(); a.x[0] = 1; }\nelse {\n__syncthreads(); a.x[1] = 2; }",
        "__syncthreads",
    ),
    "shuffle in a branch": (
        "missing-lane",
        "if (threadIdx.x % 32 < 16) a.x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);\n__syncthreads();",
        "__shfl_xor",
    ),
    "shuffle by a lane not in its mask": (
        "missing-lane",
        "a.x[threadIdx.x] = __shfl_xor_sync(0xffffu, 1.0f, 1);",
        "__shfl_xor",
    ),
    "shuffle from a lane not in the mask": (
        "missing-lane",
        "if (threadIdx.x % 32 < 16) a.x[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 20);",
        "__shfl_sync",
    ),
    "shuffle from a lane that has returned": (
        "missing-lane",
        "if (threadIdx.x % 32 >= 20) return;\na.x[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 20);",
        "__shfl_sync",
    ),
    "lanes at different shuffles": (
        "warp-divergence",
        "float v = threadIdx.x;\nif (threadIdx.x % 2) v = 2 * __shfl_xor_sync(0xffffffffu, v, 2);\n"
        "else v = __shfl_xor_sync(0xffffffffu, v + 1, 4);\na.x[threadIdx.x] = v;",
        "__shfl_xor",
    ),
    "shared memory never written": (
        "unwritten-shared",
        "__shared__ float s[64];\nif (threadIdx.x < 63) s[threadIdx.x] = 1;\n__syncthreads();\n"
        "a.x[threadIdx.x] = s[threadIdx.x];",
        "a.x[threadIdx.x] = s",
    ),
    "no barrier before the read": (
        "shared-race",
        "__shared__ float s[64];\ns[threadIdx.x] = 1;\nif (threadIdx.x >= 32) a.x[0] = s[threadIdx.x - 32];",
        "- 32]",
    ),
    "no barrier, and the writer comes later": (
        "unwritten-shared",
        "__shared__ float s[64];\ns[threadIdx.x] = 1;\na.x[threadIdx.x] = s[threadIdx.x ^ 32];",
        "^ 32]",
    ),
    "no barrier before the next write": (
        "shared-race",
        "__shared__ float s[64];\ns[threadIdx.x] = 1;\n__syncthreads();\nfloat v = s[threadIdx.x ^ 32];\n"
        "s[threadIdx.x] = 2;\na.x[threadIdx.x] = v;",
        "s[",
    ),
    "two threads write one element": (
        "shared-race",
        "__shared__ float s[64];\ns[threadIdx.x / 2] = threadIdx.x;\n__syncthreads();\na.x[0] = s[0];",
        "s[threadIdx.x / 2]",
    ),
    "read-only load of what it writes": (
        "read-only-load-of-written",
        "auto v = load<stream, 1>(a.x + threadIdx.x);\nstore<stream>(a.x + threadIdx.x, v);",
        "piece<B>::template",
    ),
    "a loop without end": (
        "too-many-accesses",
        "for (long long i = 0; i < 1LL << 60; i += a.n)\na.x[i % 64] = i;",
        "a.x[i % 64]",
    ),
    "a trap": ("trap", "if (blockIdx.x == 0 && threadIdx.x == 3) __trap();", "__trap"),
    "past the dynamic shared memory": (
        "out-of-bounds",
        "extern __shared__ float s[];\ns[threadIdx.x + 1] = 1;\n__syncthreads();\na.x[threadIdx.x] = s[1];",
        "threadIdx.x + 1] = 1",
    ),
}


@pytest.fixture(scope="module")
def broken(folder: Path) -> dict[str, tuple[EmulatedKernel, str]]:
    texts = {n: fill(ONE_BUFFER + body + "\n}") for n, (_, body, _) in FAULTS.items()}
    built = compile_many([KernelSource("k", t) for t in texts.values()], cache_dir=folder)
    return {n: (k, texts[n]) for n, k in zip(texts, built, strict=True)}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found(broken: dict[str, tuple[EmulatedKernel, str]], name: str) -> None:
    kind, _, faulty = FAULTS[name]
    kernel, _ = broken[name]
    x = np.random.default_rng(0).random(64, dtype=np.float32)
    with pytest.raises(KernelFault) as caught:
        kernel.launch(1, 64, 256, struct.pack("Qq", x.ctypes.data, 64), {"x": x}, max_accesses=10_000)
    assert caught.value.kind == kind, str(caught.value)
    assert any(faulty in text for _, text in caught.value.lines), str(caught.value)
    assert "thread (" in str(caught.value)
    assert caught.value.hint


def test_a_read_only_buffer_is_not_written(folder: Path) -> None:
    kernel = compile_for_host(fill(ONE_BUFFER + "a.x[threadIdx.x] = 1;}"), "k", cache_dir=folder)
    x = np.zeros(64, np.float32)
    args = struct.pack("Qq", x.ctypes.data, 64)
    kernel.launch(1, 64, 0, args, {"x": x})
    assert (x == 1).all()
    x.flags.writeable = False
    with pytest.raises(KernelFault, match="write-to-read-only"):
        kernel.launch(1, 64, 0, args, {"x": x})


def test_a_module_runs_on_after_a_fault(broken: dict[str, tuple[EmulatedKernel, str]]) -> None:
    kernel, _ = broken["barrier in a branch"]
    x = np.zeros(64, np.float32)
    kernel.launch(1, 32, 0, struct.pack("Qq", x.ctypes.data, 64), {"x": x})  # 32 threads all pass
    with pytest.raises(KernelFault):
        kernel.launch(1, 64, 0, struct.pack("Qq", x.ctypes.data, 64), {"x": x})


def test_collectives(folder: Path) -> None:
    """Every collective against its definition, with a partial mask and widths below a warp."""
    text = fill(r"""
    struct Args { int* out; double* d; };
    extern "C" __global__ void __launch_bounds__(64) k(const __grid_constant__ Args a) {
      const int t = threadIdx.x, lane = t % 32;
      int* o = a.out + t * 8;
      o[0] = __shfl_up_sync(0xffffffffu, t, 3, 8);
      o[1] = __shfl_down_sync(0xffffffffu, t, 3, 16);
      o[2] = __shfl_sync(0xffffffffu, t, 5, 8);
      o[3] = (int)__ballot_sync(0xffffffffu, t % 3 == 0);
      o[4] = -1;
      if (lane < 16) o[4] = __shfl_xor_sync(0xffffu, t, 8);
      else o[4] = __shfl_xor_sync(0xffff0000u, t, 4);
      o[5] = __any_sync(0xffffffffu, t == 40);
      o[6] = __all_sync(0xffffffffu, t < 40);
      a.d[t] = __shfl_xor_sync(0xffffffffu, t + 0.5, 1);
      o[7] = atomicAdd(a.out + 64 * 8, 2);
    }""")
    kernel = compile_for_host(text, "k", cache_dir=folder)
    out, d = np.zeros(64 * 8 + 1, np.int32), np.zeros(64)
    kernel.launch(1, 64, 0, struct.pack("QQ", out.ctypes.data, d.ctypes.data), {"out": out, "d": d})
    t, o = np.arange(64), out[:-1].reshape(64, 8).T
    assert (o[0] == np.where(t % 8 >= 3, t - 3, t)).all()
    assert (o[1] == np.where(t % 16 + 3 < 16, t + 3, t)).all()
    assert (o[2] == t // 8 * 8 + 5).all()
    votes = (t % 3 == 0).reshape(2, 32)
    assert (
        o[3].view(np.uint32).reshape(2, 32) == (votes * (1 << np.arange(32, dtype=np.uint64))).sum(1)[:, None]
    ).all()
    assert (o[4] == np.where(t % 32 < 16, t ^ 8, t ^ 4)).all()
    assert (o[5] == (t >= 32)).all()
    assert (o[6] == (t < 32)).all()
    assert (d == (t ^ 1) + 0.5).all()
    assert out[-1] == 128
    assert sorted(o[7]) == list(range(0, 128, 2))


TICKET = r"""
struct Args { const float* x; float* partial; float* out; int* ticket; };
// x: grid x 64; partial: grid. The block that draws the last ticket adds the partials in their order.
extern "C" __global__ void __launch_bounds__(64) k(const __grid_constant__ Args a) {
  __shared__ float scratch[4];
  __shared__ int last;
  groups<64, 1> g(scratch);
  const float sum = g.sum(a.x[blockIdx.x * 64 + threadIdx.x]);
  if (threadIdx.x == 0) {
    store<plain>(a.partial + blockIdx.x, pack<float>({sum}));
    __threadfence();
    last = atomicAdd(a.ticket, 1) == (int)gridDim.x - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x) return;
  float total = 0.0f;
  for (int b = 0; b < gridDim.x; ++b) total += load<plain, 1>(a.partial + b).get(0);
  *a.out = total;
}
"""


def test_the_last_block_finishes_whatever_the_order(folder: Path) -> None:
    kernel = compile_for_host(fill(TICKET), "k", cache_dir=folder)
    x = np.random.default_rng(0).normal(1, 1, (40, 64)).astype(np.float32)
    totals = set()
    for seed in range(5):
        partial, out, ticket = np.full(40, np.nan, "f4"), np.full(1, np.nan, "f4"), np.zeros(1, "i4")
        buffers = {"x": x, "partial": partial, "out": out, "ticket": ticket}
        kernel.launch(
            40, 64, 0, struct.pack("QQQQ", *(b.ctypes.data for b in buffers.values())), buffers, seed
        )
        totals.add(float(out[0]))
    assert len(totals) == 1
    assert abs(totals.pop() - x.astype(np.float64).sum()) < 2560 * 2**-20


def test_compile_errors_name_the_line(folder: Path) -> None:
    text = 'extern "C" __global__ void k(int n) {\n  undeclared = n;\n}'
    with pytest.raises(CompileError, match=r"k\.cu:2.*undeclared") as caught:
        compile_for_host(text, "k", cache_dir=folder)
    assert (caught.value.kernel, caught.value.lines) == ("k", (2,))


def test_objects_are_cached_by_content(folder: Path) -> None:
    text = fill(ONE_BUFFER + "a.x[threadIdx.x] = 3;}")
    compile_for_host(text, "k", cache_dir=folder)
    before = {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    compile_for_host(text, "k", cache_dir=folder)
    assert before == {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    compile_for_host(text.replace("= 3", "= 4"), "k", cache_dir=folder)
    assert len(list(folder.iterdir())) == len(before) + 1
