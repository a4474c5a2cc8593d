"""What a ladder says of its rungs, from fixed numbers: nothing is compiled, run or timed here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.ladder_page import written
from onepass.device import of
from onepass.errors import BadLadder, BadRung, NoRoof, NotCalibrated
from onepass.ladder import study as study_module
from onepass.ladder.compiled import Compiled
from onepass.ladder.emulated import Counts, Finding
from onepass.ladder.machine import Machine, Occupied, named
from onepass.ladder.measure import Measured
from onepass.ladder.predict import predict
from onepass.ladder.report import Report
from onepass.ladder.rungs import HERE, Data, Ladder, Operator, Rung, load
from onepass.ladder.steps import Step, Steps, learner
from onepass.ladder.study import Studied, Study, study
from onepass.runtime.timer import Spread

LADDERS = {name: load(HERE / name) for name in ("layer_norm", "fusion", "softmax")}
ALONE = [
    (n, r.name) for n, ladder in LADDERS.items() for r in ladder.rungs if len(r.launches) == 1 and not r.wrong
]

# The limits of a prediction, each computed by hand


MACHINE = replace(
    named("H200"),
    device=replace(
        of("NVIDIA H200"), bandwidth_gbps=4000.0, units=100, issue_giops=100 * 128 * 1.5, launch_us=2.0
    ),
    fp32_gflops=60000.0,
)


def predicted(
    *,
    rows: int,
    grid: int,
    nbytes: int = 0,
    waits: str = "1.2",
    barriers: float = 0,
    atomics: str = "0",
    flops: str = "0",
) -> tuple[float, str]:
    """On 100 multiprocessors at 1.5 GHz with 4 blocks each, 4000 GB/s and 60 TFLOP/s; starting takes 2 µs."""
    operator = Operator("o", {"x": "full"}, {"y": "full"}, flops)
    rung = Rung("r", "o", "", "", waits=waits, atomics=atomics)
    step = Step("k", "", grid, 256, ("x", "y", rows, 1000))
    counts = Counts(barriers, 0.0, 0.0, 0.0)
    found = predict(rung, operator, [step], nbytes, counts, Occupied(4, 0.5, 0.5), MACHINE, rows, 1000)
    return found.us, found.bound


def test_a_prediction_by_memory() -> None:
    """400 MB at 4000 GB/s: 100 µs."""
    assert predicted(rows=1000, grid=1000, nbytes=400_000_000) == (pytest.approx(102), "memory")


def test_a_prediction_by_latency() -> None:
    """100,000 rows, 400 at a time, each 2 waits of 0.7 µs and 4 barriers of 0.025 µs: 250 × 1.5 µs."""
    assert predicted(rows=100_000, grid=100_000, waits="2", barriers=4) == (pytest.approx(377), "latency")
    # Eight rows a block: as many more wait at once.
    assert predicted(rows=100_000, grid=12_500, waits="2", barriers=4) == (
        pytest.approx(2 + 375 / 8),
        "latency",
    )


def test_a_prediction_by_atomics() -> None:
    """10.5 million additions, 0.7 a clock and multiprocessor: 105 a ns."""
    assert predicted(rows=1000, grid=1000, atomics="10500 * rows") == (pytest.approx(102), "atomics")


def test_a_prediction_by_arithmetic() -> None:
    """6 GFLOP at 60 TFLOP/s: 100 µs; a device whose rate is not known has no such limit."""
    assert predicted(rows=1000, grid=1000, flops="6000 * rows * cols") == (pytest.approx(102), "arithmetic")


# A study of fixed numbers

COUNTS = Counts(2.0, 40.0, 1280.0, 5120.0)


def found(data: Data, rows: int, cols: int) -> Finding:
    return Finding(data.name, rows, cols, 0.5)


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts numbers in the place of the compiler and the emulator, and counts what would be launched."""

    def fix(accesses: Mapping[str, float] | None = None, finding: Callable[..., Finding] = found) -> None:
        def run(ladder: Ladder, rung: Rung, steps: Steps, data: Data, rows: int, cols: int) -> Any:
            counts = replace(COUNTS, lane_accesses=(accesses or {}).get(rung.name, 1280.0))
            made = finding(data, rows, cols) if rung is ladder.rungs[-1] else found(data, rows, cols)
            return made, counts

        def compiled(step: Step, machine: Machine) -> Compiled:
            return Compiled(step, b"", machine.device.arch, 32, 0, 0, Occupied(8, 1.0, 1.0))

        monkeypatch.setattr(study_module, "run", run)
        monkeypatch.setattr(study_module, "compile_step", compiled)

    return fix


def copied(ladder: Ladder, name: str, path: Path) -> Ladder:
    path.write_text(ladder.text(ladder.rung(name)))
    return learner(path, ladder, ladder.rung(name))[0]


@pytest.mark.parametrize("device", ["H200", "V100-SXM2-16GB", "H800"])
@pytest.mark.parametrize(("name", "rung"), ALONE)
def test_a_copy_of_a_rung_is_as_quick_as_it(
    name: str, rung: str, device: str, fixed: Callable[..., None], tmp_path: Path
) -> None:
    """At row lengths where memory binds and where waiting does."""
    fixed()
    mine = copied(LADDERS[name], rung, tmp_path / "mine.cu")
    seen = study(mine, named(device), 65536, [256, 1024, 4096], on_device=False)
    assert [seen.relative(e) for e in seen.learners] == [1.0, 1.0, 1.0]
    judged = Report(seen).learner(1.0)
    assert judged.met and "1.00 ×" in judged.sentence


def test_threads_that_access_more_wait_longer(fixed: Callable[..., None], tmp_path: Path) -> None:
    mine = copied(LADDERS["layer_norm"], "v3", tmp_path / "mine.cu")
    factors = []
    for accesses in (640.0, 1280.0, 2560.0):
        fixed({"mine": accesses})
        seen = study(mine, named("H200"), 65536, [256], on_device=False)
        factors += [seen.relative(e) for e in seen.learners]
    assert factors[0] > factors[1] == 1.0 > factors[2]


def test_a_learners_file_may_be_named_like_a_rung(fixed: Callable[..., None], tmp_path: Path) -> None:
    fixed({"v4": 1280.0, "v4.cu": 640.0})
    ladder = LADDERS["layer_norm"]
    mine = copied(ladder, "v4", tmp_path / "v4.cu")
    assert [r.name for r in mine.rungs] == ["v4", "v4.cu"]
    seen = study(mine, named("H200"), 65536, [256], on_device=False)
    said = Report(seen).learner(None).sentence
    assert said.startswith("v4.cu is right and ") and "× v4 " in said and "0.00" not in said


def test_nothing_is_judged_against_what_is_wrong(tmp_path: Path) -> None:
    ladder = LADDERS["layer_norm"]
    with pytest.raises(BadRung, match="wrong on purpose"):
        copied(ladder, "wrong_divergent_shuffle", tmp_path / "mine.cu")


@pytest.mark.parametrize(
    "finding",
    [
        lambda d, r, c: Finding(d.name, r, c, 5.0),
        lambda d, r, c: Finding(d.name, r, c, None, "out of bounds", "out-of-bounds", 7),
        # Right on ordinary data, and out of its buffers on the other.
        lambda d, r, c: (
            found(d, r, c)
            if d.name == "ordinary"
            else Finding(d.name, r, c, None, "line 7", "barrier-divergence", 7)
        ),
    ],
    ids=["wrong", "out-of-bounds", "on other data"],
)
def test_what_is_wrong_or_faulty_never_runs_on_a_device(
    finding: Callable[..., Finding],
    fixed: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    fixed(finding=finding)
    launched: list[str] = []

    def measure(ladder: Ladder, rungs: Mapping[str, Any], *rest: Any) -> dict[str, Measured]:
        launched.extend(rungs)
        return dict.fromkeys(rungs, MEASURED)

    monkeypatch.setattr(study_module, "measure", measure)
    mine = copied(LADDERS["layer_norm"], "v5", tmp_path / "mine.cu")
    seen = study(mine, named("H200"), 65536, [256], on_device=True)
    assert launched == ["v5"]
    report, last = Report(seen), seen.entries[-1]
    assert "is wrong" in report.learner(None).sentence and not report.learner(None).met
    assert report.sentence(last).endswith("Never run on a device.")
    document = report.to_dict()["results"][-1]
    assert document["measured"] is None and document["predicted"] is None and document["relative"] is None


@pytest.mark.parametrize(("against", "met"), [("v5", False), ("v4", True)])
def test_wrong_where_the_rung_is_right_is_wrong(
    against: str, met: bool, fixed: Callable[..., None], tmp_path: Path
) -> None:
    """A mean of squares less the square of the mean: what v4 is allowed and v5 is not."""
    fixed(finding=lambda d, r, c: Finding(d.name, r, c, 0.5 if d.name == "ordinary" else 5.0))
    mine = copied(LADDERS["layer_norm"], against, tmp_path / "mine.cu")
    seen = study(mine, named("V100-SXM2-16GB"), 64, [256], on_device=False)
    judged = Report(seen).learner(None)
    assert judged.met is met
    assert ("mine is wrong: not on large_mean. It was launched as v5 is, grid=" in judged.sentence) is not met


# Rows that do not count

MEASURED = Measured(
    Spread.of([100.0, 101.0, 99.0]), 4000.0, 0.8, 0.95, 4200.0, 0.5, True, (100.0, 101.0, 99.0)
)
WRONG = replace(MEASURED, us=Spread.of([10.0, 10.0, 10.0]), gbps=40000.0, error=9.0)
TOO_QUICK = replace(MEASURED, us=Spread.of([10.0, 10.0, 10.0]), gbps=40000.0, of_datasheet=8.0, of_roof=9.5)


def measured(ladder: Ladder, *times: Measured) -> Study:
    """The first rungs of a ladder with given measurements."""
    entries = tuple(
        Studied(
            rung,
            ladder.operators[rung.operator],
            65536,
            256,
            steps=Steps((), {}, 1.0),
            compiled=(Compiled(Step("k", "", 1, 1, ()), b"", "sm_90", 32, 0, 0, Occupied(8, 1.0, 1.0)),),
            findings=(Finding("ordinary", 16, 256, 0.5),),
            counts=COUNTS,
            measured=time,
        )
        for rung, time in zip(ladder.rungs, times, strict=False)
    )
    return Study(ladder, named("H200"), 65536, entries, True)


@pytest.mark.parametrize("void", [WRONG, TOO_QUICK], ids=["wrong", "above the roof"])
def test_a_void_row_counts_nowhere(void: Measured) -> None:
    seen = measured(LADDERS["softmax"], MEASURED, void, replace(MEASURED, us=Spread.of([50.0] * 3)))
    s1, s2, s3 = seen.entries
    assert s2.us is None and seen.relative(s2) is None and seen.relative(s3) is None
    report = Report(seen)
    assert "s3 is the quickest rung" in report.verdict() and "NOT as stated: s2 (256)." in report.verdict()
    # 8 bytes an element of 65536 × 256.
    assert report.row(s1)[-5:] == ["100.0", "1342", "28%", "95.0%", "–"]
    assert report.row(s2)[-5:] == ["–", "–", "–", "void", "–"]
    document = json.loads(json.dumps(report.to_dict()))["results"][1]["measured"]
    assert document["void"]
    assert {document[k] for k in ("us", "iqr_us", "gbps", "of_datasheet", "of_roof")} == {None}


def test_where_no_row_counts_no_rung_is_the_quickest() -> None:
    report = Report(measured(LADDERS["layer_norm"], WRONG, TOO_QUICK))
    assert "no rung of layer_norm has a time that counts" in report.verdict()
    assert "没有任何一级" in replace(report, language="zh").verdict()


def test_a_learner_beside_a_void_row_has_no_factor(tmp_path: Path) -> None:
    mine = copied(LADDERS["layer_norm"], "v5", tmp_path / "mine.cu")
    judged = Report(measured(mine, WRONG, MEASURED)).learner(1.0)
    assert not judged.met and judged.sentence.startswith("mine is right; v5 has no time that counts")
    judged = Report(measured(mine, MEASURED, TOO_QUICK)).learner(1.0)
    assert not judged.met and judged.sentence == "mine: void, above the measured roof."


# Devices of which something is not known


@pytest.mark.parametrize("name", ["H800", "A10G", "RTX 4090 Laptop"])
def test_a_card_without_an_fp32_rate_has_no_ridge(name: str, fixed: Callable[..., None]) -> None:
    fixed()
    machine = named(name)
    seen = study(LADDERS["fusion"], machine, 65536, [1024], on_device=False)
    assert machine.ridge is None and all(
        e.predicted and "arithmetic" not in e.predicted.limits for e in seen.entries
    )
    for language, word in (("en", "unknown"), ("zh", "未知")):
        report = Report(seen, language)
        document = report.to_dict()
        assert document["device"]["fp32_gflops"] is None and document["device"]["ridge"] is None
        assert all(r["bound"] is None for r in document["results"])
        assert word in "".join(report.rooflines(1024)) and "None" not in json.dumps(report.lines())


def test_no_roof_says_what_is_true() -> None:
    """A card may be in the table without a bandwidth, or with one and not measured yet."""
    assert "has no bandwidth of it" in NoRoof("NVIDIA A10G").what()
    assert "table" not in NotCalibrated("NVIDIA H200").what()


def test_rungs_have_names_of_their_own(tmp_path: Path) -> None:
    for path in (HERE / "softmax").iterdir():
        if path.is_file():
            (tmp_path / path.name).write_text(path.read_text())
    text = (tmp_path / "rungs.toml").read_text()
    (tmp_path / "rungs.toml").write_text(text.replace('name = "s2"', 'name = "s1"'))
    with pytest.raises(BadLadder, match="two rungs are named s1"):
        load(tmp_path)


# docs/ladder/new.md


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('[predictions]\ndevice = "NVIDIA H200"\nrows = 65536\n', "", "no [predictions]"),
        ('because = "there is nothing to compare it with"\n', "", "rung a1 has no because"),
        ('changed = "the start', 'chnaged = "the start', "'chnaged' is not known; near it: changed"),
        ("[[data]]", "[[date]]", "it has no data"),
        ('outputs = { y = "full" }', 'outputs = { y = "row" }', "one output, of extent full"),
        (
            'launches = [{ kernel = "scale", arguments = ["x", "y"], grid = "cdiv(rows * cols, 256)", block = "256" }]',
            "",
            "a1 has no launches",
        ),
        ("deviation = 1.0", "", "[[data]] has no deviation"),
    ],
)
def test_a_list_that_lacks_something_says_what(before: str, after: str, said: str, tmp_path: Path) -> None:
    path = written(tmp_path) / "rungs.toml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(BadLadder) as caught:
        load(tmp_path)
    assert said in str(caught.value)


def test_a_rung_that_is_skipped_does_not_widen_the_table(fixed: Callable[..., None]) -> None:
    fixed()
    report = Report(study(LADDERS["softmax"], named("H200"), 64, [6], on_device=False))
    skipped = next(e for e in report.study.entries if e.skipped)
    assert report.row(skipped)[1] == "skipped" and skipped.skipped in report.sentence(skipped)
