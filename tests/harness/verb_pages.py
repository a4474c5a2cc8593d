"""Pages of the verbs other than explain, of figures that nobody measured: what is looked at is how they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch

from harness.pages import encoder
from onepass.analysis.words import Words
from onepass.insight.demo.comparison import Throughput
from onepass.insight.demo.page import demo_page
from onepass.insight.demo.passages import QUESTIONS, Passage
from onepass.insight.demo.story import Answer, Story
from onepass.insight.fusion_experiment import WAYS, Experiment, Way
from onepass.insight.profile import Contender, Group, OpTime, Profile
from onepass.insight.profile_page import profile_page
from onepass.ladder.machine import named
from onepass.ladder.measure import Measured
from onepass.ladder.page import ladder_page
from onepass.ladder.report import Report
from onepass.ladder.rungs import HERE, load
from onepass.ladder.study import Study, study
from onepass.runtime.timer import Spread

LONG = "row_block_add_rms_norm_mul_silu_mul_cast_add_layer_norm_gelu_bf16"


def spread(median: float) -> Spread:
    return Spread(median, 0.97 * median, 1.04 * median)


@cache
def profiled(groups: int = 12) -> Profile:
    """Groups with a saving as forecast, more, less, a loss, none measured; long names; more than a picture takes."""
    kinds = (
        Group("cpu_bias_gelu_fp32", ("gelu",), 24, 48_000_000, 20_000_000, 2400.0, (800.0, 1300.0), 1000.0),
        Group(LONG, ("add",), 1, 4_000_000, 2_000_000, 120.0, (40.0, 60.0), 20.0),
        Group("cpu_tanh_fp32", ("tanh",), 1, 2_000_000, 2_000_000, 300.0, (90.0, 100.0), 290.0),
        Group("cpu_softmax_fp32", ("softmax",), 2, 2_000_000, 2_000_000, 100.0, (180.0, 240.0), 200.0),
        Group("cpu_mean_fp32", ("mean",), 1, 2_000_000, 1_000_000, 200.0, (50.0, 100.0), None),
    )
    found = tuple(replace(kinds[i % 5], kernel=f"{kinds[i % 5].kernel}_{i}") for i in range(groups))
    return Profile(
        "NVIDIA H200",
        {"matmul": 4000.0, "attention": 0.0, "memory-bound": 3000.0},
        9000.0,
        (
            OpTime("mm", "mm.default", "matmul", 4000.0),
            OpTime("gelu", "gelu.default", "memory-bound", 3000.0),
        ),
        found,
        tuple(
            Contender(n, spread(us), 2.0, 3 << 30)
            for n, us in (("eager", 9000.0), ("onepass", 7200.0), ("inductor", 7600.0))
        ),
        (),
        report=encoder(12)[1],
    )


@cache
def ladder(measured: bool) -> Study:
    """LayerNorm's ladder without a GPU; as if measured, a rung is as predicted, better, worse or void."""
    found = study(load(HERE / "layer_norm"), named("H200"), 65536, [256, 1024], on_device=False)
    if not measured:
        return found
    entries = []
    for i, e in enumerate(found.entries):
        us = (e.us or 1.0) * (1.0, 0.8, 1.6)[i % 3]
        gbps = e.ideal_bytes / us / 1e3
        row = Measured(
            spread(us), gbps, gbps / 4800, 1.2 if i == 5 else min(gbps / 4300, 1.0), 4300.0, 0.4, True
        )
        entries.append(e if e.rung.wrong else replace(e, measured=row))
    return replace(found, entries=tuple(entries), is_measured=True)


@cache
def demonstrated() -> Story:
    passage = Passage(
        "CONTEXTMANAGERS", "A context manager is an object that defines the runtime context. " * 6
    )
    answers = tuple(
        Answer(q, passage, passage if i else Passage("x", "another")) for i, q in enumerate(QUESTIONS)
    )
    ways = tuple(
        Way(n, 3 - i if i < 3 else 1, 1_400_000_000, spread(900.0 / (i + 1)), spread(i + 1.0), 1e-6)
        for i, n in enumerate(WAYS)
    )
    return Story(
        torch.device("cpu"),
        8,
        True,
        2137,
        Throughput(spread(5210.0), spread(6120.0), spread(1.17), 128),
        3e-7,
        answers,
        encoder(6)[1],
        Experiment(16384, 1024, 15, ways),
    )


MADE: dict[str, Callable[[Words], str]] = {
    "profile": lambda words: profile_page(profiled(), words),
    "profile of 60 groups": lambda words: profile_page(profiled(60), words),
    "ladder": lambda words: ladder_page(Report(ladder(False), words.language), words),
    "ladder measured": lambda words: ladder_page(Report(ladder(True), words.language), words),
    "demo": lambda words: demo_page(demonstrated(), words),
}
