"""The demonstration's parts, and the whole of it over a little text."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer

from harness.pages import Read, kernel
from onepass.analysis.report import Report, Totals
from onepass.cli import demo as command
from onepass.insight import fusion_experiment
from onepass.insight.demo import comparison, passages
from onepass.insight.demo.encoder import LENGTHS, batch_size, batches, gather, load_encoder
from onepass.insight.demo.passages import Passage
from onepass.insight.demo.story import Story, tell

CPU = torch.device("cpu")
ROWS = batch_size(CPU)
LITTLE = sorted(passages.passages(), key=lambda passage: len(passage.text))[:12]
TEXTS = [passage.text for passage in passages.passages()]


def test_passages_are_prose_and_each_is_there_once() -> None:
    assert len(set(TEXTS)) == len(TEXTS) > 100
    assert all(len(text.split()) >= 25 for text in TEXTS)
    assert not any("::=" in text for text in TEXTS)


def test_batches_hold_each_text_once_in_few_shapes() -> None:
    work = batches(TEXTS, CPU)
    assert sorted(i for batch in work for i in batch.texts) == list(range(len(TEXTS)))
    assert {tuple(batch.input_ids.shape) for batch in work} <= {(ROWS, length) for length in LENGTHS}
    for batch in work:
        assert torch.equal(batch.attention_mask == 0, batch.input_ids == 0)
        assert batch.attention_mask.any(dim=1).all()


def test_an_embedding_does_not_depend_on_padding_or_company() -> None:
    encode = load_encoder(CPU)
    text = passages.QUESTIONS[0]
    longer = " ".join([text] * 4)
    with torch.no_grad():
        alone, together = (
            gather([(batch, encode(batch.input_ids, batch.attention_mask)) for batch in batches(texts, CPU)])[
                0
            ]
            for texts in ([text], [text, longer])
        )
    # One text of length one, evaluated in fp32 with other matmul shapes.
    torch.testing.assert_close(alone, together, atol=1e-5, rtol=0)
    assert abs(alone.norm().item() - 1) < 1e-5


def test_a_text_left_out_is_not_an_embedding() -> None:
    (batch,) = batches(["one two three", "four five six"], CPU)
    gathered = gather([(replace(batch, texts=(0, 2)), torch.randn(ROWS, 3))])
    assert gathered[[0, 2]].isfinite().all()
    assert gathered[1].isnan().all()


def test_texts_that_several_passes_embed_have_one_row() -> None:
    work = batches(["one", "two", "three"], CPU)
    embeddings = torch.randn(ROWS, 3)
    gathered = gather([(batch, embeddings) for batch in work * 2])
    assert torch.equal(gathered, gather([(batch, embeddings) for batch in work]))
    assert gathered.shape == (3, 3) and gathered.isfinite().all()


@pytest.mark.parametrize(
    ("change", "difference"), [(0.0, 0.0), (0.25, 0.25), (float("nan"), float("inf"))], ids=str
)
def test_largest_difference_sees_a_single_wrong_or_nan_value(change: float, difference: float) -> None:
    right = torch.randn(5, 7).round(decimals=2)
    wrong = right.clone()
    wrong[3, 2] = 1.0
    right[3, 2] = 1.0 - change
    assert comparison.Embedded(right, wrong).largest_difference == difference


def compile_plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def drop_last_column(function: Callable[..., Any]) -> Callable[..., Any]:
    def dropped(*inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = function(*inputs).clone()
        result[-1, -1] = 0.0
        return result

    return dropped


def leave_unwritten(function: Callable[..., Any]) -> Callable[..., Any]:
    def unwritten(*inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = function(*inputs).clone()
        result[0, 0] = float("nan")
        return result

    return unwritten


def no_plan(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[int, int]:
    return 1, 1000


@pytest.mark.parametrize(
    ("compile_with", "right"), [(compile_plainly, True), (drop_last_column, False), (leave_unwritten, False)]
)
def test_experiment_finds_a_wrong_kernel(compile_with: fusion_experiment.Compile, right: bool) -> None:
    experiment = fusion_experiment.run(compile_with, no_plan, CPU, rows=37, cols=129, rounds=2)
    assert experiment.right is right


def test_experiment_counts_every_input_and_output_of_eager() -> None:
    rows, cols = 37, 129
    experiment = fusion_experiment.run(compile_plainly, no_plan, CPU, rows, cols, rounds=2)
    moved = {way.name: way.bytes_moved for way in experiment.ways}
    assert moved[fusion_experiment.EAGER] == 4 * (7 * rows * cols + 2 * cols) + 2 * 4 * rows
    assert moved[fusion_experiment.TWO_FUSED] == 1000 + 4 * (2 * rows * cols + 2 * cols) + 2 * 4 * rows
    assert moved[fusion_experiment.ALL_FUSED] == 1000
    assert moved[fusion_experiment.PLAIN_ADD] == 4 * 3 * rows * cols


REPORT = Report(
    device="cpu",
    kernels=(kernel("cpu_gelu_fp32"),),
    decisions=(),
    left=(),
    totals=Totals(28_000_000, 12_000_000, 60, 20, 0, 0),
    notes=(),
    reasons={},
)


@pytest.fixture(scope="module", autouse=True)
def little() -> Iterator[None]:
    """Few, short passages and a small experiment, so that the whole takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onepass.insight.demo.story.passages", lambda: LITTLE)
        patch.setattr(fusion_experiment, "default_shape", lambda device: (64, 257))
        patch.setattr("onepass.api.explain", lambda *_, **__: REPORT)
        yield


def told(backend: Any) -> Story:
    return tell(backend, CPU, 1, lambda done, total, what: None)


@pytest.fixture(scope="module")
def right_story(little: None) -> Story:
    return told("eager")


def shifted(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A back end whose results are off by a thousandth: wrong, but too little to change an answer."""

    def run(*arguments: torch.Tensor) -> Any:
        return tuple(value + 1e-3 for value in graph(*arguments))

    return run


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    report: str
    explained: Any
    page: str


Invoke = Callable[[Story], Outcome]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    """`onepass demo --json` with its story already told."""
    backend = ModuleType("onepass.capture.backend")
    backend.onepass = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "onepass.capture.backend", backend)

    def run(story: Story) -> Outcome:
        monkeypatch.setattr("onepass.insight.demo.story.tell", lambda *_: story)
        with pytest.raises(typer.Exit) as leave:
            command.demo(out=tmp_path / "kept", passes=1, device="cpu", json=True)
        report = (tmp_path / "kept" / "report.txt").read_text()
        explained = json.loads((tmp_path / "kept" / "explain.json").read_text())
        page = (tmp_path / "kept" / "report.html").read_text()
        return Outcome(leave.value.exit_code, capsys.readouterr().out, report, explained, page)

    return run


def test_the_whole_of_it_with_a_right_back_end(right_story: Story, invoke: Invoke) -> None:
    assert right_story.right
    outcome = invoke(right_story)
    assert outcome.code == 0
    document = json.loads(outcome.out)
    assert document["schema"] == "onepass.demo/1"
    assert document["largest_difference"] <= 1e-4
    assert document["throughput"]["pairs"] == len(batches([passage.text for passage in LITTLE], CPU))
    assert len(document["answers"]) == len(passages.QUESTIONS)
    assert outcome.explained == REPORT.to_dict()
    read = Read.page(outcome.page)
    assert not read.faults
    assert read.all("h1")[0].text.startswith("The same answers as eager")
    sections = [e.attributes["id"] for e in read.all("section")]
    assert sections == ["model", "answers", "experiment", "plan", "kernels"]
    assert all(question in outcome.page for question in passages.QUESTIONS if "'" not in question)


def test_the_report_says_it_all_without_a_terminal(right_story: Story, invoke: Invoke) -> None:
    report = invoke(right_story).report
    assert report.startswith("The same answers as eager")
    for words in (
        "tokens/s",
        "28.0",
        "12.0",
        "6 of 6",
        *fusion_experiment.WAYS,
        REPORT.verdict.splitlines()[0],
    ):
        assert words in report


def test_the_whole_of_it_with_a_wrong_back_end(invoke: Invoke) -> None:
    outcome = invoke(told(shifted))
    assert outcome.code == 1
    assert outcome.report.startswith("WRONG: 0 of 6 answers differ, largest embedding difference 1.0e-03")


def test_another_answer_is_wrong(right_story: Story, invoke: Invoke) -> None:
    other = replace(right_story.answers[0], compiled=Passage("elsewhere", "another text"))
    outcome = invoke(replace(right_story, answers=(other, *right_story.answers[1:])))
    assert outcome.code == 1
    assert outcome.report.startswith("WRONG: 1 of 6 answers differ")


def test_speed_does_not_make_it_wrong(right_story: Story, invoke: Invoke) -> None:
    ratio = replace(right_story.throughput.ratio, median=0.01)
    assert invoke(replace(right_story, throughput=replace(right_story.throughput, ratio=ratio))).code == 0
