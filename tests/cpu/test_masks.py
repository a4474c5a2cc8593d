"""Masks made of index arithmetic: each is proven only if it is what the proof says at every size.

The masks are compiled with symbolic sizes and then built again in eager at many sizes, small ones, where an
index more or less shows at once. 2 to 9 covers windows, offsets and strides up to 5, the largest used here.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.capture import proof
from onepass.capture.attention import set_aside

Mask = Callable[[int, int], Tensor]
ALL, CAUSAL, UNPROVEN = "proven all true", "proven causal", "unproven"
SIZES = range(2, 10)
INF, LOWEST = float("inf"), torch.finfo(torch.float32).min


def outcomes(masks: list[Mask], *, square: bool) -> list[str]:
    """What becomes of each mask at symbolic lengths, as many keys as queries or not."""
    seen: list[str] = []

    def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
        seen[:] = [outcome.mask if outcome.mask in (ALL, CAUSAL) else UNPROVEN for outcome in set_aside(gm)]
        return gm.forward

    def function(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        length, keys = query.shape[2], key.shape[2]
        return [F.scaled_dot_product_attention(query, key, value, mask(length, keys)) for mask in masks]

    torch._dynamo.reset()
    query = torch.randn(3, 2, 6, 8)
    key = value = query if square else torch.randn(3, 2, 11, 8)
    for tensor in (query, key):
        torch._dynamo.mark_dynamic(tensor, 2)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for mine, theirs in zip(compiled(query, key, value), function(query, key, value), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)
    torch._dynamo.reset()
    assert len(seen) == len(masks)
    return seen


def truth(mask: Mask, *, square: bool) -> str:
    """What the mask lets through at every size tried."""
    found = {ALL, CAUSAL}
    for length, keys in itertools.product(SIZES, SIZES):
        if square and length != keys:
            continue
        built = mask(length, keys)
        kept = built if built.dtype is torch.bool else built == 0
        shut_out = ~kept if built.dtype is torch.bool else built == float("-inf")
        kept, shut_out = (part.expand(*part.shape[:-2], length, keys) for part in (kept, shut_out))
        if not kept.all():
            found.discard(ALL)
        lower = torch.ones(length, keys, dtype=torch.bool).tril()
        if length != keys or not (kept == lower).all() or not (shut_out == ~lower).all():
            found.discard(CAUSAL)
    return next(iter(sorted(found)), UNPROVEN)


def q(length: int) -> Tensor:
    return torch.arange(length)[:, None]


def kv(keys: int) -> Tensor:
    return torch.arange(keys)[None, :]


def written_to(length: int, keys: int) -> Tensor:
    mask = torch.ones(length, keys, dtype=torch.bool)
    mask[0, 1] = False
    return mask


def written_through_a_view(length: int, keys: int) -> Tensor:
    mask = torch.ones(length, keys, dtype=torch.bool)
    mask.view(-1)[1:2].logical_not_()
    return mask


NAMED: dict[str, tuple[str, Mask]] = {
    "index at least zero": (ALL, lambda n, m: (q(n) >= 0).expand(n, m)),
    "key below length": (ALL, lambda n, m: kv(m).expand(n, m) < m),
    "ones": (ALL, lambda n, m: torch.ones(n, m, dtype=torch.bool)),
    "conjunction": (ALL, lambda n, m: torch.ones((), dtype=torch.bool) & (q(n) >= 0) & (kv(m) + 3 > 2)),
    "one of two": (ALL, lambda n, m: (kv(m) <= q(n)) | (kv(m) > q(n))),
    "zeros added": (ALL, lambda n, m: torch.zeros(1, 1, n, m)),
    "where always zero": (ALL, lambda n, m: torch.where(q(n) - kv(m) < n, 0.0, float("-inf"))),
    "one minus one": (ALL, lambda n, m: (1.0 - (q(n) >= 0).expand(n, m).float()) * LOWEST),
    "shifted below": (ALL, lambda n, m: kv(m) <= q(n) + m),
    "causal": (CAUSAL, lambda n, m: kv(m) <= q(n)),
    "causal by not": (CAUSAL, lambda n, m: ~(kv(m) > q(n))),
    "causal strictly": (CAUSAL, lambda n, m: kv(m) < q(n) + 1),
    "causal with four dimensions": (CAUSAL, lambda n, m: (kv(m) <= q(n))[None, None].expand(3, 1, n, m)),
    "causal and true": (CAUSAL, lambda n, m: (kv(m) <= q(n)) & (q(n) >= 0) & (kv(m) < m)),
    "causal, doubled": (CAUSAL, lambda n, m: 2 * kv(m) <= 2 * q(n) + 1),
    "tril": (CAUSAL, lambda n, m: torch.ones(n, m, dtype=torch.bool).tril()),
    "not triu": (CAUSAL, lambda n, m: ~torch.triu(torch.ones(n, m), diagonal=1).bool()),
    "triu of minus infinity": (CAUSAL, lambda n, m: torch.triu(torch.full((n, m), -INF), diagonal=1)),
    "masked fill": (CAUSAL, lambda n, m: torch.zeros(n, m).masked_fill(kv(m) > q(n), -INF)),
    "where": (CAUSAL, lambda n, m: torch.where(q(n) >= kv(m), 0.0, -INF)[None, None]),
    "offset on both": (CAUSAL, lambda n, m: kv(m) + 2 <= q(n) + 2),
    "start and end": (
        CAUSAL,
        lambda n, m: torch.arange(5, 5 + m)[None, :] <= torch.arange(5, 5 + n)[:, None],
    ),
    "transposed": (CAUSAL, lambda n, m: (q(m) <= kv(n)).transpose(0, 1)),
    "sliced": (CAUSAL, lambda n, m: (kv(m + 2) <= q(n + 2))[1:-1, 1 : m + 1]),
    "counting down": (UNPROVEN, lambda n, m: torch.arange(n - 1, -1, -1)[:, None] >= kv(m)),
    "minimum": (CAUSAL, lambda n, m: torch.minimum(q(n), kv(m)) == kv(m)),
    "strictly below": (UNPROVEN, lambda n, m: (kv(m) < q(n)) | (kv(m) == 0)),
    "one above": (UNPROVEN, lambda n, m: kv(m) <= q(n) + 1),
    "upper triangle": (UNPROVEN, lambda n, m: kv(m) >= q(n)),
    "window behind": (UNPROVEN, lambda n, m: (kv(m) <= q(n)) & (kv(m) > q(n) - 5)),
    "window around": (UNPROVEN, lambda n, m: (q(n) - kv(m)).abs() <= 5),
    "almost all": (UNPROVEN, lambda n, m: q(n) + kv(m) < n + m - 2),
    "not the first key": (UNPROVEN, lambda n, m: kv(m).expand(n, m) >= 1),
    "chunks": (UNPROVEN, lambda n, m: q(n) // 3 == kv(m) // 3),
    "diagonal": (UNPROVEN, lambda n, m: q(n) == kv(m)),
    "tril shifted": (UNPROVEN, lambda n, m: torch.ones(n, m, dtype=torch.bool).tril(diagonal=1)),
    "lowest float": (UNPROVEN, lambda n, m: torch.triu(torch.full((n, m), LOWEST), 1)),
    "a small bias": (UNPROVEN, lambda n, m: torch.full((n, m), 0.5)),
    "written to": (UNPROVEN, written_to),
    "written to through a view": (UNPROVEN, written_through_a_view),
}


@pytest.fixture(autouse=True)
def _inference() -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def test_named_masks_are_what_they_are_called() -> None:
    for name, (expected, mask) in NAMED.items():
        found = truth(mask, square=True)
        assert found == expected or name == "lowest float", name


def test_named_masks_of_as_many_keys_as_queries() -> None:
    found = outcomes([mask for _, mask in NAMED.values()], square=True)
    expected = [expected for expected, _ in NAMED.values()]
    assert dict(zip(NAMED, found, strict=True)) == dict(zip(NAMED, expected, strict=True))


def test_named_masks_of_any_number_of_keys_are_never_proven_causal() -> None:
    for (name, (expected, mask)), found in zip(
        NAMED.items(), outcomes([mask for _, mask in NAMED.values()], square=False), strict=True
    ):
        assert found == UNPROVEN or found == truth(mask, square=False), name
        assert found == (ALL if expected is ALL else UNPROVEN), name


def test_the_last_query_sees_every_key_it_may() -> None:
    def outcome(mask: Callable[[int], Tensor]) -> str:
        seen: list[str] = []

        def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
            seen.extend(outcome.mask for outcome in set_aside(gm))
            return gm.forward

        query, key = torch.randn(3, 2, 1, 8), torch.randn(3, 2, 7, 8)
        torch._dynamo.mark_dynamic(key, 2)

        def function(query: Tensor, key: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(query, key, key, mask(key.shape[2]))

        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        assert torch.allclose(compiled(query, key), function(query, key), rtol=1e-5, atol=1e-6)
        return seen[0]

    def past(keys: int) -> Tensor:
        return torch.arange(1)[:, None] + (keys - 1)

    assert outcome(lambda keys: kv(keys) <= past(keys)) == ALL
    assert outcome(lambda keys: (kv(keys) <= past(keys)) & (kv(keys) >= 0)) == ALL
    assert outcome(lambda keys: kv(keys) < past(keys)) not in (ALL, CAUSAL)
    assert outcome(lambda keys: kv(keys) > past(keys) - 5) not in (ALL, CAUSAL)
    assert outcome(lambda keys: kv(keys) <= torch.arange(1)[:, None]) not in (ALL, CAUSAL)


def random_mask(source: random.Random) -> Mask:
    """A mask near the interesting ones: comparisons of shifted indices, joined, negated, as bool or float."""

    def index(depth: int) -> Callable[[Tensor, Tensor], Tensor]:
        shift, factor = source.choice((-1, 0, 0, 0, 1, 5)), source.choice((1, 1, 1, 2))
        match source.randrange(8 if depth else 4):
            case 0 | 1:
                return lambda a, b: a * factor + shift
            case 2 | 3:
                return lambda a, b: b * factor + shift
            case 4:
                one, other = index(0), index(0)
                return lambda a, b: one(a, b) - other(a, b)
            case 5:
                inner = index(depth - 1)
                return lambda a, b: inner(a, b).abs() + shift
            case 6:
                one, other = index(0), index(0)
                return lambda a, b: torch.minimum(one(a, b), other(a, b))
            case _:
                chosen, one, other = condition(0), index(0), index(0)
                return lambda a, b: torch.where(chosen(a, b), one(a, b), other(a, b))

    def condition(depth: int) -> Callable[[Tensor, Tensor], Tensor]:
        if depth == 0 or source.random() < 0.3:
            one, other = index(min(depth, 1)), index(min(depth, 1))
            compare = source.choice((torch.le, torch.lt, torch.ge, torch.gt, torch.ne, torch.eq))
            return lambda a, b: compare(one(a, b), other(a, b))
        one, other = condition(depth - 1), condition(depth - 1)
        match source.randrange(4):
            case 0:
                return lambda a, b: ~one(a, b)
            case 1:
                return lambda a, b: one(a, b) | other(a, b)
            case 2:
                return lambda a, b: one(a, b) & (a + b >= 0)
            case _:
                return lambda a, b: one(a, b) & other(a, b)

    def near_causal() -> Callable[[Tensor, Tensor], Tensor]:
        shift, factor, other = source.choice((0, 0, 0, -1, 1)), source.choice((1, 2)), condition(1)
        match source.randrange(4):
            case 0:
                return lambda a, b: (factor * b <= factor * a + shift) & other(a, b)
            case 1:
                return lambda a, b: (factor * b <= factor * a + shift) | other(a, b)
            case 2:
                return lambda a, b: ~(b > a + shift)
            case _:
                return lambda a, b: (b - 3 <= a + shift - 3) & (a >= 0)

    chosen = source.choice((condition, lambda _: near_causal()))(2)
    as_float = source.random() < 0.3

    def mask(length: int, keys: int) -> Tensor:
        kept = chosen(q(length), kv(keys)).expand(length, keys)
        return torch.where(kept, 0.0, float("-inf")) if as_float else kept

    return mask


def proven_wrongly(masks: list[Mask], *, square: bool) -> tuple[Counter[str], int]:
    """How many masks were proven to be what, and how many of them are not what the proof says."""
    found = outcomes(masks, square=square)
    wrong = [
        mask
        for mask, outcome in zip(masks, found, strict=True)
        if outcome != UNPROVEN and truth(mask, square=square) != outcome
    ]
    return Counter(found), len(wrong)


@pytest.mark.parametrize("square", [True, False])
def test_random_masks_are_never_proven_wrongly(square: bool) -> None:
    source = random.Random(7)
    found, wrong = proven_wrongly([random_mask(source) for _ in range(50)], square=square)
    assert wrong == 0
    # Without some of each the test says nothing.
    assert found[ALL] >= 3
    assert found[CAUSAL] >= 3 * square
    assert found[UNPROVEN] >= 10


def test_a_prover_that_is_off_by_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = proof._has_no_solution
    monkeypatch.setattr(proof, "_has_no_solution", lambda given: right([line - 1 for line in given]))
    source = random.Random(7)
    masks = [random_mask(source) for _ in range(30)]
    with pytest.raises(AssertionError):
        assert proven_wrongly(masks, square=True)[1] == 0
