"""Kernels of shapes that have been wrong once, under the oracle's bound: each is one that random graphs seldom hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from harness.oracle import Oracle, trace
from harness.together import Planned, planned, run_emulated, run_on_cpu
from harness.tolerance import bounds


def joined_norm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Pieces that no vector width divides, in a row that is reduced."""
    x = torch.cat([a, b, a * 2], -1)
    return F.layer_norm(x, (x.shape[-1],), None, None, 2**-17)


def joined_steps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A piece whose elements are not neighbours."""
    x = torch.cat([b, a[..., ::2]], -1)
    return torch.softmax(x.float(), -1)


PIECES = [(37, 91), (3, 5), (64, 66), (33, 1), (8, 24)]


def pieces(cuda: bool, dtype: torch.dtype, function: Callable[..., torch.Tensor]) -> list[Planned]:
    made = []
    for i, (n, m) in enumerate(PIECES):
        g = torch.Generator().manual_seed(i)
        inputs = [(3 + torch.rand(4, k, generator=g)).to(dtype) for k in (n, m)]
        made.append(planned(trace(function, inputs), inputs, cuda))
    return made


def complaints(cases: list[Planned], function: Callable[..., torch.Tensor], cuda: bool) -> list[str]:
    found = (run_emulated if cuda else run_on_cpu)(cases)
    return [
        text
        for case, results in zip(cases, found, strict=True)
        for bound, result in zip(
            bounds(Oracle(case.captured, case.inputs), [function(*case.inputs)], [case.plan]),
            results,
            strict=True,
        )
        if (text := bound.complaint(result))
    ]


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("function", [joined_norm, joined_steps])
def test_pieces_in_rows(function: Callable[..., torch.Tensor], cuda: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        cases = pieces(cuda, dtype, function)
        for case in cases:
            assert len(case.plan.kernels) == 1 and not case.left
            assert any(a.window for a in case.plan.kernels[0].kernel.accesses)
        assert not complaints(cases, function, cuda)


def gathered_after_reduction(x: torch.Tensor, ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The table's columns are the kernel's rows: each row reads one element, some way into a table row."""
    return x.amin(-1) * F.embedding(ids, table)


def gathered_in_parts(x: torch.Tensor, ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The columns of a table row are cut into groups that are reduced alone."""
    return (F.embedding(ids, table).view(x.shape) * x).sum(-1)


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize(
    ("function", "width"),
    [(gathered_after_reduction, 3), (gathered_in_parts, 3 * 127)],
    ids=["after", "parts"],
)
def test_a_table_read_some_way_into_its_rows(
    function: Callable[..., torch.Tensor], width: int, cuda: bool
) -> None:
    g = torch.Generator().manual_seed(1)
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [
            (3 + torch.rand(4, 3, 127, generator=g)).to(dtype),
            torch.randint(0, 5, (4,), generator=g),
            (1 + torch.rand(5, width, generator=g)).to(dtype),
        ]
        case = planned(trace(function, inputs), inputs, cuda)
        assert len(case.plan.kernels) == 1 and not case.left
        assert any(a.index for a in case.plan.kernels[0].kernel.accesses)
        assert not complaints([case], function, cuda)


def test_a_result_whose_elements_share_memory_stays_with_pytorch() -> None:
    """Its kernel would write more elements than there are."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.native_dropout((x * 2).expand(2), 0.25, False)[0]

    def read(x: torch.Tensor) -> torch.Tensor:
        return function(x) * torch.tensor([1.0, 3.0])

    x = torch.rand(1) + 1
    case = planned(trace(function, [x]), [x])
    assert case.left == ["native_dropout.default: layout: elements of the result share memory"]
    assert torch.equal(run_on_cpu([case])[0][0], function(x))
    reading = planned(trace(read, [x]), [x])
    assert torch.equal(run_on_cpu([reading])[0][0], read(x))


@pytest.mark.parametrize("cuda", [False, True])
def test_a_sum_down_many_rows_keeps_its_digits(cuda: bool) -> None:
    """Added one by one, 60,000 terms are off by ten times as much."""
    x = 0.5 + torch.rand(60_000, 3, generator=torch.Generator().manual_seed(0))
    case = planned(trace(lambda x: (x * 1.5).sum(0), [x]), [x], cuda)
    ((found,),) = (run_emulated if cuda else run_on_cpu)([case])
    exact = (x.double() * 1.5).sum(0)
    assert ((found.double() - exact) / exact).abs().max() <= 4 * 2**-24
