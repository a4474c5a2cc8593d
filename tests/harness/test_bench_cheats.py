"""The benchmark harness catches contenders that do not do the work."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import rules
from baselines import Absent
from cases import Case, Inputs, Point, cases
from check import Check
from measure import ROOF, Measured, measure
from onepass.runtime.timer import Call

CPU = torch.device("cpu")
# A width no vector divides; small, for the checks read every value.
POINT = Point(cases()["layer_norm"], "fp32", 96, 1000)


def honest(case: Case, inputs: Inputs) -> Call:
    return lambda i: case.function(*inputs.arguments(i))


def nan_in_one_lane(case: Case, inputs: Inputs) -> Call:
    def call(i: int) -> Any:
        out = case.function(*inputs.arguments(i))
        out[-1, -1] = torch.nan
        return out

    return call


def writes_nothing(case: Case, inputs: Inputs) -> Call:
    return lambda i: torch.empty_like(inputs.arguments(i)[0])


def kept_from_before(case: Case, inputs: Inputs) -> Call:
    kept: dict[int, Any] = {}

    def call(i: int) -> Any:
        if i not in kept:
            kept[i] = case.function(*inputs.arguments(i))
        return kept[i]

    return call


def right_only_when_first_looked_at(case: Case, inputs: Inputs) -> Call:
    stale: list[Any] = []

    def call(i: int) -> Any:
        if stale:
            return stale[0]
        stale.append(case.function(*inputs.arguments(1)))
        return case.function(*inputs.arguments(i))

    return call


def modifies_its_input(case: Case, inputs: Inputs) -> Call:
    def call(i: int) -> Any:
        x, *rest = inputs.arguments(i)
        out = case.function(x, *rest)
        x[0, 0] += 1
        return out

    return call


def leaves_out_the_last_row(case: Case, inputs: Inputs) -> Call:
    def call(i: int) -> Any:
        x, *rest = inputs.arguments(i)
        out = torch.empty_like(x)
        out[:-1] = case.function(x[:-1], *rest)
        return out

    return call


def statistics_in_16_bits(case: Case, inputs: Inputs) -> Call:
    def call(i: int) -> Any:
        x, weight, bias = inputs.arguments(i)
        mean = x.mean(-1, keepdim=True).bfloat16().float()
        rstd = ((x - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt().bfloat16().float()
        return (x - mean) * rstd * weight + bias

    return call


def other_dtype(case: Case, inputs: Inputs) -> Call:
    return lambda i: case.function(*inputs.arguments(i)).bfloat16()


def raises(case: Case, inputs: Inputs) -> Call:
    raise RuntimeError("no such luck\nand more")


CHEATS: dict[str, tuple[Callable[[Case, Inputs], Call], str]] = {
    "nan": (nan_in_one_lane, "not finite"),
    "nothing": (writes_nothing, ""),  # whatever lay there: NaN, or far from right
    "stale": (kept_from_before, "on new values"),
    "stale when timed": (right_only_when_first_looked_at, "when timed"),
    "modifies": (modifies_its_input, "modified an input"),
    "last row": (leaves_out_the_last_row, ""),
    "16 bits": (statistics_in_16_bits, "far from float64"),
    "dtype": (other_dtype, "bfloat16"),
    "raises": (raises, "RuntimeError: no such luck"),
}


def make(name: str, case: Case, inputs: Inputs) -> Call:
    if name == "absent":
        raise Absent("not here")
    return honest(case, inputs) if name == "honest" else CHEATS[name][0](case, inputs)


@pytest.fixture(scope="module")
def measured() -> Measured:
    return measure(POINT, "cold", 3, ["honest", *CHEATS, "absent"], CPU, make)


def test_the_honest_one_is_measured(measured: Measured) -> None:
    assert set(measured.us) == {ROOF, "honest"}
    assert len(measured.us["honest"]) == len(measured.us[ROOF]) == 3
    assert all(us > 0 for us in measured.us["honest"])


@pytest.mark.parametrize("name", CHEATS)
def test_each_cheat_is_caught(measured: Measured, name: str) -> None:
    assert CHEATS[name][1] in measured.faults[name]


def test_one_that_is_not_there_has_its_reason(measured: Measured) -> None:
    assert measured.absent == {"absent": "not here"}


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", sorted(cases()))
def test_eager_is_right_in_every_case(name: str, dtype: str) -> None:
    point = Point(cases()[name], dtype, 320, 1024 if cases()[name].block else 1000)
    inputs = Inputs(point, CPU, 1)
    check = Check(point, inputs)
    assert check.call(honest(point.case, inputs)) == ""
    check.renew()
    assert check.call(honest(point.case, inputs)) == ""


@pytest.mark.parametrize("name", sorted(n for n, c in cases().items() if not c.quantizes))
def test_one_element_dropped_from_the_reduction_is_seen(name: str) -> None:
    """Every case over a row that lacks its last column differs by more than the tolerance, in fp32."""
    point = Point(cases()[name], "fp32", 320, 1000)
    inputs = Inputs(point, CPU, 1)
    check = Check(point, inputs)

    def call(i: int) -> Any:
        arguments = [t[..., :-1] for t in inputs.arguments(i)]
        result = point.case.function(*arguments)
        parts = result if isinstance(result, tuple) else (result,)
        full = tuple(torch.nn.functional.pad(p, (0, 1)) for p in parts)
        return full if isinstance(result, tuple) else full[0]

    assert "far from float64" in check.call(call)


def rounded_toward_zero(y: Tensor, scale: Tensor) -> Tensor:
    return ((y / scale).view(torch.int32) & ~0xFFFFF).view(torch.float32).to(torch.float8_e4m3fn)


# What a quantising contender may do wrong with the exact norm, its scales of each part, and 128 columns a part.
QUANTISING_CHEATS: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], str]] = {
    "honest": (lambda y, s: ((y / s).to(torch.float8_e4m3fn), s), ""),
    "toward zero": (lambda y, s: (rounded_toward_zero(y, s), s), "values are too far"),
    "e5m2": (lambda y, s: ((y / s).to(torch.float8_e5m2), s), "float8_e5m2"),
    "e5m2 as e4m3": (
        lambda y, s: ((y / s).to(torch.float8_e5m2).float().to(torch.float8_e4m3fn), s),
        "values are too far",
    ),
    "twice the scale": (lambda y, s: ((y / s / 2).to(torch.float8_e4m3fn), 2 * s), "scales are too far"),
    "the neighbour's scale": (lambda y, s: ((y / s).to(torch.float8_e4m3fn), s.roll(1, 0)), "scales are"),
    "a NaN": (
        lambda y, s: ((y / s * torch.where(y == y[0, 0], torch.nan, 1)).to(torch.float8_e4m3fn), s),
        "finite",
    ),
    "16-bit scales": (
        lambda y, s: ((y / s).to(torch.float8_e4m3fn), s.bfloat16()),
        "scales of torch.bfloat16",
    ),
}


@pytest.mark.parametrize("cheat", QUANTISING_CHEATS)
@pytest.mark.parametrize("name", ["rms_norm_fp8_row", "rms_norm_fp8_block"])
def test_quantised_results_are_judged(name: str, cheat: str) -> None:
    point = Point(cases()[name], "fp32", 64, 1024)
    inputs = Inputs(point, CPU, 1)
    wrong, words = QUANTISING_CHEATS[cheat]

    def call(i: int) -> Any:
        y = point.case.exact(*inputs.arguments(i)).view(-1, point.case.block or point.cols)
        q, scale = wrong(y, y.abs().amax(-1, keepdim=True) / 448)
        return q.view(point.rows, point.cols), scale.view(point.rows, -1)

    found = Check(point, inputs).call(call)
    assert words in found if words else not found


def sample(us: dict[str, list[float]], protocol: str = "cold", point: Point = POINT) -> Measured:
    return Measured(point, protocol, 2, us, point.ideal_bytes, "stream", {}, {})


def test_faster_than_the_roof_does_not_count() -> None:
    found = sample({ROOF: [10.0] * 3, "eager": [30.0] * 3, "onepass": [9.0] * 3})
    void = rules.voids(found, "some device")
    assert set(void) == {"onepass"}
    assert "of the measured roof" in void["onepass"]


def test_within_two_per_cent_of_the_roof_counts() -> None:
    assert not rules.voids(sample({ROOF: [10.0] * 3, "onepass": [9.9] * 3}), "some device")


def test_a_warm_graph_is_not_held_to_the_roof_of_memory() -> None:
    assert not rules.voids(sample({ROOF: [10.0] * 3, "onepass": [5.0] * 3}, "graph-warm"), "some device")


H200 = "NVIDIA H200"
BIG = Point(cases()["layer_norm"], "fp32", (512 << 20) // 4 // 1024, 1024)


def at(gbps: float) -> list[float]:
    return [BIG.ideal_bytes / gbps / 1e3] * 3


def test_a_low_roof_voids_the_point() -> None:
    void = rules.voids(sample({ROOF: at(4100), "onepass": at(4050)}, point=BIG), H200)
    assert set(void) == {ROOF, "onepass"}
    assert "roof 4100" in void["onepass"]


def test_a_peer_far_below_what_is_known_voids_the_point() -> None:
    us = {ROOF: at(4260), "eager": at(2750), "inductor": at(3900), "onepass": at(4200)}
    assert "inductor 3900" in rules.voids(sample(us, point=BIG), H200)["onepass"]
    us["inductor"] = at(4100)
    assert not rules.voids(sample(us, point=BIG), H200)
