"""The CUDA prelude computes what it says, in the emulator."""

from __future__ import annotations

import struct
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import onepass.codegen
from harness.costs import errors
from harness.kernels import fill, map_text
from harness.math_reference import EXACT, TRANSCENDENTAL, arguments
from onepass.codegen.cuda_prelude import reduce_scratch_bytes
from onepass.emulate import EmulatedKernel, KernelSource, compile_for_host, compile_many
from onepass.errors import KernelFault

COSTS = tomllib.loads((Path(onepass.codegen.__file__).parent / "prelude" / "costs.toml").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


def run_map(
    expressions: list[str], x: torch.Tensor, z: torch.Tensor, folder: Path, arch: int = 90
) -> torch.Tensor:
    kernel = compile_for_host(map_text(expressions), "k", arch, folder)
    y = torch.full((len(expressions), x.numel()), 7.5)
    args = struct.pack("QQQq", x.data_ptr(), z.data_ptr(), y.data_ptr(), x.numel())
    kernel.launch(-(-x.numel() // 256), 256, 0, args, {"x": x, "z": z, "y": y})
    return y


# ---- math ----


def test_functions_are_as_exact_as_they_say(folder: Path) -> None:
    stated = {n: row.get("max_error") for n, row in COSTS.items()}
    wrong = {n: (e, at, stated[n]) for n, (e, at) in errors(folder).items() if not e <= stated[n]}
    assert not wrong


@pytest.mark.parametrize(
    ("name", "right", "broken"),
    [
        ("gelu_tanh_h", "-2.30220819f", "-2.3023f"),  # one coefficient off by 4e-5
        ("sin", "0x7f09d5f4u", "0x7f09d5f5u"),  # one bit of 1 / (2 pi)
        ("exp", "fmaf(x, log2e_low, fmaf(x, log2e, -p.n))", "fmaf(x, log2e, -p.n)"),  # one rounding term
        ("erf", "copysignf(big, x)", "big"),
    ],
)
def test_a_broken_function_shows(folder: Path, name: str, right: str, broken: str) -> None:
    error, _ = errors(folder, [name], (right, broken))[name]
    assert error > COSTS[name]["max_error"]


def test_nan_and_infinity_are_as_in_torch(folder: Path) -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 1e4, -1e4, 6e4, -6e4, 1e30, -1e30])
    names = [n + suffix for n in TRANSCENDENTAL for suffix in ("", "_h")]
    y = run_map([f"op_{n}(x)" for n in names], x, x, folder)
    functional = {
        "gelu_tanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
        "gelu_erf": torch.nn.functional.gelu,
        "silu": torch.nn.functional.silu,
        "softplus": torch.nn.functional.softplus,
        "recip": torch.reciprocal,
    }
    for name, row in zip(names, y, strict=True):
        base = name.removesuffix("_h")
        expected = functional.get(base, getattr(torch, base, None))(x)
        assert torch.equal(row.isnan(), expected.isnan()), name
        assert torch.equal(row.isinf() * row.sign(), expected.isinf() * expected.sign()), name


@pytest.mark.parametrize("arch", [75, 90])
def test_exact_functions_equal_torch(folder: Path, arch: int) -> None:
    x = arguments(1)
    z = x[torch.randperm(x.numel(), generator=torch.Generator().manual_seed(2))]
    z[::5] = x[::5]  # equal arguments too
    # Remainders against numpy, which calls the C library: torch's vectorised fmod fails for large quotients.
    with np.errstate(invalid="ignore"):
        fmod = torch.from_numpy(np.fmod(x.numpy(), z.numpy()))
    remainder = torch.where((fmod != 0) & ((fmod < 0) != (z < 0)), fmod + z, fmod)
    two = {"max": torch.maximum(x, z), "min": torch.minimum(x, z), "fmod": fmod, "remainder": remainder}
    unary = run_map([f"op_{n}(x)" for n in EXACT], x, z, folder, arch)
    for (name, reference), row in zip(EXACT.items(), unary, strict=True):
        assert torch.equal(row.nan_to_num(5.0), reference(x).nan_to_num(5.0)), name
        assert torch.equal(row.isnan(), reference(x).isnan()), name
    binary = run_map([f"op_{n}(x, z)" for n in two], x, z, folder, arch)
    for (name, expected), row in zip(two.items(), binary, strict=True):
        assert torch.equal(row.isnan(), expected.isnan()), name
        differs = (row != expected) & ~row.isnan()
        assert not differs.any(), (
            name,
            x[differs][:3],
            z[differs][:3],
            row[differs][:3],
            expected[differs][:3],
        )


def test_quotient_and_power(folder: Path) -> None:
    x, z = arguments(3).abs(), arguments(4)
    z = z[torch.randperm(z.numel(), generator=torch.Generator().manual_seed(5))]
    y = run_map(["op_div(x, z)", "op_div_h(x, z)", "op_pow(x, z)", "op_where(x < z, x, z)"], x, z, folder)
    # Denormal results lose digits: a few steps of the smallest number.
    for row, expected, bound in (
        (y[0], x.double() / z.double(), COSTS["div"]["max_error"]),
        (y[1], x.double() / z.double(), COSTS["div_h"]["max_error"]),
        (y[2], x.double() ** z.double(), 5e-7),
    ):
        as_float = expected.float().double()
        good = (row.double() - expected).abs() <= bound * expected.abs() + 2.0**-147
        edge = (expected.abs() > 3.402e38) & (expected.abs() < 3.403e38)
        same = (row.double() == as_float) | (row.isnan() & expected.isnan())
        assert (good | same | edge).all()
    assert torch.equal(y[3].nan_to_num(9.0), torch.where(x < z, x, z).nan_to_num(9.0))


# ---- types and vectors ----

CONVERT = r"""
struct Args { const float* x; @T* y; const @T* all; float* back; long long n; };
extern "C" __global__ void __launch_bounds__(256) k(const __grid_constant__ Args a) {
  const long long i = blockIdx.x * 256LL + threadIdx.x;
  if (i < a.n) {
    a.y[2 * i] = from_float<@T>(a.x[i]);
    float pair[2] = {a.x[i], a.x[a.n - 1 - i]};
    a.y[2 * i + 1] = pack<@T>(pair).get(1);
  }
  if (i < 65536) {
    a.back[2 * i] = to_float(a.all[i]);
    a.back[2 * i + 1] = element(load<plain, 2>(a.all + i / 2 * 2), i % 2);
  }
}
"""


@pytest.mark.parametrize("arch", [75, 90])
@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_sixteen_bit_floats_round_as_in_torch(folder: Path, name: str, dtype: torch.dtype, arch: int) -> None:
    kernel = compile_for_host(fill(CONVERT, T=name), "k", arch, folder)
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    halfway = torch.cat([every.float() * (1 + s * 2.0**-9) for s in (0, 1, -1, 0.5)])
    x = torch.cat([arguments(6), halfway, halfway.nextafter(torch.tensor(torch.inf))])
    y = torch.full((2 * x.numel(),), 3.0, dtype=dtype)
    back = torch.full((2 * 65536,), 3.0)
    args = struct.pack("QQQQq", *(t.data_ptr() for t in (x, y, every, back)), x.numel())
    kernel.launch(-(-x.numel() // 256), 256, 0, args, {"x": x, "y": y, "all": every, "back": back})

    def same(got: torch.Tensor, expected: torch.Tensor) -> bool:
        return torch.equal(got.isnan(), expected.isnan()) and torch.equal(
            got.nan_to_num(), expected.nan_to_num()
        )

    assert same(y[0::2], x.to(dtype))
    assert same(y[1::2], x.flip(0).to(dtype))
    assert same(back[0::2], every.float())
    assert same(back[1::2], every.float())


VECTOR = r"""
struct Args { const @T* x; @T* y; @T* z; float* f; long long n; };
// Copies by vectors, copies by elements, and the elements as float.
extern "C" __global__ void __launch_bounds__(64) k(const __grid_constant__ Args a) {
  const long long i = (blockIdx.x * 64LL + threadIdx.x) * @W;
  if (i >= a.n) return;
  const vec<@T, @W> v = load<@H, @W>(a.x + i);
  vec<@T, @W> u;
#pragma unroll
  for (int k = 0; k < @W; ++k) u.set(k, v.get(k));
  store<@S>(a.y + i, v);
  store<@S>(a.z + i, u);
  float f[@W];
  unpack(v, f);
#pragma unroll
  for (int k = 0; k < @W; ++k) a.f[i + k] = f[k];
}
"""
NUMPY = {
    "float": "f4",
    "double": "f8",
    "i64": "i8",
    "i32": "i4",
    "i16": "i2",
    "i8": "i1",
    "u8": "u1",
    "b8": "?",
}
# Every size of one access (1 to 16 bytes), two and four accesses, for every type.
VECTORS = [(t, w) for t, d in NUMPY.items() for w in (1, 2, 4, 8, 16) if np.dtype(d).itemsize * w <= 64]


def test_vectors_move_every_type_at_every_width(folder: Path) -> None:
    hints = [("stream", "stream"), ("cached", "plain"), ("plain", "stream")]
    cases = [(t, w, *hints[i % 3]) for i, (t, w) in enumerate(VECTORS)]
    texts = [KernelSource("k", fill(VECTOR, T=t, W=w, H=h, S=s)) for t, w, h, s in cases]
    rng = np.random.default_rng(0)
    for kernel, (name, width, _, _) in zip(compile_many(texts, cache_dir=folder), cases, strict=True):
        dtype = np.dtype(NUMPY[name])
        x = (rng.integers(0, 2, 256) if name == "b8" else rng.normal(0, 1e4, 256) % 127).astype(dtype)
        y, z, f = np.zeros_like(x), np.zeros_like(x), np.full(256, np.nan, np.float32)
        args = struct.pack("QQQQq", *(v.ctypes.data for v in (x, y, z, f)), 256)
        report = kernel.launch(4, 64, 0, args, {"x": x, "y": y, "z": z, "f": f})
        for got in (y, z, f):
            assert (got == x.astype(got.dtype)).all(), (name, width)
        size = width * dtype.itemsize
        assert report["x"].read_bytes == x.nbytes
        assert report["x"].reads == x.nbytes // min(size, 16), (
            "wide vectors are 16-byte accesses, others one access"
        )


# ---- reductions ----

REDUCE = r"""
struct Args { const float* x; float* y; };
// x: block x lanes; y: seven results x threads. Reductions follow each other, so scratch is reused.
extern "C" __global__ void __launch_bounds__(@T * @R) k(const __grid_constant__ Args a) {
  __shared__ float scratch[@T > 32 ? 2 * 2 * @R * @T / 32 : 1];
  groups<@T, @R, 2> g(scratch);
  const int n = @T * @R, t = threadIdx.x;
  const float x = a.x[t];
  a.y[t] = g.sum(x);
  a.y[n + t] = g.max(x);
  a.y[2 * n + t] = g.min(x);
  a.y[3 * n + t] = g.prod(1.0f + x * 1e-3f);
  float p = x, q = x * x;
  g.sum2(p, q);
  a.y[4 * n + t] = p;
  a.y[5 * n + t] = q;
  a.y[6 * n + t] = g.sum(x * 0.5f);
}
"""
GROUPS = [(t, max(1, 64 // t)) for t in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)] + [
    (64, 4),
    (128, 8),
    (512, 2),
]


@pytest.fixture(scope="module")
def reductions(folder: Path) -> list[EmulatedKernel]:
    return compile_many([KernelSource("k", fill(REDUCE, T=t, R=r)) for t, r in GROUPS], cache_dir=folder)


def tree_sum(x: np.ndarray) -> np.ndarray:
    """The documented tree over the last axis, in float32: halves are added in a warp, then over the warps."""

    def butterfly(v: np.ndarray) -> np.ndarray:
        while v.shape[-1] > 1:
            half = v.shape[-1] // 2
            v = v[..., :half] + v[..., half:]
        return v[..., 0]

    lanes = min(32, x.shape[-1])
    return butterfly(butterfly(x.reshape(*x.shape[:-1], -1, lanes)))


@pytest.mark.parametrize("index", range(len(GROUPS)), ids=lambda i: "{}x{}".format(*GROUPS[i]))
@pytest.mark.parametrize("order_seed", [0, 3])
def test_reductions(reductions: list[EmulatedKernel], index: int, order_seed: int) -> None:
    lanes, groups = GROUPS[index]
    n = lanes * groups
    x = np.random.default_rng(index).normal(0.5, 1, n).astype(np.float32)
    y = np.full((7, n), np.nan, np.float32)
    kernel = reductions[index]
    assert kernel.static_shared_bytes == reduce_scratch_bytes(lanes, groups, 2)
    report = kernel.launch(
        1, n, 0, struct.pack("QQ", x.ctypes.data, y.ctypes.data), {"x": x, "y": y}, order_seed
    )
    assert report.barriers == (6 if lanes > 32 else 0), "one barrier a reduction"
    rows = x.reshape(groups, lanes)
    sums = [tree_sum(rows), tree_sum(rows * rows), tree_sum(rows * np.float32(0.5))]
    expected = [sums[0], rows.max(1), rows.min(1), None, *sums]
    for got, want in zip(y.reshape(7, groups, lanes), expected, strict=True):
        assert (got == got[:, :1]).all(), "every lane has the same bits"
        if want is not None:
            assert (got[:, 0] == want).all(), "the tree is the documented one"
    exact = (1 + rows.astype(np.float64) * 1e-3).prod(1)
    assert np.allclose(y[3].reshape(groups, lanes)[:, 0], exact, rtol=lanes * 2**-23)


def test_reductions_keep_nan(reductions: list[EmulatedKernel]) -> None:
    for (lanes, groups), kernel in zip(GROUPS, reductions, strict=True):
        n = lanes * groups
        x = np.random.default_rng(1).normal(0, 1, n).astype(np.float32)
        x[n // 2] = np.nan  # in one group
        y = np.zeros((7, n), np.float32)
        kernel.launch(1, n, 0, struct.pack("QQ", x.ctypes.data, y.ctypes.data), {"x": x, "y": y})
        hit = np.arange(n) // lanes == (n // 2) // lanes
        assert (np.isnan(y) == hit).all()


def test_scratch_without_its_second_half_is_a_race(folder: Path) -> None:
    text = fill(REDUCE, T=128, R=1)
    assert "half ^= 1;" in text
    kernel = compile_for_host(text.replace("half ^= 1;", ""), "k", cache_dir=folder)
    x, y = np.ones(128, np.float32), np.zeros((7, 128), np.float32)
    with pytest.raises(KernelFault, match="shared-race"):
        kernel.launch(1, 128, 0, struct.pack("QQ", x.ctypes.data, y.ctypes.data), {"x": x, "y": y})
