"""Inputs that broke others, on the CPU: no further from float64 than twice what PyTorch itself is, or its very bits.

Outputs lie in memory that holds NaN. `FAULTS`, at the end, plants for each class a fault that its test must find.

| class | on the CPU | in the emulator (CUDA kernels) | on a GPU |
| --- | --- | --- | --- |
| 1 large mean, small spread | here | test_emulated_traps.py | test_traps.py |
| 2 squares that overflow | here | test_emulated_traps.py | test_traps.py |
| 3 NaN and infinities | here | test_emulated_traps.py | test_traps.py |
| 4 tails of GELU and SiLU | here, test_prelude_math.py | test_cuda_prelude.py | test_traps.py |
| 5 odd weights, constant rows | here | test_emulated_traps.py | test_traps.py |
| 6 statistics in fp32 | here | test_emulated_traps.py | test_traps.py |
| 8 the same bits | here | test_emulated_traps.py, test_emulated_schedules.py | test_traps.py |
| 9 row lengths | here | test_emulated_schedules.py | test_traps.py, test_kernels.py |
| 10 row counts | here | test_emulated_schedules.py | test_traps.py |
| 11 2^31 elements, strides above it | | | test_traps.py |
| 12 ranks, normalized shapes | here | | test_traps.py |
| 13 no cliff at N ± 1 | benchmarks/run.py --suite cpu-forward | | test_traps.py |
| 14 layouts | here | test_random_graphs.py | test_traps.py |
| 16 aliases | here, test_backend_inputs.py, test_programs.py | | test_traps.py |
| 17 dtypes | here, test_backend_inputs.py, test_programs.py | test_random_graphs.py | test_traps.py |
| 19 another row count | here, test_backend_inputs.py | | test_traps.py |
| 20 graph capture | | | test_traps.py |
| 21 devices, streams, threads, fork | here, test_backend_inputs.py, test_launch_cuda.py | | test_traps.py |
| 22 cache | here, test_cache.py, test_hostcc.py | | |
| 24 planner linear in layers | here | | |
| 25 no spills | test_compile_sweep.py, which plants one | | |
| 27 measuring | test_bench_cheats.py, each cheat a fault | | |
"""

from __future__ import annotations

import cProfile
import hashlib
import math
import pstats
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from harness.oracle import capture
from harness.planted import changed, in_table, mean_in_16_bits, mean_of_squares, moments, overflowing, without
from onepass import build as pipeline
from onepass import settings
from onepass.capture import backend as backend_module
from onepass.capture import runner
from onepass.capture.backend import Backend
from onepass.ops import composite
from onepass.ops.table import BY_ATEN, OPS, REDUCE
from onepass.plan import merge
from onepass.runtime import cache as cache_module
from onepass.runtime.cache import CacheWarning, DiskCache
from onepass.runtime.counters import COUNTERS

Function = Callable[..., Any]
HALVES = (torch.bfloat16, torch.float16)

pytestmark = pytest.mark.usefixtures("fresh", "quick_compiler", "poisoned")


@pytest.fixture
def quick_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """-O1 takes half the time of what ships; the flags that decide results are the same."""
    monkeypatch.setenv(settings.CXX_FLAGS.name, "-O1")


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "allocator", lambda device: poison)


def poison(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """New memory that holds nothing that a kernel would write."""
    x = torch.empty_strided(sizes, strides, dtype=dtype)
    return x.fill_(math.nan if dtype.is_floating_point or dtype.is_complex else 77)


def double(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def several(x: Any) -> tuple[torch.Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


def complaint(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> str:
    """Twice eager's largest error, and roundings of the largest number: eight of fp32, which sums are in, or two."""
    if (found.dtype, found.shape) != (eager.dtype, eager.shape):
        return f"{found.dtype} {tuple(found.shape)} for {eager.dtype} {tuple(eager.shape)}"
    if not torch.equal(found.isnan(), eager.isnan()):
        return f"NaN at {found.isnan().nonzero().tolist()[:5]}, eager {eager.isnan().nonzero().tolist()[:5]}"
    roundoff = torch.finfo(eager.dtype).eps / 2
    rounded = exact.to(eager.dtype).double()
    there = exact.isfinite() & rounded.isfinite() & eager.isfinite()
    if not torch.equal(found[~there & ~found.isnan()], eager[~there & ~eager.isnan()]):
        return "infinities differ"
    if not bool(there.any()):
        return ""
    off, own = ((x.double() - exact)[there].abs().max() for x in (found, eager))
    allowed = 2 * own + (8 if eager.dtype == torch.float32 else 2) * roundoff * exact[there].abs().max()
    return "" if off <= allowed else f"off by {float(off)}, eager {float(own)}, allowed {float(allowed)}"


def no_worse(f: Function, *inputs: Any, kernels: bool = True) -> tuple[torch.Tensor, ...]:
    launched = COUNTERS.launched
    found = several(torch.compile(f, backend=Backend(), dynamic=False)(*inputs))
    assert (COUNTERS.launched > launched) is kernels
    eager, exact = several(f(*inputs)), several(f(*map(double, inputs)))
    for y, e, d in zip(found, eager, exact, strict=True):
        text = complaint(y, e, d.double())
        assert not text, text
    return found


def norms(x: torch.Tensor, w: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
    shape = (x.shape[-1],)
    return F.layer_norm(x, shape, w, None, 2**-17), F.rms_norm(x, shape, w, 2**-17), torch.softmax(x, -1)


# Numbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_mean_with_a_small_spread(dtype: torch.dtype) -> None:
    means = torch.tensor([1e2, 1e3, 1e4, 1e5, 1e6]).repeat_interleave(4)[:, None]
    spread = torch.tensor([1e-3, 1e-2, 1e-1, 1.0]).repeat(5)[:, None]
    x = (means + spread * torch.randn(20, 513)).to(dtype)
    no_worse(lambda x: F.layer_norm(x, (513,), None, None, 2**-17), x)


@pytest.mark.parametrize(
    ("dtype", "largest"), [(torch.float32, 1e18), (torch.bfloat16, 1e18), (torch.float16, 6e4)]
)
def test_rows_whose_squares_are_large(dtype: torch.dtype, largest: float) -> None:
    no_worse(norms, (torch.rand(5, 129) * largest).to(dtype))


def special_rows() -> torch.Tensor:
    x = torch.randn(9, 37)
    x[0, 0], x[1, 36], x[2, 20] = math.nan, math.nan, math.nan
    x[3, 0], x[4, 36], x[5, 17] = math.inf, -math.inf, math.inf
    x[6, :], x[7, :36] = -math.inf, -math.inf
    return x


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_nan_and_infinities_are_where_pytorch_has_them(dtype: torch.dtype) -> None:
    no_worse(
        lambda x: (torch.softmax(x, -1), x.amax(-1), x.amin(-1), x.sum(-1), F.relu(x), x.clamp(-1, 1)),
        special_rows().to(dtype),
    )


def test_the_tails_of_gelu_and_silu_keep_relative_error() -> None:
    x = torch.cat([torch.linspace(-6, -3, 5001), torch.tensor([1e4, -1e4, -30.0, -80.0])])
    compiled = torch.compile(
        lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x)), backend=Backend(), dynamic=False
    )
    d = x.double()
    exact = (
        0.5 * d * torch.special.erfc(-d / math.sqrt(2)),
        d * torch.sigmoid(math.sqrt(8 / math.pi) * (d + 0.044715 * d**3)),
        d * torch.sigmoid(d),
    )
    for y, e in zip(compiled(x), exact, strict=True):
        # 2e-5: what the preludes state of the short form of GELU; smaller results than fp32 holds may be 0.
        assert bool(((y.double() - e).abs() <= 2e-5 * e.abs() + 1e-37).all())
    assert not bool(((F.gelu(x).double() - exact[0]).abs() <= 2e-5 * exact[0].abs() + 1e-37).all())


@pytest.mark.parametrize("eps", [0.0, 1e-12])
def test_odd_weights_and_constant_rows(eps: float) -> None:
    x = torch.randn(6, 100)
    x[1], x[2] = 3.0, 0.0
    w = torch.randn(100)
    w[::3] = 0.0
    if eps:
        no_worse(lambda x, w: (F.layer_norm(x, (100,), w, None, eps), F.rms_norm(x, (100,), -w, eps)), x, w)
    else:  # a constant row is 0 / 0 or a rounding error over 0, which eager decides by its own order of sums
        no_worse(
            lambda x, w: (F.layer_norm(x, (100,), w, None, 0.0), F.rms_norm(x, (100,), w, 0.0)), x[3:], w
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_are_not_in_16_bits(dtype: torch.dtype) -> None:
    """A mean of 100 rounded to bf16 is off by up to 0.25, half the spread here; 16-bit results are one rounding off."""
    x = (100 + 0.5 * torch.randn(7, 4099)).to(dtype)
    mean, rstd, y = torch.compile(
        lambda x: (
            x.float().mean(-1),
            torch.rsqrt(x.float().var(-1, correction=0) + 2**-17),
            F.layer_norm(x, x.shape[-1:], None, None, 2**-17),
        ),
        backend=Backend(),
        dynamic=False,
    )(x)
    assert mean.dtype == rstd.dtype == torch.float32
    d = x.double()
    exact = F.layer_norm(d, d.shape[-1:], None, None, 2**-17)
    # 6 · 100 · 2⁻²⁴ / 0.5: a mean right to a few roundings of fp32, over the spread.
    bound = torch.finfo(dtype).eps / 2 * exact.abs() + 6 * 100 * 2**-24 / 0.5 * 4
    assert bool(((y.double() - exact).abs() <= bound).all())
    assert float((mean.double() - d.mean(-1)).abs().max()) <= 4 * 100 * 2**-24
    assert float((rstd.double() * torch.sqrt(d.var(-1, correction=0) + 2**-17) - 1).abs().max()) <= 1e-5


def many(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Row reductions of each kind, and none; each result has a row for each of x."""
    shape = (x.shape[-1],)
    return (
        F.layer_norm(x, shape, w, w),
        F.rms_norm(x, shape, w, 2**-17),
        torch.softmax(x, -1),
        F.layer_norm(F.gelu(x, approximate="tanh") + x, shape, w, None),
        F.gelu(x) * w,
        x.sum(-1),
        x.amax(-1),
    )


def one_norm(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
    return (F.layer_norm(x, w.shape, w, w),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_repeat_and_depend_on_nothing_but_the_row(dtype: torch.dtype) -> None:
    nothing_but_the_row(dtype, many)


def nothing_but_the_row(dtype: torch.dtype, f: Function) -> None:
    """Not on the batch, the place in it, where memory starts, or how many threads there are; 268 KB are for two."""
    compiled = torch.compile(f, backend=Backend(), dynamic=True)
    x, w = torch.randn(67, 1001).to(dtype), torch.randn(1001).to(dtype)
    first = compiled(x, w)

    def same(found: Sequence[torch.Tensor], rows: Any = slice(None)) -> None:
        assert all(torch.equal(a[rows], b) for a, b in zip(first, found, strict=True))

    same(compiled(x, w))
    order = torch.randperm(67)
    same(compiled(x[order].contiguous(), w), order)
    for rows in (slice(60, 63), slice(13, 15), slice(66, 67)):
        same(compiled(x[rows].contiguous(), w), rows)
    for past in (1, 2, 3, 8):
        same(compiled(LAYOUTS["one element off"](x) if past == 1 else moved(x, past), moved(w, past)))
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            same(compiled(x, w))
    finally:
        torch.set_num_threads(threads)


def moved(x: torch.Tensor, past: int) -> torch.Tensor:
    """The same numbers, some elements past where memory starts."""
    return x.new_zeros(x.numel() + past)[past:].view(x.shape).copy_(x)


def test_a_reduction_in_the_middle_depends_on_nothing_but_its_column() -> None:
    compiled = torch.compile(lambda x: (torch.softmax(x, 1), x.mean(1)), backend=Backend(), dynamic=True)
    x = torch.randn(6, 53, 45)
    first = compiled(x)
    for part in (x, x[2:5].contiguous(), x[:, :, 17:40].contiguous(), moved(x, 1)):
        rows = slice(2, 5) if part.shape[0] == 3 else slice(None)
        cols = slice(17, 40) if part.shape[2] == 23 else slice(None)
        found = compiled(part)
        assert torch.equal(first[0][rows, :, cols], found[0])
        assert torch.equal(first[1][rows, cols], found[1])


# Shapes


LENGTHS = (
    1,
    2,
    3,
    7,
    127,
    129,
    255,
    257,
    513,
    760,
    1000,
    1023,
    1025,
    1128,
    3584,
    5140,
    8191,
    12288,
    12289,
    65537,
)


@pytest.mark.parametrize("n", [1, 2, 7, 129, 1023, 12289])
def test_row_lengths(n: int) -> None:
    """A mean of 3 shows a lane that is counted and not masked."""
    no_worse(norms, 3 + torch.randn(2, n))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_lengths_that_change(dtype: torch.dtype) -> None:
    """One kernel for all of them, which takes the length when it is called."""
    compiled = torch.compile(norms, backend=Backend(), dynamic=True)
    for n in (*LENGTHS, 131072, 262144):
        x = (3 + torch.randn(2, n)).to(dtype)
        for y, e, d in zip(compiled(x), norms(x), norms(x.double()), strict=True):
            text = complaint(y, e, d)
            assert not text, f"{n} columns: {text}"


def test_numbers_of_rows() -> None:
    """65536 rows are for all threads; one row more or less than there are threads leaves one without, or with two."""
    threads = torch.get_num_threads()
    counts = (3, 37, 0, 1, 199, threads - 1, threads, threads + 1, 65535, 65536)
    kinds = {d: torch.compile(one_row_norm, backend=Backend(), dynamic=d) for d in (True, False)}
    for dynamic, rows in [*((True, rows) for rows in counts), (False, 0), (False, 1), (False, 65537)]:
        compiled = kinds[dynamic]
        x = torch.randn(rows, 37)
        torch.testing.assert_close(compiled(x), one_row_norm(x), rtol=1e-5, atol=1e-5)


def one_row_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:]) * 2


def test_long_rows_and_few() -> None:
    """Fewer rows than threads, each more than a thread's share."""
    no_worse(norms, 1 + torch.randn(1, 300_001))


@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0,)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        joined = torch.cat([y, x.new_zeros(2, 0), y], -1), torch.cat([y, x.new_zeros(0, 7), y], 0)
        return x.sum(-1), x.exp() + 1, torch.softmax(x, -1), torch.cat([x, x], 0), *joined, y.mul(2)

    no_worse(function, torch.randn(shape), torch.randn(2, 7))


@pytest.mark.parametrize("rank", range(7))
def test_ranks(rank: int) -> None:
    x = torch.randn([2, 3, 1, 2, 3, 5][:rank])
    no_worse(lambda x: (torch.tanh(x) * 2 + 1, x.sum(), torch.softmax(x, -1)), x)


def test_normalized_shapes_of_several_dimensions_and_bias_alone() -> None:
    x, b = torch.randn(2, 3, 5, 7), torch.randn(3, 5, 7)
    no_worse(lambda x, b: F.layer_norm(x, b.shape, None, b), x, b)
    no_worse(lambda x, b: F.layer_norm(x, b.shape, b, b), x, b)


# Layouts


def packed(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x + 1, x], -1)[..., x.shape[-1] : 2 * x.shape[-1]]


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slice of packed": packed,
    "transposed": lambda x: x.mT.contiguous().mT,
    "expanded": lambda x: x[:1].expand(x.shape),
    "one element off": lambda x: torch.cat([x.new_ones(1), x.flatten()])[1:].view(x.shape),
    "every second": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts(layout: str, dtype: torch.dtype) -> None:
    x = LAYOUTS[layout](torch.randn(5, 33).to(dtype))
    no_worse(norms, x, torch.randn(100).to(dtype)[1:34])


def test_channels_last() -> None:
    x = torch.randn(2, 6, 5, 7).contiguous(memory_format=torch.channels_last)
    (y,) = no_worse(lambda x: F.gelu(x + 1) * 2, x)
    assert y.is_contiguous(memory_format=torch.channels_last)


# Types


@pytest.mark.parametrize("x", [torch.float32, *HALVES])
@pytest.mark.parametrize("w", [torch.float32, torch.bfloat16, None])
def test_dtypes_of_input_weight_and_residual(x: torch.dtype, w: torch.dtype | None) -> None:
    def function(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        h = x + r
        y = h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 2**-17)
        return h, (y if w is None else y * w).to(x.dtype)

    weight = None if w is None else torch.randn(65).to(w)
    no_worse(function, torch.randn(4, 65).to(x), torch.randn(4, 65), weight)


def test_python_numbers_do_not_widen() -> None:
    for dtype in (torch.float32, *HALVES):
        (y,) = no_worse(lambda x: (x * 0.1 + 3) / 7, torch.randn(50).to(dtype))
        assert y.dtype == dtype


TYPES = [
    (x, w, b, r)
    for x in (torch.float32, *HALVES)
    for w in (x, torch.float32, None)
    for b in (w, None)
    for r in (x, torch.float32)
]


def test_norms_of_mixed_dtypes() -> None:
    assert norms_of_mixed_dtypes(torch.float32, *HALVES) >= 20


def norms_of_mixed_dtypes(*of: torch.dtype) -> int:
    """Each combination of input, weight, bias and residual that PyTorch's own LayerNorm takes, several in a graph."""

    def norm(x: Any, w: Any, b: Any, r: Any) -> Any:
        return F.layer_norm((x + r).to(x.dtype), (65,), w, b, 2**-17)

    taken: list[tuple[Any, ...]] = []
    for kinds in dict.fromkeys(kinds for kinds in TYPES if kinds[0] in of):
        x, r = torch.randn(4, 65).to(kinds[0]), torch.randn(4, 65).to(kinds[3])
        w, b = (None if k is None else torch.randn(65).to(k) for k in kinds[1:3])
        try:
            norm(x, w, b, r)
        except RuntimeError:
            continue
        taken.append((x, w, b, r))
    flat = [value for given in taken for value in given]
    no_worse(lambda *flat: tuple(norm(*flat[i : i + 4]) for i in range(0, len(flat), 4)), *flat)
    return len(taken)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64])
def test_integers_booleans_and_complex_numbers_are_owned_or_left(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (5, 33)) if dtype == torch.bool else torch.randint(-100, 100, (5, 33))
    x = x.to(dtype)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, x * 3, x.sum(-1), x == 1, torch.where(x == 1, x, 0 * x)

    found = torch.compile(function, backend=Backend(), dynamic=False)(x)
    for y, e in zip(found, function(x), strict=True):
        assert (y.dtype, y.shape) == (e.dtype, e.shape)
        assert torch.equal(y, e)


def test_float64_is_computed_in_float64() -> None:
    no_worse(norms, torch.randn(3, 9).double())


# Aliases


def test_the_same_tensor_twice_and_inputs_that_stay() -> None:
    def function(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = x + r
        return F.layer_norm(total, w.shape, w, w), total

    x, w = torch.randn(4, 48), torch.randn(48)
    before = x.clone(), w.clone()
    no_worse(function, x, x, w)
    assert all(map(torch.equal, before, (x, w)))


def test_writing_to_an_input_and_returning_a_view_of_it() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(y)
        y.mul_(F.gelu(x))
        return x[1:], torch.softmax(y, -1), x * y

    pairs = [(torch.arange(99.0).view(3, 33) / 50, torch.ones(3, 33)) for _ in range(2)]
    found = torch.compile(function, backend=Backend(), dynamic=False)(*pairs[0])
    expected = function(*pairs[1])
    torch.testing.assert_close(pairs[0], pairs[1])
    torch.testing.assert_close(found, expected)
    assert found[0].untyped_storage().data_ptr() == pairs[0][0].untyped_storage().data_ptr()


# Running


def test_another_row_count_builds_nothing() -> None:
    backend = Backend()
    compiled = torch.compile(lambda x: norms(x)[0] * 2, backend=backend)
    graphs = []
    for rows in (5, 7, 64, 3, 5):
        x = torch.randn(rows, 33)
        torch.testing.assert_close(compiled(x), norms(x)[0] * 2)
        graphs.append(len(backend.compiled))
    assert graphs[-1] == graphs[1] <= 2  # Dynamo learns at the second count that it changes


def test_threads_run_one_compiled_function() -> None:
    compiled = torch.compile(lambda x: norms(x)[0], backend=Backend(), dynamic=False)
    inputs = [torch.randn(50, 33) for _ in range(4)]
    compiled(inputs[0])
    results: list[Any] = [None] * 4

    def run(i: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                results[i] = compiled(inputs[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(results, [norms(x)[0] for x in inputs])


def test_a_damaged_kernel_on_disk_is_no_kernel(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    built: list[Path] = []

    def build(path: Path) -> dict[str, Any]:
        built.append(path)
        path.write_bytes(b"machine code")
        return {}

    for damage in (b"machine", b"machine codf", b""):
        path = cache.get_or_build("key", ".so", build).path
        count = len(built)
        path.write_bytes(damage)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            assert cache.get_or_build("key", ".so", build).path.read_bytes() == b"machine code"
        assert len(built) == count + 1


def layers(count: int) -> tuple[Function, list[torch.Tensor]]:
    """Pre-norm blocks: what fuses lies between matmuls, and all of it hangs on one residual."""

    def function(x: torch.Tensor, w: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = x + F.gelu(F.layer_norm(x, (16,), w) @ up, approximate="tanh")
        return x

    return function, [torch.randn(4, 16), torch.randn(16), torch.randn(16, 16)]


def test_planning_is_linear_in_the_layers() -> None:
    planning_is_linear(10)


def planning_is_linear(few: int) -> None:
    """Calls made while pairs are merged, which no clock disturbs: 10 times the layers, at most 13 times the calls."""
    calls = []
    for count in (few, 10 * few):
        function, inputs = layers(count)
        program = capture(function, inputs, pipeline.fit).program
        profile = cProfile.Profile()
        profile.runcall(merge.merge, program, {}, pipeline.fit)
        calls.append(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
    assert calls[1] <= 13 * calls[0], calls


# A fault for each class: what its test would let pass if it tested nothing


def last_dim_only(b: Any, normalized_shape: Any, **rest: Any) -> Any:
    return composite.layer_norm(b, normalized_shape=normalized_shape[-1:], **rest)


def bias_as_weight(b: Any, weight: Any, bias: Any, **rest: Any) -> Any:
    return composite.layer_norm(b, weight=bias if weight is None else weight, bias=bias, **rest)


@contextmanager
def over_an_input() -> Iterator[None]:
    """Results lie where inputs lie."""

    def wrong(plan: Any) -> dict[str, str]:
        return {k.cluster.writes[0]: k.cluster.reads[0] for k in plan.kernels}

    with mock.patch.object(backend_module, "in_place", wrong):
        yield


@contextmanager
def one_memory() -> Iterator[None]:
    """All results of a size are the same memory."""
    held: dict[Any, torch.Tensor] = {}

    def empty(sizes: Any, strides: Any, dtype: Any) -> torch.Tensor:
        return held.setdefault((sizes, strides, dtype), poison(sizes, strides, dtype))

    with mock.patch.object(runner, "allocator", return_value=empty):
        yield


@contextmanager
def all_pairs() -> Iterator[None]:
    """Each cluster is considered with each other one."""
    right = merge._Merger.consider

    def consider(self: Any, i: int) -> None:
        right(self, i)
        for other in self.items:
            a, b = sorted((i, other), key=lambda k: self.position[k])
            self.promise(a, b)

    with mock.patch.object(merge._Merger, "consider", consider):
        yield


def no_checksum() -> AbstractContextManager[Any]:
    """Whatever is hashed has the same hash."""
    return mock.patch.object(cache_module.hashlib, "sha256", return_value=hashlib.md5(b""))


# Of a kernel for rows that may be long, in parts, and of one for rows of a known length.
SUM = r"(_s\[part\] = |vf\()hsum\("
ADD_BY_ROW = (SUM, r"\1(i0 & 1 ? 1.0000002f : 1.0f) * hsum(")
BY_ALIGNMENT = (SUM, r"\1((i64)x0_g & 3 ? 1.0f : (i64)x0_g & 63 ? 1.0000002f : 1.0f) * hsum(")
ALL_LANES = (r"lane_index\(\) >= vf\(\(float\)\(c - t\)\)", "lane_index() >= vf(0.0f)")
LAST_ROW = (r"(for \()?i64 row = begin;", r"end -= end > 1; \g<0>")
NO_STRIDE = (r"i0 \* a->x0_o0", "i0 * a->cols")
OTHER_DTYPE = (r"(?<=\n  )const f16\*", "const bf16*")  # in the block of arguments and in the kernel
NAIVE_GELU = "(vf(0.5f) * {0} * (vf(1.0f) + op_erf({0})))"

LAYER_NORM = "native_layer_norm.default"
Trap = Callable[[], object]
FAULTS: dict[str, tuple[Trap, Callable[[], AbstractContextManager[Any]]]] = {
    "1 the mean of squares less the square of the mean": (
        lambda: test_a_large_mean_with_a_small_spread(torch.float32),
        lambda: moments(mean_of_squares),
    ),
    "2 squares that overflow": (
        lambda: test_rows_whose_squares_are_large(torch.float32, 1e18),
        lambda: moments(overflowing),
    ),
    "3 a maximum that drops NaN": (
        lambda: test_nan_and_infinities_are_where_pytorch_has_them(torch.float32),
        lambda: in_table(REDUCE, "max", combine="op_where({0} > {1}, {0}, {1})"),
    ),
    "4 GELU as x (1 + erf) / 2": (
        test_the_tails_of_gelu_and_silu_keep_relative_error,
        lambda: in_table(OPS, "gelu_erf", expr=NAIVE_GELU),
    ),
    "5 no eps": (
        lambda: test_odd_weights_and_constant_rows(1e-12),
        lambda: moments(without(1e-12)),
    ),
    "6 a mean in 16 bits": (
        lambda: test_statistics_are_not_in_16_bits(torch.float32),
        lambda: moments(mean_in_16_bits),
    ),
    "8 sums that depend on the row": (
        lambda: nothing_but_the_row(torch.float32, one_norm),
        lambda: changed(*ADD_BY_ROW),
    ),
    "8 sums that depend on alignment": (
        lambda: nothing_but_the_row(torch.float32, one_norm),
        lambda: changed(*BY_ALIGNMENT),
    ),
    "9 the end of a row is counted twice": (
        lambda: test_row_lengths_that_change(torch.float32),
        lambda: changed(*ALL_LANES),
    ),
    "10 the last row is left": (test_numbers_of_rows, lambda: changed(*LAST_ROW)),
    "12 one dimension of several": (
        test_normalized_shapes_of_several_dimensions_and_bias_alone,
        lambda: in_table(BY_ATEN, LAYER_NORM, expand=last_dim_only),
    ),
    "12 a bias taken for a weight": (
        test_normalized_shapes_of_several_dimensions_and_bias_alone,
        lambda: in_table(BY_ATEN, LAYER_NORM, expand=bias_as_weight),
    ),
    "14 a stride that is not looked at": (
        lambda: test_layouts("expanded", torch.float32),
        lambda: changed(*NO_STRIDE),
    ),
    "16 results over inputs": (test_the_same_tensor_twice_and_inputs_that_stay, over_an_input),
    "17 fp16 read as bf16": (
        lambda: norms_of_mixed_dtypes(torch.float16),
        lambda: changed(*OTHER_DTYPE),
    ),
    "19 sizes that do not change": (
        test_another_row_count_builds_nothing,
        lambda: torch._dynamo.config.patch(automatic_dynamic_shapes=False),
    ),
    "21 one memory for all threads": (test_threads_run_one_compiled_function, one_memory),
    "24 each with each": (lambda: planning_is_linear(3), all_pairs),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    trap, plant = FAULTS[fault]
    with plant(), pytest.raises(AssertionError):
        trap()


def test_a_checksum_that_says_nothing_is_found(tmp_path: Path) -> None:
    with no_checksum(), pytest.raises(AssertionError):
        test_a_damaged_kernel_on_disk_is_no_kernel(tmp_path)
