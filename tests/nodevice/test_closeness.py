"""The one rule for a result beside its float64 reference."""

from __future__ import annotations

import pytest
import torch

from onepass.analysis.closeness import close_to, typical

SHARE = 1e-4


def rows() -> torch.Tensor:
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_rounding_is_close_and_a_wrong_element_is_not() -> None:
    exact = rows()
    assert close_to(exact.float(), exact, SHARE) == ""
    broken = exact.float()
    broken[3, 7] += 0.01
    assert close_to(broken, exact, SHARE).startswith(f"[{3 * 64 + 7}] is ")
    assert "1 of 512" in close_to(broken, exact, SHARE)


@pytest.mark.parametrize(
    ("huge", "count"), [(1e6, 1), (1e30, 1), (-1e9, 200), (torch.finfo(torch.float32).min, 500)]
)
def test_huge_values_do_not_hide_what_is_wrong(huge: float, count: int) -> None:
    """An outlier, a mask's -1e9, and finfo.min in nearly all places: a mean of magnitudes lets anything else through."""
    exact = rows()
    exact.view(-1)[:count] = huge
    result = exact.float()
    assert close_to(result, exact.float().double(), SHARE) == ""
    result[7, 63] = exact[7, 63] + 0.01
    assert "1 of 512" in close_to(result, exact.float().double(), SHARE)


def test_a_large_tensor_is_sampled_across_its_columns() -> None:
    exact = torch.ones(2048, 2048, dtype=torch.float64)
    exact[:, ::4] = 1e6  # a step of 4 would meet nothing else
    assert typical(exact, torch.float32) == 2.0


def test_what_the_types_cannot_hold_is_no_error() -> None:
    """fp16 rounds 1e-9 to 0, and a device flushes fp32's subnormal numbers."""
    tiny = torch.full((4,), 1e-9, dtype=torch.float64)
    assert close_to(torch.zeros(4, dtype=torch.float16), tiny, 1e-3) == ""
    assert close_to(torch.zeros(4), tiny, 1e-3) != ""
    assert close_to(torch.zeros(4), torch.full((4,), 1e-39, dtype=torch.float64), 1e-3) == ""


def test_cancelled_sums_may_be_as_inexact_as_their_terms() -> None:
    exact = torch.ones(16, dtype=torch.float64)
    exact[0] = 0.0
    result = exact.float()
    result[0] = 1e-4
    assert close_to(result, exact, SHARE) == ""
    result[0] = 5e-4
    assert close_to(result, exact, SHARE) != ""


def test_nan_infinity_integers_and_sizes() -> None:
    nan, inf = torch.tensor([float("nan"), 1.0]), torch.tensor([float("inf"), 1.0])
    assert close_to(nan, nan.double(), SHARE) == "" and close_to(inf, inf.double(), SHARE) == ""
    assert close_to(nan, inf.double(), SHARE) and close_to(torch.tensor([3e38, 1.0]), inf.double(), SHARE)
    assert close_to(torch.tensor([0.0, 1.0]), nan.double(), SHARE)
    assert close_to(torch.tensor([1, 2]), torch.tensor([1, 2]), SHARE) == ""
    assert close_to(torch.tensor([1, 2]), torch.tensor([1, 3]), SHARE)
    assert close_to(torch.ones(3), torch.ones(4), SHARE) == " has 3 elements and its reference 4"
