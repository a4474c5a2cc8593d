"""Generated kernels on a real GPU, against float64: odd sizes, strides, alignments, streams, graph capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from onepass.capture.backend import Backend
from onepass.runtime.counters import COUNTERS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# One below and above a vector, a warp, a block, powers of two; five vectors a lane; primes; longer than registers hold;
# of two, four and eight blocks; longer than a cluster holds.
COLS = [
    1,
    2,
    3,
    7,
    127,
    129,
    255,
    257,
    513,
    640,
    760,
    1000,
    1023,
    1024,
    1025,
    3584,
    5120,
    5140,
    8191,
    12289,
    16384,
    16385,
    32768,
    40000,
    65537,
    131072,
    262144,
    1 << 20,
]


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms_norm(x: torch.Tensor, w: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w


def softmax(x: torch.Tensor, _: torch.Tensor, __: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, -1)


def gelu_add_layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(x) + x, (x.shape[-1],), w, b)


def compiled(f: Callable[..., Any]) -> tuple[Callable[..., Any], Backend]:
    torch._dynamo.reset()
    backend = Backend()
    return torch.compile(f, backend=backend), backend


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative, and NaN never passes."""
    e = ((got.double() - want).norm() / want.norm().clamp_min(1e-30)).item()
    return e if e == e else float("inf")


def check(
    f: Callable[..., Any], *args: torch.Tensor, slack: float = 2.0, floor: float = 8.0, kernels: bool = True
) -> Backend:
    """At most ``slack`` times eager's own error, or ``floor`` roundings of the result; in kernels, or in none."""
    run, backend = compiled(f)
    with torch.no_grad():
        before = [a.clone() for a in args]
        got = run(*args)
        eager = f(*args)
        want = f(*(a.double() if a.is_floating_point() else a for a in args))
    for a, b in zip(args, before, strict=True):
        assert torch.equal(a, b), "an input was written"
    outs = zip(*((o if isinstance(o, tuple) else (o,)) for o in (got, eager, want)), strict=True)
    for g, e, w in outs:
        assert g.dtype == e.dtype
        assert g.stride() == e.stride()
        bound = max(slack * error(e, w), floor * torch.finfo(g.dtype).eps / 2)
        assert error(g, w) <= bound
    assert any(c.plan.kernels for c in backend.compiled) is kernels
    return backend


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("f", [layer_norm, rms_norm, softmax, gelu_add_layer_norm])
def test_rows(f: Callable[..., Any], dtype: torch.dtype, cols: int) -> None:
    torch.manual_seed(cols)
    x = torch.randn(37, cols, device="cuda", dtype=dtype) + 3  # a mean far from zero shows an unmasked lane
    if cols == 2:  # a row of two nearly equal values has hardly a variance, and its norm enlarges any error
        x = x / 8 + torch.tensor([0.0, 2.0], device="cuda", dtype=dtype)
    w, b = torch.randn(2, cols, device="cuda", dtype=dtype)
    if cols == 1 and f in (layer_norm, gelu_add_layer_norm):
        pytest.skip(
            "a row of one element has no variance: the result is the bias, errors relative to it mean nothing"
        )
    check(f, x, w, b)


@pytest.mark.parametrize("rows", [0, 1, 3, 131, 133, 65535, 65536])
def test_row_counts(rows: int) -> None:
    x = torch.randn(rows, 256, device="cuda", dtype=torch.bfloat16)
    check(lambda t: F.softmax(t, -1), x, kernels=rows > 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layouts(dtype: torch.dtype) -> None:
    """Slices of a packed tensor, a storage offset of one element, transposed, expanded, a misaligned weight."""
    packed = torch.randn(64, 3 * 192, device="cuda", dtype=dtype)
    flat = torch.randn(64 * 192 + 1, device="cuda", dtype=dtype)
    w = torch.randn(193, device="cuda", dtype=dtype)
    for x in (
        packed[:, 192:384],
        flat[1:].view(64, 192),
        torch.randn(192, 64, device="cuda", dtype=dtype).t(),
        torch.randn(1, 192, device="cuda", dtype=dtype).expand(64, 192),
        torch.randn(64, 384, device="cuda", dtype=dtype)[:, ::2],
    ):
        check(layer_norm, x, w[1:], w[:-1])
        check(lambda t, u: F.gelu(t) * u, x, w[1:])


def test_inner_reduction() -> None:
    x = torch.randn(8, 50, 77, device="cuda")
    check(lambda t: t.mean(1), x)
    check(lambda t: F.softmax(t, 1), x)


def test_gather_cat_and_rotary() -> None:
    table = torch.randn(1000, 64, device="cuda")
    ids = torch.randint(0, 1000, (4, 33), device="cuda")
    check(lambda i, t: F.layer_norm(F.embedding(i, t), (64,)), ids, table)

    def rotary(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        turned = torch.cat([-q[..., 32:], q[..., :32]], -1)
        return q * cos + turned * sin

    q = torch.randn(2, 33, 4, 64, device="cuda").transpose(1, 2)
    check(rotary, q, torch.randn(33, 64, device="cuda"), torch.randn(33, 64, device="cuda"))
    check(lambda a, b: torch.cat([a, b * 2], 1), q, q[:, :1])


def test_values() -> None:
    """Infinities and NaN where PyTorch has them; a whole row of -inf."""
    x = torch.randn(8, 1000, device="cuda")
    x[0, 999], x[1, 0], x[2], x[3, 500] = float("nan"), float("inf"), float("-inf"), float("-inf")
    run, _ = compiled(lambda t: F.softmax(t, -1))
    with torch.no_grad():
        assert torch.equal(run(x).isnan(), F.softmax(x, -1).isnan())
    large = torch.randn(16, 4096, device="cuda") * 1e-3 + 1e4
    check(lambda t: F.layer_norm(t, (4096,)), large, slack=1.5)


def test_same_bits_whatever_the_batch_and_alignment() -> None:
    x = torch.randn(513, 1000, device="cuda", dtype=torch.bfloat16)
    w, b = torch.randn(2, 1000, device="cuda", dtype=torch.bfloat16)
    moved = torch.empty(x.numel() + 1, device="cuda", dtype=x.dtype)[1:].view_as(x).copy_(x)
    run, _ = compiled(layer_norm)
    with torch.no_grad():
        whole = run(x, w, b)
        assert torch.equal(whole, run(x, w, b))
        assert torch.equal(whole[100:101], run(x[100:101], w, b))
        assert torch.equal(whole, run(moved, w, b))


@pytest.mark.parametrize(
    ("family", "rows", "cols"), [("row-cluster", 201, 40000), ("row-stream", 301, 800_000)]
)
def test_long_rows_have_the_same_bits_whatever_the_batch_and_alignment(
    family: str, rows: int, cols: int
) -> None:
    """301 rows are a block each, one is shared by many."""
    x = torch.randn(rows, cols, device="cuda")
    w, b = torch.randn(2, cols, device="cuda")
    moved = torch.empty(3 * cols + 1, device="cuda")[1:].view(3, cols).copy_(x[:3])
    run, backend = compiled(layer_norm)
    with torch.no_grad():
        whole = run(x, w, b)
        assert [k.schedule.family for c in backend.compiled for k in c.plan.kernels] == [family]
        assert torch.equal(whole, run(x, w, b))
        assert torch.equal(whole[100:101], run(x[100:101], w, b))
        assert torch.equal(whole[:3], run(moved, w, b))
        assert error(whole[-1], layer_norm(x[-1].double(), w.double(), b.double())) < 1e-6


def test_few_long_rows_in_a_graph() -> None:
    """What parts of a row wait in is memory of the graph."""
    run, _ = compiled(lambda t: F.softmax(t, -1))
    x = torch.randn(2, 1 << 21, device="cuda")
    with torch.no_grad():
        run(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = run(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(out, run(x))


def test_second_size_builds_no_kernel() -> None:
    run, _ = compiled(layer_norm)
    w, b = torch.randn(2, 512, device="cuda")
    with torch.no_grad():
        run(torch.randn(4, 7, 512, device="cuda"), w, b)
        built = COUNTERS.compiled
        for rows in (9, 33, 7):
            run(torch.randn(5, rows, 512, device="cuda"), w, b)
    assert COUNTERS.compiled == built


def test_graph_capture_and_side_stream() -> None:
    run, _ = compiled(layer_norm)
    x = torch.randn(64, 768, device="cuda")
    w, b = torch.randn(2, 768, device="cuda")
    with torch.no_grad():
        run(x, w, b)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            side = run(x, w, b)
        stream.synchronize()
        assert torch.equal(side, run(x, w, b))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = run(x, w, b)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(out, run(x, w, b))


def test_long_rows_and_more_than_two_to_the_31() -> None:
    check(lambda t: F.softmax(t, -1), torch.randn(3, 262144, device="cuda"))
    x = torch.randn(2**31 // 4096 + 3, 4096, device="cuda", dtype=torch.bfloat16)
    run, _ = compiled(lambda t: F.softmax(t, -1))
    with torch.no_grad():
        out = run(x)
    rounding = torch.finfo(torch.bfloat16).eps / 2
    for place in (slice(2), slice(-2, None)):
        assert error(out[place], F.softmax(x[place].double(), -1)) <= 2 * rounding
    # Every row: roundings of 4096 terms of either sign add up to less than one of the sum.
    sums = torch.cat([part.sum(-1, dtype=torch.float32) for part in out.split(65536)])
    assert (sums - 1).abs().max().item() <= rounding  # NaN fails
