"""Programs that were once captured wrongly, each with the others of its class: what comes back, and in whose memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from harness.like_eager import compiled_like_eager, same
from onepass.capture.backend import Backend
from onepass.errors import LeftToPyTorch
from onepass.ir.cluster import Map
from onepass.ops import table

pytestmark = pytest.mark.usefixtures("fresh")


R = torch.randn
X = R(4, 6)
ROWS = pytest.mark.parametrize("rows", [3, 1])


def left(backend: Backend) -> set[str]:
    """The memory-bound ops that PyTorch ran."""
    assert not backend.left
    return {c.target for made in backend.compiled for c in made.plan.calls if c.bound == "memory"}


# Memory

LAYER = torch.nn.Linear(6, 4)


def snapshots(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x + 1
    return z, z.clone().view(-1), z.clone().clone()[1:], z.to(torch.float32, copy=True).t()


ALIASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "clone, view": lambda x: x.clone().view(-1),
    "clone, t": lambda x: x.clone().t(),
    "clone, slice": lambda x: x.clone()[1:, ::2],
    "clone, detach": lambda x: x.clone().detach(),
    "to, reshape": lambda x: x.to(torch.float32, copy=True).reshape(-1),
    "clone, unbind": lambda x: x.clone().unbind(0),
    "clone, split, permute": lambda x: [p.permute(1, 0).unsqueeze(0) for p in x.clone().split(2)],
    "clone, real": lambda x: torch.view_as_complex(x.clone().view(-1, 2)),
    "dropout, view": lambda x: F.dropout(x.clone(), 0.5, False).view(2, -1),
    "views first": lambda x: x.t()[1:].clone().view(5, 4),
    "parameter": lambda x: (LAYER.weight.detach().clone().view(-1), x + 1),
    "one clone, two views": lambda x: (lambda y: (y.view(-1), y.t()))(x.clone()),
    "two clones": lambda x: (x.clone().view(-1), x.clone().view(-1), x),
    "snapshots of a value": snapshots,
    "constant": lambda x: (lambda c: (c, c.clone().view(-1), x + c))(torch.tensor([1.0, 2, 3, 4, 5, 6])),
    "filled": lambda x: (lambda z: (z, z.clone(), z.clone().view(-1), x + z))(torch.zeros(4, 6)),
    "views stay views": lambda x: (x.view(-1), x.t(), x[1:], x.detach()),
}


@pytest.mark.parametrize("name", ALIASES)
def test_memory_is_shared_as_in_eager(name: str) -> None:
    def f(x: torch.Tensor) -> Any:
        return ALIASES[name](x), x.sin()

    layer = LAYER
    compiled_like_eager(lambda x: (f(x), layer(x)), X)


def test_a_shared_memory_would_be_seen() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1) if torch.compiler.is_compiling() else x.clone().view(-1)

    with pytest.raises(AssertionError):
        compiled_like_eager(f, X, kernels=False)


def test_a_snapshot_stays() -> None:
    x = X.clone()
    got = torch.compile(lambda x: x.clone().unsqueeze(0), backend=Backend())(x)
    x.add_(1)
    same(got, X.unsqueeze(0))


def test_a_copy_that_stays_inside_is_not_made() -> None:
    backend = compiled_like_eager(lambda x: x.clone().view(2, -1).exp(), X)
    (compiled,) = backend.compiled
    assert [k.cluster.origins for k in compiled.plan.kernels] == [("exp.default",)]


def test_a_batch_of_one() -> None:
    token, places = R(1, 1, 6), R(1, 6, 6)

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        long = torch.cat([token.expand(x.shape[0], -1, -1), x], 1) + places
        return (
            *(long, F.layer_norm(long, (6,)), long.transpose(0, 1).contiguous().view(6, -1)),
            *(torch.cat([x, y], 1).relu() + 1, torch.stack([x, y], 1).view(-1, 6) * 2, x.squeeze(0).sin()),
            *(
                x.mean(0, keepdim=True) + y,
                x.clone().squeeze(0),
                (x * y).sum((0, 1)),
                x.flatten(0, 1).softmax(-1),
            ),
        )

    compiled_like_eager(f, R(3, 5, 6), R(3, 5, 6), batch_of_one=True)


# Tensors of the graph's own


class Nested(torch.nn.Module):
    """Its buffers are attributes of attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Module()
        self.inner.register_buffer("scale", R(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.inner.scale + torch.tensor([0.5])


def test_constants_of_the_program() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.clone()
        y[:, 0] = 5.0
        return (
            x + torch.tensor(1e-4),
            torch.where(x > 0, torch.tensor(1.0), x),
            x * torch.tensor([1.0, 2, 3, 4, 5, 6]),
            x + torch.as_tensor(2.5),
            y,
            torch.tensor([3, 4]),
            (x * torch.tensor(2.0)).softmax(-1) + torch.tensor(1.0),
            x.long() + torch.tensor(7),
        )

    compiled_like_eager(f, X)
    compiled_like_eager(Nested(), X)


def test_branches_inside_the_graph() -> None:
    """Their bodies are attributes too, and no tensors."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() - 1, (x,)) * 2

    compiled_like_eager(f, X)


# Concatenations and filled tensors


@ROWS
def test_concatenations_of_mixed_kinds(rows: int) -> None:
    def f(a: torch.Tensor, i: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, ...]:
        half = a.bfloat16()
        return tuple(
            torch.cat(pieces, dim)
            for dim in (0, -1)
            for pieces in (
                [a, i],
                [i, a, i],
                [i, m],
                [m, a],
                [half, a],
                [a, torch.zeros_like(a)],
                [torch.ones(rows, 4, dtype=torch.int64), i, a],
                [a.exp(), a.new_full((rows, 4), 2.5), i + 1],
                [a, a.new_empty(0)],
                [a, i.int(), i.to(torch.uint8)],
            )
        )

    i = torch.arange(rows * 4).view(rows, 4)
    assert left(compiled_like_eager(f, R(rows, 4), i, i > 1)) <= {
        "_to_copy.default",  # to narrow integers
    }


@ROWS
def test_filled_tensors_as_operands(rows: int) -> None:
    def f(x: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = torch.zeros(rows, 6)
        ones = torch.ones(rows, 6, dtype=torch.long)
        return (
            F.embedding(ones[:, :3], table) + 1,
            F.embedding(torch.zeros(rows, 3, dtype=torch.long), table) + 1,
            F.embedding(x.long().abs() % 3, torch.full((9, 5), 2.5)) * 2,
            z.softmax(-1) + x,
            z.sum(-1) + x[:, 0],
            F.layer_norm(z + 1, (6,)) + x,
            F.layer_norm(x, (6,), torch.ones(6), torch.zeros(6)),
            torch.zeros_like(z) + x,
            torch.full((rows, 6), 2.7).long() + x.long(),
            z.expand(rows, 6).t().t() + x,
            z[:, None] + x,
            torch.ones(6).bfloat16() * x,
            torch.where(x > 0, z, torch.ones(())),
        )

    compiled_like_eager(f, R(rows, 6), R(9, 5))


def test_an_op_that_is_refused_late_is_as_if_it_had_not_been_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second piece is refused when the first one has its cluster."""
    from onepass.capture import normalize

    real, asked = normalize._Reader.keep, []

    def second_fails(self: Any, clusters: Any) -> None:
        asked.append(len(clusters))
        if len(clusters) == 2:
            raise normalize.Refused("not today")
        real(self, clusters)

    monkeypatch.setattr(normalize._Reader, "keep", second_fails)
    assert left(compiled_like_eager(lambda a, b: torch.cat([a, b], 0) * 2, X, X + 1)) == {"cat.default"}
    assert 2 in asked


def test_a_fault_in_one_op_leaves_that_op(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise KeyError("0.0")

    row = table.BY_ATEN["_softmax.default"]
    monkeypatch.setitem(table.BY_ATEN, "_softmax.default", type(row)(**{**vars(row), "expand": fails}))

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.exp().softmax(-1) * 2

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="KeyError"):
        torch.compile(f, backend=Backend())(X)
    torch._dynamo.reset()
    monkeypatch.setenv("ONEPASS_STRICT", "0")
    with pytest.warns(LeftToPyTorch, match="_softmax.default"):
        backend = compiled_like_eager(f, X)
    assert left(backend) == {"_softmax.default"}
    (call,) = backend.compiled[0].plan.calls
    assert call.reason == "failure: KeyError: '0.0'"


# Integers

NARROW = [torch.int32, torch.int16, torch.int8, torch.uint8]


def narrow(a: torch.Tensor, b: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Each value is used where nothing stores it on the way."""
    wraps = (a + b, a - b, a * b, -a, a.abs(), a * 3, a + 100, a - 100, 5 - a, torch.add(a, b, alpha=3))
    wraps += (a.square(), torch.rsub(a, b), a + other, F.relu(a * 2), a << 1, a // 3)
    stays = (torch.maximum(a, b), torch.minimum(a, b), a.clamp(3, 100), F.relu(a), torch.where(a > b, a, b))
    stays += (a.masked_fill(a > b, 7), torch.cat([a, b], -1), torch.stack([a, b]))
    used = tuple(v.float() / 255 for v in (*wraps, *stays))
    used += (wraps[0].long() + 1, wraps[1].long() + 1, wraps[2] > 0, wraps[3] > 0, stays[2].long() + 1)
    return (*used, a == b, a > b, a <= 3, a != 5, a / b, a.bool(), (a > b) & (a > 3))


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_integers_wrap(dtype: torch.dtype) -> None:
    ends = torch.iinfo(dtype)
    a = torch.tensor([ends.min, ends.max, ends.max - 1, ends.max // 2 + 1, 0, 1, 5, 100]).to(dtype)
    backend = compiled_like_eager(
        narrow, a.repeat(2), torch.cat([a, a.flip(0)]).clamp(min=1), torch.tensor(2**40 + 7)
    )
    assert left(backend) == set()


def test_integers_of_64_bits_stay_in_kernels() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a + b, a * b - 3, (-a).abs() > 2, (a + b.to(torch.uint8)).float() + 1

    ends = torch.iinfo(torch.int64)
    a = torch.tensor([ends.min, ends.max, -1, 7])
    assert left(compiled_like_eager(f, a, a.flip(0))) == set()


@pytest.mark.parametrize("shape", [(5, 7), (16, 64), (3, 1), (2, 3, 10)])
def test_rolled_dimensions(shape: tuple[int, ...]) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        along = (x.roll(1, 0) + 1, x.roll(3, -1) * 2, x.roll(-8, 1), x.roll((1, -2), (0, -1)).relu())
        none = (x.roll(0, 0), x.roll(shape[-1], -1), x.roll(0))
        return (*along, *none, x.roll(5).sin(), x.roll(1, -1).sum(-1), F.softmax(x.roll(2, -1) + x, -1))

    x = R(*shape)
    assert left(compiled_like_eager(f, x)) == set()
    assert left(compiled_like_eager(f, x.transpose(0, 1).contiguous().transpose(0, 1))) <= {"roll.default"}
    with torch.no_grad():
        same = torch.compile(lambda x: x.roll(0, 0), backend="onepass")(x)
    assert same.data_ptr() != x.data_ptr()


def test_numbers_that_a_narrow_dtype_does_not_hold() -> None:
    def f(a: torch.Tensor, wide: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.where(a > 3, a, wide[0]), torch.maximum(a, wide[1]), a == wide[0], a + 0.5

    compiled_like_eager(f, torch.arange(9, dtype=torch.uint8), torch.tensor([300, -1]))


# Casts and constants


def casts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Each value is used where nothing stores it on the way."""
    results: list[torch.Tensor] = []
    for dtype in (torch.bfloat16, torch.float16):
        y = x.to(dtype)
        results += [x - y.float(), (x * 1e6).to(dtype).float() * 1, (y * 1).float(), y.float().sum(-1)]
        results += [(x.long() * 257).to(dtype).float() * 1, (x > 0).to(dtype) + 1, y, y.sin()]
        results += [x.to(torch.bfloat16).to(torch.float16).float() - x, x.exp().to(dtype).float().softmax(-1)]
        results += [x.sum(-1, keepdim=True).to(dtype).float() * x]
    return tuple(results)


@ROWS
def test_a_cast_that_the_program_asks_for_rounds(rows: int) -> None:
    assert not left(compiled_like_eager(casts, R(rows, 40) * 3))


def test_a_cast_that_is_only_stored_is_a_plain_store() -> None:
    def ops(f: Callable[..., Any]) -> list[str]:
        (made,) = compiled_like_eager(f, X).compiled
        return [n.op for k in made.plan.kernels for n in k.cluster.nodes if isinstance(n, Map)]

    linear = torch.nn.Linear(6, 4).bfloat16()
    assert not any(op.startswith("round") for op in ops(lambda x: linear(x.sin().bfloat16())))
    assert "round_bf16" in ops(lambda x: x.sin().bfloat16().float() * x)


def test_constants_are_of_their_dtype() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x + torch.full((6,), 0.1, dtype=torch.bfloat16),
            x + torch.full((6,), 0.1, dtype=torch.float16),
            x * torch.tensor(0.1, dtype=torch.bfloat16),
            x + torch.full_like(x, 1.1, dtype=torch.float16),
            x + torch.full((6,), 257).bfloat16(),
            x + torch.full((6,), 2.7, dtype=torch.int64),
            x.bfloat16() + 0.1,
        )

    compiled_like_eager(f, X)


def test_lerp_is_exact_at_both_ends() -> None:
    def f(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.lerp(a, b, w), *(torch.lerp(a, b, v) for v in (0.0, 0.25, 0.5, 0.75, 1.0, -2.0, 3.0)))

    a = torch.tensor([1e20, 3.0, -1e20, 0.0, 1.0])
    w = torch.tensor([[1.0], [0.0], [0.5], [0.3], [-0.7]])
    assert not left(compiled_like_eager(f, a, torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), w))


# Sizes


def test_reductions_of_nothing() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.t()
        return (
            *(x.sum(-1), x.mean(-1), x.sum(), x.softmax(-1), F.layer_norm(x, (0,)), x.norm(dim=-1)),
            *(y.amax(-1), y.sum(-1), y.softmax(-1), y.mean(), F.log_softmax(x, -1), x.var(-1)),
            torch.cat([x, x], 0),
            torch.cat([x, y.t()], 1),
        )

    compiled_like_eager(f, R(3, 0), kernels=False)
    compiled_like_eager(lambda x: (x.sum(-1) + 1, x.sum(0) + 1, torch.cat([x, x.new_ones(2, 4)])), R(0, 4))
    compiled_like_eager(lambda x: (x + 1, x.t() * 2, x[:, None].exp()), R(3, 0), kernels=False)


def padded(x: torch.Tensor) -> torch.Tensor:
    missing = (8 - x.shape[0] % 8) % 8
    return torch.cat([x, x.new_ones(missing, x.shape[1]) * 2], 0) + 1


SIZES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "mod": lambda x, y: padded(x),
    "max": lambda x, y: torch.ones(max(x.shape[0], y.shape[0])) * x.sum(),
    "min": lambda x, y: torch.arange(min(x.shape[0], y.shape[0])) * 2 + x.sum(),
    "floor": lambda x, y: x[: x.shape[0] // 2].exp() + x.shape[0] // 2,
    "ceiling": lambda x, y: x.new_zeros(math.ceil(x.shape[0] / 3), 3) + y.sum(),
    "rounded": lambda x, y: x[: int(x.shape[0] * 0.7)].exp(),
    "root": lambda x, y: x.exp() / x.shape[0] ** 0.5,
    "step": lambda x, y: x[::3].exp(),
    "negative": lambda x, y: x[-(x.shape[0] % 5) - 1 :].exp(),
    "product": lambda x, y: x.new_ones(x.shape[0] * y.shape[0] // 4, 2) * x.sum(),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_are_computed(name: str) -> None:
    compiled = torch.compile(SIZES[name], backend=(backend := Backend()), dynamic=True)
    for rows, others in ((13, 7), (21, 30), (16, 5)):
        given = R(rows, 8), R(others)
        same(compiled(*given), SIZES[name](*given))
    assert not backend.left


# Layouts


def test_strides_of_every_result_are_checked() -> None:
    """A fake that says another layout than PyTorch gives, for each of several results."""

    @torch.library.custom_op("onepass_tests::two", mutates_args=())
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.t().contiguous().t() + 1, x.t().contiguous().t() + 2

    @two.register_fake
    def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty(x.shape), torch.empty(x.shape)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = two(x)
        return a * 2, b.exp(), a.view(-1)

    got = torch.compile(f, backend=Backend())(X)
    same(got, ((X + 1) * 2, (X + 2).exp(), (X + 1).reshape(-1)))


# Numbers and places that are only known at run time


NUMBERS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "operand": lambda x, n: x * n.item() + 1,
    "compared": lambda x, n: torch.where(torch.arange(6) < n.item(), x, 0.0) * 2,
    "arange": lambda x, n: torch.arange(n.item(), n.item() + 6) + x,
    "filled": lambda x, n: torch.full((6,), n.item()) + x,
    "alpha": lambda x, n: torch.add(x, x, alpha=n.item()).exp(),
    "row": lambda x, n: x[n.item()] * 2,
    "size": lambda x, n: x.sum() / torch.nonzero(x > 0).shape[0] + 1,
    "narrow": lambda x, n: x.narrow(0, 0, n.item()) * 2,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_depend_on_data(name: str) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(NUMBERS[name], backend=Backend())
        for n in (3, 2):
            same(compiled(X, torch.tensor(n)), NUMBERS[name](X, torch.tensor(n)))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.as_strided(x[2:].clone(), (2,), (1,), 0) + 1,
        lambda x: torch.as_strided(x[2:].to(torch.float32, copy=True), (2,), (1,), 1) + 1,
        lambda x: torch.as_strided_scatter(x[2:].clone(), torch.ones(2), (2,), (1,), 0) + 1,
    ],
)
def test_a_copy_read_by_its_place_begins_where_copies_do(f: Callable[..., Any]) -> None:
    compiled_like_eager(f, torch.arange(8.0))


def test_a_rank_of_zero_has_dimensions_to_swap() -> None:
    compiled_like_eager(lambda x: x.transpose(0, -1) + 1, torch.tensor(2.0))


def test_products_overflow_where_eagers_do() -> None:
    big, zero = torch.full((8,), 1e30), torch.zeros(8)
    compiled_like_eager(lambda x, a: torch.addcmul(x, a, a, value=1e-30), zero, big)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sign_of_zero_is_kept(dtype: torch.dtype) -> None:
    zeros = torch.tensor([-0.0, 0.0], dtype=dtype).repeat(20)
    for f in (torch.expm1, torch.log1p, torch.tanh, torch.sin, F.elu, torch.erf, torch.sqrt):
        found, expected = torch.compile(lambda x, f=f: f(x), backend=Backend())(zeros), f(zeros)
        assert torch.equal(found.signbit(), expected.signbit()), f
        assert (found == 0).all()


def test_a_chain_of_views_is_one_step() -> None:
    """One for two that walk alike. What begins elsewhere, may be a copy or is returned is made as it was."""
    w = R(6, 6)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.sin(x)
        a = y.view(2, 2, 6).transpose(0, 1).reshape(4, 6) @ w.t()
        b = y.unsqueeze(0).view(4, 6) @ w.t()
        return a, b, y.view(4, 6) @ w, y[1:].view(-1), y.view(2, 2, 6), y.unsqueeze(0).view(2, 2, 6)

    for dynamic in (False, True):
        torch._dynamo.reset()
        (compiled,) = compiled_like_eager(f, X, dynamic=dynamic).compiled
        walks = [line for line in compiled.text.splitlines() if ".as_strided(" in line]
        assert len({line.split(" = ")[1] for line in walks}) == len(walks) == 4


def test_a_result_is_a_view_only_where_eager_returns_one() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        return y @ w, (y @ w).view(torch.int32)[:4].view(torch.float32), y.view(-1)

    given = R(2, 8, 16), R(16, 16)
    with torch.no_grad():
        found, expected = torch.compile(f, backend=Backend())(*given), f(*given)
    assert [t._is_view() for t in found] == [t._is_view() for t in expected]
