"""PyTorch's op database as the test of the vocabulary: every entry and dtype, a fixed choice of their samples.

`tools/opinfo_full.py` runs all of them; its log is in log/. Here at least one sample of each entry and dtype runs, chosen
by a hash. Tolerances are derived (`judge.py`); the faults at the end must be seen by the same comparison.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from harness import together
from onepass.capture.backend import Backend
from onepass.ops.table import OPS, REDUCE
from opinfo.battery import STATES, Outcome, outcomes, plan
from opinfo.entries import DTYPES, EXCLUDED, SPECIAL, chosen, entries, samples
from opinfo.judge import one

HERE = Path(__file__).parent
FROZEN = tomllib.loads((HERE / "samples.toml").read_text())
PARTS = 6  # for workers to share
COUNTED = 12  # of so many entries one has its samples counted: all take minutes
PINNED = re.search(r"^torch==(\S+)", (HERE.parents[1] / "constraints.txt").read_text(), re.MULTILINE)


# The list


def test_the_database_is_what_was_frozen() -> None:
    """Another version of PyTorch brings other samples: `tools/opinfo_full.py --freeze` writes the list anew."""
    assert PINNED is not None
    if torch.__version__.partition("+")[0] != PINNED[1]:
        pytest.skip(f"the list is that of torch {PINNED[1]}")
    names = sorted(entries())
    assert names == sorted(FROZEN["samples"])
    for name in names[::COUNTED]:
        counts = dict(zip(DTYPES, FROZEN["samples"][name], strict=True))
        assert sum(1 for _ in samples(name, "float32")) == counts["float32"], name


def test_exclusions_have_reasons_and_are_few() -> None:
    assert FROZEN["excluded"] == EXCLUDED
    assert all(len(why) > 20 for why in EXCLUDED.values())
    assert len(EXCLUDED) <= 0.05 * (len(FROZEN["samples"]) + len(EXCLUDED))
    assert set(FROZEN["left"]["special"]) == SPECIAL <= FROZEN["samples"].keys()


# The log of all samples


def logged() -> list[dict[str, Any]]:
    return [json.loads(text) for text in (HERE / "log" / "cpu.jsonl").read_text().splitlines()]


def test_the_log_has_every_sample_and_none_is_wrong() -> None:
    lines = logged()
    counts = {(line["entry"], line["dtype"]): line["samples"] for line in lines}
    assert len(counts) == len(lines)
    asked = {
        (name, dtype): n
        for name, numbers in FROZEN["samples"].items()
        for dtype, n in zip(DTYPES, numbers, strict=True)
        if n
    }
    assert {key: n for key, n in counts.items() if n} == asked
    assert not [line["failures"] for line in lines if line["wrong"] or line["failures"]]
    assert all(line["samples"] == sum(line[state] for state in STATES) for line in lines)


def test_of_all_samples_95_in_100_ran_in_kernels() -> None:
    """Of those with something to compute, the functions aside that nobody fuses (docs/notes/013 has them counted too)."""
    ran = Counter[str]()
    for line in logged():
        if line["entry"] not in SPECIAL:
            ran.update({state: line[state] for state in STATES})
    assert ran["kernels"] >= 0.95 * (ran["kernels"] + ran["left"])


# The samples


@pytest.mark.parametrize("part", range(PARTS))
def test_samples(part: int) -> None:
    found = outcomes(s for name in sorted(entries())[part::PARTS] for s in chosen(name))
    assert not [
        f"{o.sample.text()}, sample {o.sample.index}: {o.reason}" for o in found if o.state == "wrong"
    ]
    assert {o.sample.dtype for o in found} == set(DTYPES)
    ran = Counter(o.state for o in found if o.sample.entry not in SPECIAL)
    assert ran["kernels"] >= IN_KERNELS * (ran["kernels"] + ran["left"]), not_in_kernels(found)


# What is asked of all samples; the part that has the least has 0.963.
IN_KERNELS = 0.95


def not_in_kernels(found: list[Outcome]) -> list[tuple[str, int]]:
    return Counter(
        o.reason for o in found if o.state == "left" and o.sample.entry not in SPECIAL
    ).most_common()


def test_about_1500_samples_are_chosen() -> None:
    counts = [n for dtypes in FROZEN["samples"].values() for n in dtypes if n]
    assert 1300 <= sum(1 + n // 24 for n in counts) <= 1700
    name = "add"
    assert len(list(chosen(name))) == sum(1 + n // 24 for n in FROZEN["samples"][name] if n)


# The way the samples take is that of torch.compile


COMPILED = (
    "add",
    "amax",
    "sum",
    "exp",
    "where",
    "masked.sum",
    "nn.functional.layer_norm",
    "nn.functional.mish",
)


@pytest.mark.parametrize("name", COMPILED)
def test_torch_compile_makes_the_same_kernels(name: str, fresh: None) -> None:
    sample = list(samples(name, "float32"))[-1]
    here = plan(sample)
    torch._dynamo.reset()
    backend = Backend()
    torch.compile(sample.function(), backend=backend)(*sample.tensors)
    (compiled,) = backend.compiled
    assert [k.source.text for k in compiled.plan.kernels] == [k.source.text for k in here.case.plan.kernels]
    assert [c.target for c in compiled.plan.calls] == [c.target for c in here.case.plan.calls]


# What is wrong must be seen


def states(name: str, dtype: str) -> set[str]:
    return {o.state for o in outcomes(samples(name, dtype))} - {"nothing"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64"])
def test_another_function_is_wrong(dtype: str) -> None:
    """e to the x as 2 to the x."""
    row = replace(OPS["exp"], expr=OPS["exp2"].expr, expr_half=OPS["exp2"].expr_half)
    assert states("exp", dtype) == {"kernels"}
    with mock.patch.dict(OPS, exp=row):
        assert states("exp", dtype) == {"wrong"}


@pytest.mark.parametrize(("name", "reduction", "identity"), [("sum", "sum", "0.5f"), ("amax", "max", "9.0f")])
def test_another_identity_is_wrong(name: str, reduction: str, identity: str) -> None:
    """A sum that starts at a half, a maximum that starts at 9, which no sample reaches."""
    assert "wrong" not in states(name, "float32")
    with mock.patch.dict(REDUCE, {reduction: replace(REDUCE[reduction], identity=identity)}):
        assert "wrong" in states(name, "float32")


def idle_kernels() -> Any:
    """Kernels that do nothing."""
    idle = SimpleNamespace(at_work=lambda work: lambda *given: None)
    return mock.patch.object(together, "_cpu_unit", lambda sources, level: [idle] * len(sources))


@pytest.mark.parametrize("name", ["amax", "tanh", "eq", "nn.functional.layer_norm"])
def test_what_nothing_wrote_is_wrong(name: str) -> None:
    with idle_kernels():
        assert "wrong" in states(name, "float32")
        assert "kernels" not in states(name, "float32")


def test_an_error_that_only_eager_raises_is_wrong() -> None:
    (sample, *_) = samples("nn.functional.embedding", "float32")
    table, index, *others = sample.leaves
    far = replace(sample, leaves=(table, index + 1000, *others))
    assert [o.state for o in outcomes([far])] == ["raises"]
    with idle_kernels():
        assert [o.state for o in outcomes([far])] == ["wrong"]


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("found", "eager", "exact"),
    [
        (1 + 2.0**-22, 1.0, 1.0),  # four units in the last place, and eager none
        (NAN, 1.0, 1.0),
        (1.0, NAN, NAN),
        (INF, 1e38, 1e38),
        (-INF, INF, INF),
        (0.0, 1.0, 1.0),
    ],
)
def test_one_element_off_is_wrong(found: float, eager: float, exact: float) -> None:
    given = [torch.full((3,), 1.0) for _ in range(3)]
    assert not one(*given, lambda: None).trouble
    for x, value in zip(given, (found, eager, exact), strict=True):
        x[1] = value
    assert one(given[0], given[1], given[2].double(), lambda: None).trouble


def test_another_layout_is_wrong() -> None:
    x = torch.rand(3, 4)
    for other in (x.double(), x[:2], x.t().contiguous().t(), 1.0):
        assert one(other, x, x.double(), lambda: None).trouble


def test_integers_are_exact() -> None:
    x = torch.full((3,), 2**60)
    assert one(x + 1, x, x, lambda: None).trouble
    assert not one(x, x, x, lambda: None).trouble
