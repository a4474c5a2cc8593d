"""The table of GPUs: each number has a source, each derived number is the stated one, each name finds its card."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from onepass.cli import main
from onepass.device import (
    FACTS,
    KNOWN,
    Card,
    Limits,
    absent,
    architectures,
    cards,
    find,
    limits_of,
    of,
)
from onepass.errors import OnepassError, UnknownGpu

# Datasheets give bandwidth in three or four digits (900 for 898) and arithmetic in two or three (14 for 14.13).
BANDWIDTH_ROUNDING, FP32_ROUNDING = 0.004, 0.0095

# The GPUs that the table must have, as people call them.
NAMES = """
V100, T4, RTX 2080 Ti, A100 40GB, A100 80GB, A10, A30, A40, A800, RTX 3060, RTX 3060 Ti, RTX 3070, RTX 3070 Ti, RTX 3080,
RTX 3080 Ti, RTX 3090, RTX 3090 Ti, RTX 3080 Ti Laptop GPU, RTX 4060, RTX 4060 Ti, RTX 4070, RTX 4070 SUPER, RTX 4070 Ti,
RTX 4070 Ti SUPER, RTX 4080, RTX 4080 SUPER, RTX 4090, RTX 4090 D, RTX 4090 Laptop GPU, L4, L20, L40S, H100 SXM, H100 PCIe,
H100 NVL, H800, H20, H200, GH200, B200, RTX 5060, RTX 5060 Ti, RTX 5070, RTX 5070 Ti, RTX 5080, RTX 5090, RTX PRO 6000
"""


@pytest.mark.parametrize("name", [n.strip() for n in NAMES.replace("\n", " ").split(",")])
def test_the_table_has_what_people_own_or_rent(name: str) -> None:
    card = find(name)
    assert card.bandwidth_gbps, "the one number that every roofline needs"


@pytest.mark.parametrize("card", cards(), ids=lambda c: c.name)
def test_each_number_has_a_source_with_a_date(card: Card) -> None:
    for fact in FACTS:
        assert (getattr(card, fact) is None) == (fact not in card.sources), fact
    for source in card.sources.values():
        assert source.document and source.date[:2] == "20"
    assert card.limits in architectures().values()


def wrong(card: Card) -> list[str]:
    """Derived numbers that differ from the stated ones by more than rounding."""
    found = []
    for what, derived, stated, rounding in (
        ("bandwidth", card.derived_gbps, card.bandwidth_gbps, BANDWIDTH_ROUNDING),
        ("fp32", card.derived_tflops, card.fp32_tflops, FP32_ROUNDING),
    ):
        if derived and stated and abs(derived / stated - 1) > rounding:
            found.append(f"{what}: {derived} derived, {stated} stated")
    return found


@pytest.mark.parametrize("card", cards(), ids=lambda c: c.name)
def test_derived_numbers_are_the_stated_ones(card: Card) -> None:
    """Bus width × data rate ÷ 8; multiprocessors × lanes × 2 × clock."""
    assert not wrong(card)


def test_most_cards_have_all_that_is_derived() -> None:
    assert sum(c.derived_gbps is not None for c in cards()) >= 60
    assert sum(c.derived_tflops is not None for c in cards()) >= 60


@pytest.mark.parametrize(
    "change", [{"bandwidth_gbps": 3350.0}, {"units": 76}, {"bus_bits": 256}, {"fp32_tflops": 30.0}]
)
def test_a_wrong_number_would_be_seen(change: dict[str, float]) -> None:
    """An L4 at 3350 GB/s stands in PyTorch's own table."""
    assert wrong(replace(find("L4"), **change))  # type: ignore[arg-type]


def test_ridge_points() -> None:
    """Of the V100 SXM2, 900 GB/s and 15.7 TFLOP/s, and of the RTX 3080 Ti, 912 GB/s and 34.1 TFLOP/s."""
    assert find("V100 SXM2").ridge == pytest.approx(17.4, abs=0.05)
    assert find("3080 Ti").ridge == pytest.approx(37.4, abs=0.05)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("V100", "Tesla V100-SXM2-16GB"),
        ("3080 Ti", "NVIDIA GeForce RTX 3080 Ti"),
        ("rtx3080ti", "NVIDIA GeForce RTX 3080 Ti"),
        ("NVIDIA GeForce RTX 3080 Ti", "NVIDIA GeForce RTX 3080 Ti"),
        ("GeForce RTX 3080 Ti Laptop GPU", "NVIDIA GeForce RTX 3080 Ti Laptop GPU"),
        ("H200", "NVIDIA H200"),
        ("A100 PCIe", "NVIDIA A100 80GB PCIe"),
        ("RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation"),
        ("rtx 6000", "Quadro RTX 6000"),
    ],
)
def test_names(name: str, full: str) -> None:
    assert find(name).name == full


def test_no_name_means_two_cards() -> None:
    for card in cards():
        for name in (card.name, *card.aliases):
            assert find(name) is card


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownGpu) as caught:
        find("3085 Ti")
    assert isinstance(caught.value, OnepassError)
    assert caught.value.nearest[0] == "NVIDIA GeForce RTX 3080 Ti"
    assert "NVIDIA GeForce RTX 3080 Ti" in str(caught.value)


def test_what_plans_use_is_what_the_table_says() -> None:
    """The few records that kernels are planned with name cards of the table and hold its limits."""
    for device in KNOWN:
        card = find(device.name)
        limits = card.limits
        assert (device.arch, device.units) == (card.arch, card.units)
        assert (device.threads, device.blocks, device.registers) == (
            limits.threads,
            limits.blocks,
            limits.registers,
        )
        assert device.shared_bytes == limits.shared_bytes
        assert card.l2_mib and device.l2_bytes == card.l2_mib * 2**20
        assert card.bandwidth_gbps and 0.85 < device.bandwidth_gbps / card.bandwidth_gbps < 0.95


def test_a_gpu_that_is_not_here_is_planned_for_by_its_full_name() -> None:
    for device in KNOWN:
        assert of(device.name) is device
    found = of("NVIDIA GeForce RTX 3080 Ti")
    assert (found.kind, found.arch, found.units, found.blocks) == ("cuda", "sm_86", 80, 16)
    assert found.bandwidth_gbps == pytest.approx(0.88 * 912)
    assert of("cpu").kind == of("meta").kind == "cpu"
    assert all(absent(card.name) for card in cards())
    assert absent("V100") is None  # a full name, so that no device of PyTorch is taken for a card


@pytest.mark.parametrize("limits", architectures().values(), ids=lambda limits: limits.arch)
def test_what_one_block_may_ask_for_fills_a_multiprocessor(limits: Limits) -> None:
    assert limits.block_shared_bytes + limits.reserved_shared_bytes == limits.shared_bytes
    assert limits.carveouts_bytes[-1] == limits.shared_bytes
    assert limits.threads % 512 == 0 and 16 <= limits.blocks <= 32


def test_an_architecture_that_is_not_known_takes_the_rules_of_an_older_one() -> None:
    assert limits_of("sm_90a") is limits_of("sm_90")
    assert limits_of("sm_88").arch == "sm_87"
    assert limits_of("sm_60").arch == "sm_70"


# The verbs


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def invoke(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["onepass", *arguments])
        try:
            code = main()
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


@pytest.mark.parametrize("verb", ["devices", "occupancy", "roofline", "calibrate"])
def test_each_verb_has_help_and_json(run: Run, verb: str) -> None:
    code, out, _ = run(verb, "--help")
    assert code == 0 and "--json" in out


def test_devices_lists_all_and_shows_one_with_sources(run: Run) -> None:
    code, out, _ = run("devices", "--json")
    assert code == 0 and len(json.loads(out)["devices"]) == len(cards()) >= 40
    code, out, _ = run("devices", "3080 Ti", "--json")
    (card,) = json.loads(out)["devices"]
    assert card["bandwidth_gbps"] == {
        "value": 912,
        "unit": "1e9 bytes/s",
        **find("3080 Ti").sources["bandwidth_gbps"].__dict__,
    }
    code, out, _ = run("devices", "H20")
    assert code == 0 and "Unknown: boost_mhz, data_rate_gbps" in out


def test_a_wrong_device_exits_2_with_the_nearest(run: Run) -> None:
    for verb in (("devices", "V10O"), ("occupancy", "--device", "V10O")):
        code, out, err = run(*verb)
        assert (code, out) == (2, "")
        assert "Tesla V100-SXM2-16GB" in err


def test_occupancy_says_both_and_which_is_which(run: Run) -> None:
    code, out, _ = run("occupancy", "--device", "V100", "--block", "1", "--registers", "32")
    assert code == 0
    assert out.startswith(
        "Warp occupancy 50 %, thread occupancy 1.56 % on Tesla V100-SXM2-16GB: 32 blocks of 1 thread"
    )
    code, out, _ = run(
        "occupancy", "--device", "V100", "--block", "256", "--registers", "40", "--shared", "0", "--json"
    )
    document = json.loads(out)
    assert (document["schema"], document["blocks"], document["warp_occupancy"]) == (
        "onepass.occupancy/1",
        6,
        0.75,
    )
    assert len(document["curve"]) == 32 and document["binding"] == ["registers"]
    assert {
        "resource": "registers",
        "direction": "down",
        "value": 32,
        "blocks": 8,
        "warp_occupancy": 1.0,
    } in document["cliffs"]


def test_a_kernel_that_cannot_start_exits_1(run: Run) -> None:
    code, out, _ = run("occupancy", "--device", "sm_90", "--block", "800", "--registers", "80")
    assert code == 1 and out.startswith(
        "Such a kernel cannot start on sm_90: too much for one multiprocessor in registers."
    )
