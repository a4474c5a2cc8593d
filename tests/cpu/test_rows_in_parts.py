"""Long rows on the CPU: parts that threads share, and the same bits whichever threads have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from harness.together import Planned, compiled_for_cpu, planned, run
from onepass.codegen.cpu_parts import PartsPrinter
from onepass.plan.schedules.cpu_parts import PART, PartsSchedule

EPS = 2.0**-24  # of fp32
# A whole part, one vector past it, several parts of which the last is no vector.
COLS = (PART, PART + 16, 3 * PART + 7)

Function = Callable[[Tensor], Tensor]
FUNCTIONS: dict[str, Function] = {
    "sum": lambda x: x.sum(-1),
    "std": lambda x: x.std(-1),
    "amax": lambda x: x.amax(-1),
    "argmax": lambda x: x.argmax(-1),
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
}


def given(rows: int, cols: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(rows, cols, generator=torch.Generator().manual_seed(cols)) + 1.5).to(dtype)


def case(function: Function, x: Tensor) -> Planned:
    return planned(make_fx(function, tracing_mode="fake")(x), [x])


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def bound(name: str, exact: Tensor, x: Tensor) -> Tensor | float:
    """What fp32 may lose: 16 lanes of 4 vectors add 1024 terms of a part one by one, then parts in groups of 32.

    A result of n additions is off by n roundings at most, of a sum of magnitudes. The largest element loses nothing.
    """
    steps = PART / 64 + 6 + 32 + x.shape[-1] / PART / 32 + 2
    if name in ("amax", "argmax"):
        return 0.0
    if name == "sum":
        return steps * EPS * x.double().abs().sum(-1)
    if name == "softmax":
        return (steps + 8) * EPS * exact.abs()  # and an exponential's own two units
    slack = (steps + 8) * EPS  # of a mean, a variance, and what is made of them
    return slack * (exact.abs() + x.double().abs().mean(-1, keepdim=exact.dim() == x.dim()))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parts_are_right_whoever_has_them(name: str, threads: Callable[[int], None]) -> None:
    function = FUNCTIONS[name]
    given_, cases = [], []
    for cols in COLS:
        many = given(3, cols)
        for x in (many[:1].clone(), many):
            given_.append(x)
            cases.append(case(function, x))
    with compiled_for_cpu(cases):
        results = []
        for count in (1, 2):
            threads(count)
            results.append([run(c)[0] for c in cases])
    for i, (x, one, two) in enumerate(zip(given_, *results, strict=True)):
        exact = function(x.double())
        assert isinstance(cases[i].plan.kernels[0].schedule, PartsSchedule) == (x.shape[-1] > PART)
        assert torch.equal(one, two), "the number of threads changes bits"
        assert bool(((one.double() - exact).abs() <= bound(name, exact, x)).all()), (name, x.shape)
    for alone, among in zip(results[1][::2], results[1][1::2], strict=True):
        assert torch.equal(alone[0], among[0]), "other rows change bits"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_parts_of_other_classes(dtype: torch.dtype, threads: Callable[[int], None]) -> None:
    x = given(1, COLS[-1]).mul(100).to(dtype)
    with compiled_for_cpu([made := case(FUNCTIONS["sum"], x)]):
        threads(2)
        (found,) = run(made)
    exact = x.double().sum(-1)
    eps = {torch.float64: 2.0**-53, torch.bfloat16: 2.0**-8, torch.int64: 0.0}[dtype]
    terms = (PART / 64 + 48) * min(eps, EPS) * x.double().abs().sum(-1)
    assert bool(((found.double() - exact).abs() <= terms + eps * exact.abs()).all())


def test_what_no_number_is_spreads_as_in_pytorch(threads: Callable[[int], None]) -> None:
    """A first part without a number above -inf, a NaN in the last part, and an infinity."""
    x = given(1, COLS[-1]).repeat(3, 1)
    x[0, :PART] = -torch.inf
    x[1, -1] = torch.nan
    x[2, PART] = torch.inf
    for name in ("softmax", "amax", "sum"):
        for row in x.split(1):
            threads(2)
            with compiled_for_cpu([made := case(FUNCTIONS[name], row)]):
                (found,) = run(made)
            want = FUNCTIONS[name](row)
            assert torch.equal(found.isnan(), want.isnan())
            torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-6, equal_nan=True)


def test_a_part_that_is_left_out_is_noticed(threads: Callable[[int], None]) -> None:
    x = given(1, 3 * PART)
    whole = PartsPrinter.put

    def short(self: PartsPrinter, depth: int, line: str) -> None:
        whole(self, depth, line.replace("p < a->parts &&", "p < a->parts - 1 &&"))

    with mock.patch.object(PartsPrinter, "put", short):
        made = case(FUNCTIONS["sum"], x)
    threads(2)
    with compiled_for_cpu([made]):
        (found,) = run(made)
    exact = x.double().sum(-1)
    assert bool(((found.double() - exact).abs() > bound("sum", exact, x)).all())
