"""Inputs that broke others, on a real GPU; what each class is, and where else it is tested, is in tests/cpu/test_traps.py.

Results are no further from float64 than twice what PyTorch itself is, or its very bits. `FAULTS`, at the end, plants faults
that these tests must find. Tensors of 2^31 elements need 20 GB; two devices are used where there are two.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.planted import changed, in_table, mean_in_16_bits, mean_of_squares, moments, overflowing, without
from onepass.capture import runner
from onepass.capture.backend import Backend
from onepass.ops.table import OPS, REDUCE
from onepass.runtime import timer
from onepass.runtime.allocate import allocator
from onepass.runtime.counters import COUNTERS

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.usefixtures("fresh", "poisoned"),
]

DEVICE = "cuda"
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
EPS = 2.0**-17
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
LARGE = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_properties(0).total_memory < 40 << 30,
    reason="needs 40 GB",
)
TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """New memory holds NaN."""

    def on(device: torch.device) -> Callable[..., Tensor]:
        def empty(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
            x = torch.empty_strided(sizes, strides, dtype=dtype, device=device)
            return x.fill_(math.nan if dtype.is_floating_point or dtype.is_complex else 77)

        return empty

    monkeypatch.setattr(runner, "allocator", on)


def randn(*shape: int, dtype: torch.dtype = FP32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def several(x: Any) -> tuple[Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


def complaint(found: Tensor, eager: Tensor, exact: Tensor) -> str:
    """Twice eager's largest error, and roundings of the largest number: 16 of fp32, which sums are in, or two."""
    if (found.dtype, found.shape) != (eager.dtype, eager.shape):
        return f"{found.dtype} {tuple(found.shape)} for {eager.dtype} {tuple(eager.shape)}"
    if not torch.equal(found.isnan(), eager.isnan()):
        return f"NaN at {found.isnan().nonzero().tolist()[:5]}, eager {eager.isnan().nonzero().tolist()[:5]}"
    rounded = exact.to(eager.dtype).double()
    there = exact.isfinite() & rounded.isfinite() & eager.isfinite()
    if not torch.equal(found[~there & ~found.isnan()], eager[~there & ~eager.isnan()]):
        return "infinities differ"
    if not bool(there.any()):
        return ""
    off, own = (float((x.double() - exact)[there].abs().max()) for x in (found, eager))
    roundings = (16 if eager.dtype == FP32 else 2) * torch.finfo(eager.dtype).eps / 2
    allowed = 2 * own + roundings * float(exact[there].abs().max())
    return "" if off <= allowed else f"off by {off}, eager {own}, allowed {allowed}"


def no_worse(
    f: Callable[..., Any], *inputs: Any, dynamic: bool = False, kernels: bool = True
) -> tuple[Tensor, ...]:
    before, launched = [x.clone() if isinstance(x, Tensor) else x for x in inputs], COUNTERS.launched
    found = several(torch.compile(f, backend=Backend(), dynamic=dynamic)(*inputs))
    assert (COUNTERS.launched > launched) is kernels
    for a, b in zip(before, inputs, strict=True):
        if isinstance(b, Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, msg="an input was written")
    wide = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
    for y, e, d in zip(found, several(f(*inputs)), several(f(*wide)), strict=True):
        assert not (text := complaint(y, e, d.double())), text
    return found


def norms(x: Tensor, w: Tensor | None = None) -> tuple[Tensor, ...]:
    shape = (x.shape[-1],)
    return F.layer_norm(x, shape, w, None, EPS), F.rms_norm(x, shape, w, EPS), torch.softmax(x, -1)


# Numbers


@pytest.mark.parametrize("cols", [63, 513, 4096, 16384, 65537])
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_a_large_mean_with_a_small_spread(dtype: torch.dtype, cols: int) -> None:
    means = torch.tensor([1e2, 1e3, 1e4, 1e5, 1e6], device=DEVICE).repeat_interleave(4)[:, None]
    spread = torch.tensor([1e-3, 1e-2, 1e-1, 1.0], device=DEVICE).repeat(5)[:, None]
    no_worse(
        lambda x: F.layer_norm(x, x.shape[-1:], None, None, EPS), (means + spread * randn(20, cols)).to(dtype)
    )


@pytest.mark.parametrize(("dtype", "largest"), [(FP32, 1e18), (BF16, 1e18), (FP16, 6e4)], ids=str)
def test_rows_whose_squares_are_large(dtype: torch.dtype, largest: float) -> None:
    for cols in (
        (129, 4096) if dtype == FP16 else (129,)
    ):  # squares of 4096 times 1e18 add up to more than fp32 holds
        no_worse(norms, (torch.rand(5, cols, device=DEVICE) * largest).to(dtype))


@pytest.mark.parametrize("cols", [37, 1000, 4099, 65537])
@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
def test_nan_and_infinities_are_where_pytorch_has_them(dtype: torch.dtype, cols: int) -> None:
    x, last = randn(9, cols), cols - 1
    x[0, 0], x[1, last], x[2, 20] = math.nan, math.nan, math.nan
    x[3, 0], x[4, last], x[5, 17] = math.inf, -math.inf, math.inf
    x[6, :], x[7, :last] = -math.inf, -math.inf
    no_worse(
        lambda x: (torch.softmax(x, -1), x.amax(-1), x.amin(-1), x.sum(-1), F.relu(x), x.clamp(-1, 1)),
        x.to(dtype),
    )


def test_the_tails_of_gelu_and_silu_keep_relative_error() -> None:
    x = torch.cat([torch.linspace(-6, -3, 5001), torch.tensor([1e4, -1e4, -30.0, -80.0])]).to(DEVICE)
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
        assert bool(((y.double() - e).abs() <= 2e-5 * e.abs() + 1.2e-38).all())


@pytest.mark.parametrize("eps", [0.0, 1e-12])
def test_odd_weights_and_constant_rows(eps: float) -> None:
    x, w = randn(6, 100), randn(100)
    x[1], x[2] = 3.0, 0.0
    w[::3] = 0.0
    given = x if eps else x[3:]  # with no eps a constant row is 0 / 0, or a rounding error over 0
    no_worse(lambda x, w: (F.layer_norm(x, (100,), w, None, eps), F.rms_norm(x, (100,), -w, eps)), given, w)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_statistics_are_not_in_16_bits(dtype: torch.dtype) -> None:
    """A mean of 100 rounded to bf16 is off by up to 0.25, half the spread here."""
    x = (100 + 0.5 * randn(7, 4099)).to(dtype)
    y = torch.compile(
        lambda x: F.layer_norm(x, x.shape[-1:], None, None, EPS), backend=Backend(), dynamic=False
    )(x)
    d = x.double()
    exact = F.layer_norm(d, d.shape[-1:], None, None, EPS)
    bound = torch.finfo(dtype).eps / 2 * exact.abs() + 6 * 100 * 2**-24 / 0.5 * 4
    assert bool(((y.double() - exact).abs() <= bound).all())


def many(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    shape = (x.shape[-1],)
    return (
        F.layer_norm(x, shape, w, w),
        F.rms_norm(x, shape, w, EPS),
        torch.softmax(x, -1),
        F.layer_norm(F.gelu(x, approximate="tanh") + x, shape, w, None),
        F.gelu(x) * w,
        x.sum(-1),
        x.amax(-1),
    )


@pytest.mark.parametrize("cols", [250, 1000, 1001, 4096, 65536, 65537])
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_results_repeat_and_depend_on_nothing_but_the_row(dtype: torch.dtype, cols: int) -> None:
    nothing_but_the_row(many, dtype, cols)


def nothing_but_the_row(f: Callable[..., Any], dtype: torch.dtype, cols: int) -> None:
    """Not on the batch, the place in it, or where memory starts."""
    compiled = torch.compile(f, backend=Backend(), dynamic=None)
    x, w = randn(67, cols, dtype=dtype), randn(cols, dtype=dtype)
    first = compiled(x, w)

    def same(found: Sequence[Tensor], rows: Any = slice(None)) -> None:
        assert all(torch.equal(a[rows], b) for a, b in zip(first, found, strict=True))

    for _ in range(3):
        same(compiled(x, w))
    order = torch.randperm(67, device=DEVICE)
    same(compiled(x[order].contiguous(), w), order)
    for rows in (slice(60, 63), slice(13, 15), slice(66, 67)):
        same(compiled(x[rows].contiguous(), w), rows)
    for past in (1, 2, 4, 8):
        same(compiled(moved(x, past), moved(w, past)))


def moved(x: Tensor, past: int) -> Tensor:
    """The same numbers, some elements past where memory starts."""
    return x.new_zeros(x.numel() + past)[past:].view(x.shape).copy_(x)


def test_a_reduction_in_the_middle_depends_on_nothing_but_its_column() -> None:
    compiled = torch.compile(lambda x: (torch.softmax(x, 1), x.mean(1)), backend=Backend(), dynamic=True)
    x = randn(6, 53, 45)
    first = compiled(x)
    for part in (x, x[2:5].contiguous(), x[:, :, 17:40].contiguous(), moved(x, 1)):
        rows = slice(2, 5) if part.shape[0] == 3 else slice(None)
        cols = slice(17, 40) if part.shape[2] == 23 else slice(None)
        found = compiled(part)
        assert torch.equal(first[0][rows, :, cols], found[0])
        assert torch.equal(first[1][rows, cols], found[1])


# Shapes


@pytest.mark.parametrize("n", [*LENGTHS, 131072, 262144])
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_row_lengths(dtype: torch.dtype, n: int) -> None:
    """A mean of 3 shows a lane that is counted and not masked."""
    no_worse(norms, (3 + randn(3, n)).to(dtype))


def test_numbers_of_rows() -> None:
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    compiled = torch.compile(many, backend=Backend(), dynamic=True)
    w = randn(256)
    counts = (3, 37, 0, 1, 199, processors - 1, processors, processors + 1, 65535, 65536)
    for rows in counts:
        x = 1 + randn(rows, 256)
        for y, e, d in zip(compiled(x, w), many(x, w), many(x.double(), w.double()), strict=True):
            assert not (text := complaint(y, e, d)), f"{rows} rows: {text}"


@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0,)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.sum(-1), x.exp() + 1, torch.softmax(x, -1), torch.cat([x, x], 0), y.mul(2)

    no_worse(function, torch.randn(shape, device=DEVICE), randn(2, 7))


def large(f: Callable[[Tensor], Tensor], x: Tensor, rows: Sequence[slice]) -> None:
    """A result of a tensor that no 32-bit number counts: right at some rows, and nowhere NaN."""
    y = torch.compile(f, backend=Backend(), dynamic=False)(x)
    assert y.shape == x.shape
    for at in rows:
        text = complaint(y[at], f(x[at]), f(x[at].double()))
        assert not text, f"rows {at}: {text}"
    assert not any(bool(part.isnan().any()) for part in y.split(1 << 16 if y.dim() > 1 else 1 << 28))


@LARGE
@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("cols", [1024, 1023, 4096])
def test_two_to_the_31_elements(cols: int, more: int) -> None:
    """Rows × columns just below 2^31, at it or just past it where columns divide it, and two rows past."""
    rows = (1 << 31) // cols + 2 * more + (more > 0)
    x = torch.randn(rows, cols, device=DEVICE, dtype=BF16)
    places = [slice(0, 2), slice(rows // 2, rows // 2 + 2), slice(-2, None)]
    large(lambda t: F.softmax(t, -1), x, places)
    large(lambda t: F.gelu(t) * 2, x, places)


@LARGE
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_two_to_the_31_elements_in_one_row(more: int) -> None:
    x = torch.randn((1 << 31) + more, device=DEVICE, dtype=BF16)
    large(lambda t: F.gelu(t) * 2, x, [slice(0, 5000), slice(-5000, None), slice(1 << 30, (1 << 30) + 5000)])


@LARGE
def test_a_row_stride_above_two_to_the_31() -> None:
    stride = (1 << 31) + 64
    memory = torch.randn(2 * stride + 4096, device=DEVICE, dtype=BF16)
    for cols in (1000, 4096):
        x = memory.as_strided((3, cols), (stride, 1))
        no_worse(lambda t: (F.layer_norm(t, t.shape[-1:]), F.silu(t) + 1), x)


@pytest.mark.parametrize("rank", range(7))
def test_ranks(rank: int) -> None:
    x = torch.randn([2, 3, 1, 2, 3, 5][:rank], device=DEVICE)
    no_worse(lambda x: (torch.tanh(x) * 2 + 1, x.sum(), torch.softmax(x, -1)), x)


def test_normalized_shapes_of_several_dimensions_and_bias_alone() -> None:
    x, b = randn(2, 3, 5, 7), randn(3, 5, 7)
    no_worse(lambda x, b: F.layer_norm(x, b.shape, None, b), x, b)
    no_worse(lambda x, b: F.layer_norm(x, b.shape, b, b), x, b)


@pytest.mark.parametrize("n", [256, 760, 1000, 1024, 4096, 5140, 8192, 12288, 16384, 32768])
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_no_cliff_beside_a_length(dtype: torch.dtype, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time a byte at N is at most 1.2 of that at N ± 1; 128 MiB a tensor, inputs that no cache holds."""
    monkeypatch.setattr(runner, "allocator", allocator)  # filling memory with NaN is not to be timed
    device = torch.device(DEVICE)
    sets = timer.sets_needed(128 << 20, device)
    calls: dict[str, timer.Call] = {}
    bytes_of: dict[str, int] = {}
    for cols in (n - 1, n, n + 1):
        compiled = torch.compile(
            lambda x, w: F.layer_norm(x, x.shape[-1:], w, w), backend=Backend(), dynamic=False
        )
        inputs = [randn((128 << 20) // cols // dtype.itemsize, cols, dtype=dtype) for _ in range(sets)]
        w = randn(cols, dtype=dtype)
        calls[str(cols)] = lambda i, f=compiled, xs=inputs, w=w: f(xs[i], w)  # type: ignore[misc]
        bytes_of[str(cols)] = 2 * inputs[0].numel() * dtype.itemsize
    us = timer.cold(calls, sets, 15, device)
    per_byte = {c: timer.Spread.of(samples).median / bytes_of[c] for c, samples in us.items()}
    assert max(per_byte.values()) <= 1.2 * min(per_byte.values()), per_byte


# Layouts


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice of packed": lambda x: torch.cat([x, x + 1, x], -1)[..., x.shape[-1] : 2 * x.shape[-1]],
    "transposed": lambda x: x.mT.contiguous().mT,
    "expanded": lambda x: x[:1].expand(x.shape),
    "one element off": lambda x: moved(x, 1),
    "every second": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("cols", [33, 256, 1000, 4099])
def test_layouts(layout: str, dtype: torch.dtype, cols: int) -> None:
    no_worse(norms, LAYOUTS[layout](randn(5, cols, dtype=dtype)), randn(cols + 1, dtype=dtype)[1:])


def test_channels_last() -> None:
    x = randn(2, 6, 5, 7).contiguous(memory_format=torch.channels_last)
    (y,) = no_worse(lambda x: F.gelu(x + 1) * 2, x)
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_the_same_tensor_twice_and_writing_to_an_input() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x.add_(y)
        y.mul_(F.gelu(x))
        return x[1:], torch.softmax(y, -1), x * y

    x, w = randn(4, 64), randn(64)
    no_worse(lambda x, r, w: (F.layer_norm(x + r, w.shape, w, w), x + r), x, x, w)
    pairs = [
        (torch.arange(99.0, device=DEVICE).view(3, 33) / 50, torch.ones(3, 33, device=DEVICE))
        for _ in range(2)
    ]
    found, expected = (
        torch.compile(function, backend=Backend(), dynamic=False)(*pairs[0]),
        function(*pairs[1]),
    )
    torch.testing.assert_close((pairs[0], found), (pairs[1], expected))
    assert found[0].untyped_storage().data_ptr() == pairs[0][0].untyped_storage().data_ptr()


# Types


def test_norms_of_mixed_dtypes() -> None:
    taken: list[Any] = []

    def norm(x: Any, w: Any, b: Any, r: Any) -> Any:
        return F.layer_norm((x + r).to(x.dtype), (65,), w, b, EPS)

    for kind in (FP32, BF16, FP16):
        for weight in (kind, FP32, None):
            for bias in (weight, None):
                for residual in (kind, FP32):
                    w, b = (None if k is None else randn(65, dtype=k) for k in (weight, bias))
                    given = [randn(4, 65, dtype=kind), w, b, randn(4, 65, dtype=residual)]
                    try:
                        norm(*given)
                    except RuntimeError:
                        continue
                    taken += given
    assert len(taken) >= 4 * 20
    no_worse(lambda *flat: tuple(norm(*flat[i : i + 4]) for i in range(0, len(flat), 4)), *taken)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64], ids=str
)
def test_integers_booleans_and_complex_numbers_are_owned_or_left(dtype: torch.dtype) -> None:
    low, high = (0, 2) if dtype == torch.bool else (-100, 100)
    x = torch.randint(low, high, (5, 33), device=DEVICE).to(dtype)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x + 1, x * 3, x.sum(-1), x == 1, torch.where(x == 1, x, 0 * x)

    found = torch.compile(function, backend=Backend(), dynamic=False)(x)
    for y, e in zip(found, function(x), strict=True):
        assert y.dtype == e.dtype
        assert torch.equal(y, e)


# Running


def test_another_row_count_builds_nothing() -> None:
    compiled = torch.compile(lambda x: norms(x)[0] * 2, backend=Backend())
    built = []
    for rows in (5, 7, 64, 3, 5):
        x = randn(rows, 512)
        torch.testing.assert_close(compiled(x), norms(x)[0] * 2)
        built.append(COUNTERS.compiled)
    assert built[-1] == built[1]


@pytest.mark.parametrize("first", ["captured", "called"])
def test_graph_capture_and_replay_with_other_data(first: str) -> None:
    """Also where nothing was called before: kernels are compiled and loaded while the stream is captured."""
    x, w = randn(64, 760), randn(760)
    compiled = torch.compile(many, backend=Backend(), dynamic=False)
    if first == "called":
        compiled(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compiled(x, w)
    for _ in range(2):
        x.copy_(randn(64, 760))
        graph.replay()
        assert all(map(torch.equal, found, compiled(x, w)))


def test_a_side_stream_waits_for_what_it_was_told_to() -> None:
    """A kernel on another stream than the current one would read x before it is written."""
    compiled = torch.compile(lambda x: norms(x)[0], backend=Backend(), dynamic=False)
    x = torch.zeros(64, 768, device=DEVICE)
    new = randn(64, 768)
    expected = compiled(new)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # some 25 ms, in which a kernel of another stream would be done
        x.copy_(new)
        found = compiled(x)
    stream.synchronize()
    assert torch.equal(found, expected)


def test_threads_compile_and_run_at_once() -> None:
    """The first of them have done nothing on a GPU before."""
    compiled = [
        torch.compile(lambda x, k=k: norms(x * k)[0], backend=Backend(), dynamic=False) for k in (1, 2, 3, 4)
    ]
    x = randn(50, 333)
    torch.cuda.synchronize()
    results: list[Any] = [None] * 4
    failures: list[BaseException] = []

    def run(i: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    results[i] = compiled[i](x)
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    torch.testing.assert_close(results, [norms(x * k)[0] for k in (1, 2, 3, 4)])


def test_a_fresh_thread_runs_what_another_compiled() -> None:
    compiled = torch.compile(lambda x: norms(x)[0], backend=Backend(), dynamic=False)
    x = randn(50, 333)
    expected, results = compiled(x), []

    def run() -> None:
        with torch.no_grad():
            results.append(compiled(x))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(results) == 1
    assert torch.equal(results[0], expected)


@TWO
def test_another_gpu_than_the_current_one() -> None:
    compiled = torch.compile(
        lambda x, w: F.layer_norm(x, w.shape, w, w) * 2, backend=Backend(), dynamic=False
    )
    x, w = randn(64, 768), randn(768)
    expected = compiled(x, w)
    for index in (1, 0):
        device = torch.device("cuda", index)
        assert torch.cuda.current_device() == 0
        found = compiled(x.to(device), w.to(device))
        assert found.device == device
        assert torch.cuda.current_device() == 0
        assert torch.equal(found.to("cuda:0"), expected)


@TWO
def test_tensors_of_two_gpus_in_one_graph() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return F.softmax(x, -1), F.softmax(y, -1), F.gelu(x).to(y.device) + y

    x, y = randn(9, 100), randn(9, 100).to("cuda:1")
    found = torch.compile(function, backend=Backend(), dynamic=False)(x, y)
    torch.testing.assert_close(found, function(x, y))


# A fault for each class: what its test would let pass if it tested nothing. None leaves a tensor's memory.


def one_norm(x: Tensor, w: Tensor) -> tuple[Tensor]:
    return (F.layer_norm(x, w.shape, w, w),)


def default_stream() -> AbstractContextManager[Any]:
    """Kernels are launched on stream 0, whatever is current."""
    return mock.patch.object(torch._C, "_cuda_getCurrentRawStream", return_value=0)


WRAPPED = (r"i0 \* a\.x0_o0", "(i0 * a.x0_o0 & 0x7fffffff)")
Trap = Callable[[], object]
FAULTS: dict[str, tuple[Trap, Callable[[], AbstractContextManager[Any]]]] = {
    "1 the mean of squares less the square of the mean": (
        lambda: test_a_large_mean_with_a_small_spread(FP32, 513),
        lambda: moments(mean_of_squares),
    ),
    "2 squares that overflow": (
        lambda: test_rows_whose_squares_are_large(FP32, 1e18),
        lambda: moments(overflowing),
    ),
    "3 a maximum that drops NaN": (
        lambda: test_nan_and_infinities_are_where_pytorch_has_them(FP32, 37),
        lambda: in_table(REDUCE, "max", combine="({0} > {1} ? {0} : {1})"),
    ),
    "4 GELU as x (1 + erf) / 2": (
        test_the_tails_of_gelu_and_silu_keep_relative_error,
        lambda: in_table(OPS, "gelu_erf", expr="(0.5f * {0} * (1.0f + op_erf({0})))"),
    ),
    "5 no eps": (lambda: test_odd_weights_and_constant_rows(1e-12), lambda: moments(without(1e-12))),
    "6 a mean in 16 bits": (
        lambda: test_statistics_are_not_in_16_bits(FP32),
        lambda: moments(mean_in_16_bits),
    ),
    "8 sums that depend on the row": (
        lambda: nothing_but_the_row(one_norm, FP32, 250),
        lambda: changed(r"= group\.sum\(", "= (row & 1 ? 1.0000002f : 1.0f) * group.sum("),
    ),
    "9 lanes that are not masked": (
        lambda: test_row_lengths(FP32, 1023),
        lambda: changed(r"\(c \+ e < cols \? (\w+) : 0\.0f\)", r"(c + e < cols ? \1 : 1.0f)"),
    ),
    "10 the last row is left": (
        test_numbers_of_rows,
        lambda: changed(r"if \(live\)", "if (live && at != a.rows - 1)"),
    ),
    "14 a stride that is not looked at": (
        lambda: test_layouts("slice of packed", FP32, 256),
        lambda: changed(r"i0 \* a\.x0_o0", "i0 * cols"),
    ),
    "21 not the current stream": (test_a_side_stream_waits_for_what_it_was_told_to, default_stream),
}
LARGE_FAULTS: dict[str, tuple[Trap, Callable[[], AbstractContextManager[Any]]]] = {
    "11 an offset in 31 bits": (lambda: test_two_to_the_31_elements(1024, 1), lambda: changed(*WRAPPED)),
    "11 a stride in 31 bits": (test_a_row_stride_above_two_to_the_31, lambda: changed(*WRAPPED)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    trap, plant = FAULTS[fault]
    with plant(), pytest.raises(AssertionError):
        trap()


@LARGE
@pytest.mark.parametrize("fault", LARGE_FAULTS)
def test_a_planted_fault_in_large_tensors_is_found(fault: str) -> None:
    trap, plant = LARGE_FAULTS[fault]
    with plant(), pytest.raises(AssertionError):
        trap()
