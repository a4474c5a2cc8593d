"""Address algebra against torch's own strided views."""

import random

import torch

from onepass.ir.address import (
    View,
    compose,
    compose_window,
    contiguous,
    is_identity,
    refine,
    reshape,
    split,
)
from onepass.ir.symbol import name, quotient


def walk(view: View) -> list[int]:
    numbers = [int(view.offset)]
    for size, stride in view.dims:
        numbers = [n + i * int(stride) for n in numbers for i in range(int(size))]
    return numbers


def random_view(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(["permute", "slice", "expand", "split", "select", "flatten"])
        if kind == "permute":
            t = t.permute(rng.sample(range(t.dim()), t.dim()))
        elif kind == "slice" and t.dim():
            d = rng.randrange(t.dim())
            lo = rng.randrange(t.shape[d])
            t = t.narrow(d, lo, rng.randint(1, t.shape[d] - lo))
        elif kind == "expand":
            t = t.unsqueeze(0).expand(rng.randint(1, 3), *t.shape)
        elif kind == "select" and t.dim() > 1:
            d = rng.randrange(t.dim())
            t = t.select(d, rng.randrange(t.shape[d]))
        elif kind == "split" and t.dim():
            d = rng.randrange(t.dim())
            if t.shape[d] % 2 == 0:
                t = t.unflatten(d, (2, t.shape[d] // 2))
        elif kind == "flatten" and t.dim() > 1:
            try:
                t = t.view(-1)
            except RuntimeError:
                continue
    return t


def test_compose_equals_the_strided_walk() -> None:
    rng = random.Random(7)
    composed = 0
    for _ in range(3000):
        shape = [rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randint(1, 4))]
        storage = torch.arange(20000)
        base = random_view(storage[: int(torch.tensor(shape).prod())].view(shape), rng)
        logical = random_view(torch.arange(base.numel()).view(base.shape), rng)
        memory = View(tuple(zip(base.shape, base.stride(), strict=True)), base.storage_offset())
        over = View(tuple(zip(logical.shape, logical.stride(), strict=True)), logical.storage_offset())
        result = compose(memory, over)
        if result is None:
            continue
        composed += 1
        assert walk(result) == base.reshape(-1)[logical.reshape(-1)].tolist()
    assert composed > 1500


def test_compose_refuses_a_walk_across_a_dimension() -> None:
    assert compose(View(((4, 8), (4, 1))), View(((4, 1),), 2)) is None
    rows = name("s")
    assert compose(View(((rows, 8), (4, 1))), View(((4, 1),), 2)) is None
    assert compose(View(((4, 2 * rows), (rows, 1))), View(((rows + 1, 1),))) is None


def test_symbolic_heads() -> None:
    b, s = name("b"), name("s")
    base = View(((b, s * 192), (s, 192), (192, 1)))
    heads = View(((b, s * 192), (4, 16), (s, 192), (16, 1)), 64)
    assert compose(base, heads) == heads
    assert reshape(contiguous((b * s, 64)), (b, s, 64)) == contiguous((b, s, 64))
    assert is_identity(reshape(contiguous((b, s, 64)), (b * s, 64)))


def test_a_symbolic_slice_of_a_fixed_size() -> None:
    s = name("s")
    assert compose(View(((1, 64), (64, 1))), View(((1, 0), (s, 1)))) == View(((1, 0), (s, 1)))
    assert compose(View(((64, 8), (8, 1))), View(((s, 8), (8, 1)))) == View(((s, 8), (8, 1)))
    assert compose(View(((4, 100), (64, 1))), View(((4, 64), (s, 1)))) is None  # may run into the next row


def test_a_walk_into_a_piece_is_proven_to_stay_inside() -> None:
    """What goes past a whole tensor PyTorch has refused; past a piece of one it is in the next piece."""
    s = name("s")
    piece = View(((4, 100), (8, 1)), 50)
    inside, past = View(((3, 8), (8, 1)), 8), View(((4, 8), (8, 1)), 8)
    assert compose(piece, inside, proven=True) == compose(piece, inside) == View(((3, 100), (8, 1)), 150)
    assert compose(piece, past) is not None and compose(piece, past, proven=True) is None
    assert compose(piece, View((), 32)) is not None and compose(piece, View((), 32), proven=True) is None
    unknown = View(((s, 8), (8, 1)))
    assert compose(piece, unknown) is not None and compose(piece, unknown, proven=True) is None
    whole = View(((s, 100), (8, 1)))
    assert compose(whole, unknown, proven=True) == whole
    columns = View(((3, 8), (20, 1)), 8 - 6)
    assert compose_window(piece, columns, (6, 14), proven=True) == View(((3, 100), (20, 1)), 150 - 6)
    assert compose_window(piece, columns, (6, 15), proven=True) is None
    assert compose_window(piece, View(((4, 8), (20, 1)), 8 - 6), (6, 14), proven=True) is None


def test_split_and_refine() -> None:
    b, s = name("b"), name("s")
    assert split(contiguous((b * s * 64,)).dims, 64) == (((b * s, 64),), ((64, 1),))
    assert split(((6, 1),), 4) is None
    sizes, strides = refine([((b * s, 64),), ((b, 0), (s, 16))])
    assert sizes == (b, s)
    assert strides == [(s * 64, 64), (0, 16)]
    sizes, strides = refine([((4, 12), (3, 4)), ((12, 4),)])
    assert (sizes, strides) == ((12,), [(4,), (4,)])


def test_quotient_of_polynomials() -> None:
    b, s = name("b"), name("s")
    assert quotient((b * s + 2 * b) * 6, b * 3) == 2 * s + 4
    assert quotient(b * s + b, s + 1) == b
    assert quotient(b * s, 2) is None
    assert quotient(s + 1, s) is None
