"""Hand-written CPU kernels, in the shape the generator prints, against float64 PyTorch."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from onepass.codegen.cpu_prelude import cpu_prelude
from onepass.runtime.cache import DiskCache
from onepass.runtime.launch_cpu import CpuKernel, load_kernel

ARGS = (
    "struct Args { const T* x; const T* r; const T* g; const T* b; T* y; i64 cols; i64 past; double eps; };\n"
)
PACK = struct.Struct("7qd")
STORAGE = {torch.float32: "float", torch.bfloat16: "bf16", torch.float16: "f16"}

ROWS = """
extern "C" void %s(const Args* a, long long begin, long long end, void* scratch) {
  const i64 cols = a->cols;
  const bool past = a->past && can_stream(a->y, cols);
  const T *g = a->g, *b = a->b;
  const vf eps = (float)a->eps;
  float* s = (float*)scratch;
  for (i64 row = begin; row < end; row++) {
    const T *x = a->x + row * cols, *r = a->r + row * cols;
    T* y = a->y + row * cols;
    i64 c;
%s  }
}
"""


def phase(unroll: int, body: str, tail: str, ahead: str = "") -> str:
    """Walk a row: `unroll` vectors a trip (accumulator `a0`, `a1` … each), then single ones, then its end.

    `{c}` is the column, `{u}` the accumulator's number.
    """
    many = "".join("      " + body.format(c=f"c + {16 * u}", u=u) for u in range(unroll))
    return (
        f"    for (c = 0; c + {16 * unroll} <= cols; c += {16 * unroll}) {{\n{ahead}{many}    }}\n"
        f"    for (; c + 16 <= cols; c += 16) {{ {body.format(c='c', u=0)} }}\n"
        f"    if (c < cols) {{ {tail} }}\n"
    )


def reduction(unroll: int, start: str, combine: str, body: str, tail: str) -> str:
    names = [f"a{u}" for u in range(unroll)]
    while len(names) > 1:  # a fixed tree over the accumulators
        names = [f"{combine}({p}, {q})" for p, q in zip(names[::2], names[1::2], strict=True)]
    declare = "    vf " + ", ".join(f"a{u} = {start}" for u in range(unroll)) + ";\n"
    return "    {\n" + declare + phase(unroll, body, tail) + f"    total = {names[0]};\n    }}\n"


def statistics(unroll: int, first: str, first_tail: str, get: str, get_tail: str) -> str:
    """The sum, then the centred sum of squares: `first` reads the row, `get` what has been read or kept."""
    return (
        "    vf total;\n"
        + reduction(
            unroll,
            "0.0f",
            "add",
            f"a{{u}} = a{{u}} + {first};\n",
            f"a0 = a0 + op_where(tail_lanes(cols), {first_tail}, 0.0f);",
        )
        + "    vf mean = hsum(total) / (float)cols;\n"
        + reduction(
            unroll,
            "0.0f",
            "add",
            f"{{{{ vf d = {get} - mean; a{{u}} = op_fma(d, d, a{{u}}); }}}}\n",
            f"vf d = op_where(tail_lanes(cols), {get_tail} - mean, 0.0f); a0 = op_fma(d, d, a0);",
        )
        + "    vf rstd = op_rsqrt(vf(hsum(total) / (float)cols) + eps);\n"
    )


def normalise(get: str, get_tail: str, ahead: str = "") -> str:
    return phase(
        4,
        f"store_or_stream(y + {{c}}, op_fma(({get} - mean) * rstd, load(g + {{c}}), load(b + {{c}})), "
        "past);\n",
        f"store_tail(y, op_fma(({get_tail} - mean) * rstd, load_tail(g, cols), load_tail(b, cols)), cols);",
        ahead,
    )


AHEAD = "      for (int u = 0; u < 64; u += 16) prefetch(x + cols + c + u);\n"
HELPERS = """
static inline vf add(vf a, vf b) { return a + b; }
static inline vf keep(float* s, vf v) { store(s, v); return v; }
"""
READ, READ_TAIL = "load(x + {c})", "load_tail(x, cols)"
KEPT, KEPT_TAIL = "load(s + {c})", "load(s + tail_start(cols))"
LAYER_NORM = ROWS % (
    "layer_norm",
    statistics(4, READ, READ_TAIL, READ, READ_TAIL) + normalise(READ, READ_TAIL, AHEAD),
)
GELU_ADD_LAYER_NORM = ROWS % (
    "gelu_add_layer_norm",
    statistics(
        2,
        "keep(s + {c}, GELU(load(x + {c})) + load(r + {c}))",
        "keep(s + tail_start(cols), GELU(load_tail(x, cols)) + load_tail(r, cols))",
        KEPT,
        KEPT_TAIL,
    )
    + normalise(KEPT, KEPT_TAIL),
)
SOFTMAX = ROWS % (
    "softmax",
    "    vf total;\n"
    + reduction(
        4,
        "-__builtin_inff()",
        "op_max",
        f"a{{u}} = op_max(a{{u}}, {READ});\n",
        f"a0 = op_max(a0, op_where(tail_lanes(cols), {READ_TAIL}, -__builtin_inff()));",
    )
    + "    vf top = hmax(total);\n"
    + reduction(
        4,
        "0.0f",
        "add",
        f"a{{u}} = a{{u}} + keep(s + {{c}}, EXP({READ} - top));\n",
        f"vf e = keep(s + tail_start(cols), EXP({READ_TAIL} - top)); "
        "a0 = a0 + op_where(tail_lanes(cols), e, 0.0f);",
    )
    + "    vf scale = 1.0f / hsum(total);\n"
    + phase(
        4,
        f"store_or_stream(y + {{c}}, {KEPT} * scale, past);\n",
        f"store_tail(y, {KEPT_TAIL} * scale, cols);",
        AHEAD,
    ),
)
KERNELS: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "layer_norm": (LAYER_NORM, lambda x, r, g, b: F.layer_norm(x, x.shape[1:], g, b)),
    "gelu_add_layer_norm": (
        GELU_ADD_LAYER_NORM,
        lambda x, r, g, b: F.layer_norm(F.gelu(x, approximate="tanh") + r, x.shape[1:], g, b),
    ),
    "softmax": (SOFTMAX, lambda x, r, g, b: torch.softmax(x, -1)),
}
COLUMNS = (
    1,
    2,
    3,
    7,
    15,
    16,
    17,
    31,
    63,
    64,
    65,
    127,
    129,
    255,
    257,
    513,
    760,
    1000,
    1023,
    1025,
    4096,
    12289,
    65537,
)


def source(name: str, dtype: torch.dtype) -> str:
    short = "" if dtype is torch.float32 else "_h"
    defines = f"#define GELU op_gelu_tanh{short}\n#define EXP op_exp{short}\ntypedef {STORAGE[dtype]} T;\n"
    return cpu_prelude() + defines + ARGS + HELPERS + KERNELS[name][0]


def call(
    kernel: CpuKernel, x: torch.Tensor, r: torch.Tensor, g: torch.Tensor, b: torch.Tensor, past: bool = False
):
    y = torch.full_like(x, float("nan"))
    rows, cols = x.shape
    args = PACK.pack(*(t.data_ptr() for t in (x, r, g, b, y)), cols, past, 1e-5)
    kernel.run(args, rows, 3 * cols * x.element_size(), 4 * cols + 64)
    return y


def inputs(rows: int, cols: int, dtype: torch.dtype, shift: float = 0.5) -> tuple[torch.Tensor, ...]:
    make = torch.Generator().manual_seed(rows * 7919 + cols)

    def tensor(*shape: int, add: float) -> torch.Tensor:
        return (torch.randn(*shape, generator=make) + add).to(dtype)

    return tensor(rows, cols, add=shift), tensor(rows, cols, add=0), tensor(cols, add=1), tensor(cols, add=0)


def close(y: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether y is the float64 result to what its dtype and a row reduction allow; false for any stray NaN.

    The final cast costs half an ulp (or half of the least denormal), the short functions 2e-5; the fp32
    arithmetic, on values of up to about 6 that a weight of up to 5 scales, some tens of 2^-24 of the largest.
    """
    cast, short, least = {
        torch.float32: (2.0**-24, 0.0, 2.0**-150),
        torch.bfloat16: (2.0**-8, 2e-5, 2.0**-134),
        torch.float16: (2.0**-11, 2e-5, 2.0**-25),
    }[y.dtype]
    limit = (cast + short) * want.abs() + least + (40 * 2.0**-24 + short) * want.abs().amax()
    return bool(((y.double() - want).abs() <= limit).all())


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> DiskCache:
    return DiskCache(tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_is_right_for_every_row_length(name: str, dtype: torch.dtype, cache: DiskCache) -> None:
    kernel = load_kernel(source(name, dtype), name, cache=cache)
    for cols in COLUMNS:
        tensors = inputs(5, cols, dtype)
        before = [t.clone() for t in tensors]
        y = call(kernel, *tensors)
        want = KERNELS[name][1](*(t.double() for t in tensors))
        if cols == 1 and name != "softmax":
            want = tensors[3].double().expand(5, 1)  # the variance of one element is 0
        assert close(y, want), (cols, (y.double() - want).abs().max())
        assert torch.equal(y, call(kernel, *tensors, past=True))
        assert all(torch.equal(t, u) for t, u in zip(tensors, before, strict=True))


@pytest.mark.parametrize("name", KERNELS)
def test_a_row_has_the_same_bits_in_any_batch_and_thread_count(name: str, cache: DiskCache) -> None:
    kernel = load_kernel(source(name, torch.float32), name, cache=cache)
    x, r, g, b = inputs(301, 1000, torch.float32)
    threads = torch.get_num_threads()
    whole = call(kernel, x, r, g, b)
    try:
        torch.set_num_threads(1)
        assert torch.equal(call(kernel, x, r, g, b), whole)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(call(kernel, x[17:18], r[17:18], g, b), whole[17:18])


@pytest.mark.parametrize("where", [0, 5, 64, 1000, 1022])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", KERNELS)
def test_nan_and_infinity_as_in_pytorch(name: str, value: float, where: int, cache: DiskCache) -> None:
    kernel = load_kernel(source(name, torch.float32), name, cache=cache)
    x, r, g, b = inputs(3, 1023, torch.float32)
    x[1, where] = value
    y, want = call(kernel, x, r, g, b), KERNELS[name][1](x, r, g, b)
    assert torch.equal(y.isnan(), want.isnan())
    assert close(torch.nan_to_num(y), torch.nan_to_num(want.double()))


def test_softmax_of_a_row_of_minus_infinity_is_nan(cache: DiskCache) -> None:
    kernel = load_kernel(source("softmax", torch.float32), "softmax", cache=cache)
    x, r, g, b = inputs(2, 100, torch.float32)
    x[0] = float("-inf")
    assert torch.equal(call(kernel, x, r, g, b).isnan(), torch.softmax(x, -1).isnan())


@pytest.mark.parametrize("mean", [1e2, 1e4])
def test_large_means_do_not_spoil_the_variance(mean: float, cache: DiskCache) -> None:
    kernel = load_kernel(source("layer_norm", torch.float32), "layer_norm", cache=cache)
    tensors = inputs(4, 4096, torch.float32, shift=mean)
    want = KERNELS["layer_norm"][1](*(t.double() for t in tensors))
    # The mean itself is rounded to fp32: an error of mean * 2^-24 in units of the spread, which is 1 here.
    assert (call(kernel, *tensors).double() - want).abs().max() <= 6 * mean * 2.0**-24 + 1e-5


def broken(name: str, old: str, new: str) -> str:
    text = source(name, torch.float32)
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "op_where(tail_lanes(cols), load_tail",
            "op_where(tail_lanes(cols + 1), load_tail",
        ),  # drops one element
        ("hsum(total) / (float)cols;", "round_bf16(hsum(total) / (float)cols);"),  # statistics in 16 bits
    ],
)
def test_a_broken_kernel_is_noticed(old: str, new: str, cache: DiskCache) -> None:
    text = broken("layer_norm", old, new)
    tensors = inputs(5, 1000, torch.float32)
    want = KERNELS["layer_norm"][1](*(t.double() for t in tensors))
    good = load_kernel(source("layer_norm", torch.float32), "layer_norm", cache=cache)
    bad = load_kernel(text, "layer_norm", cache=cache)
    assert close(call(good, *tensors), want)
    assert not close(call(bad, *tensors), want)
