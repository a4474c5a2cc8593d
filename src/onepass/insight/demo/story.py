"""The whole demonstration from loading to the last figure, as data; nothing is printed here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from onepass import api
from onepass.insight import fusion_experiment
from onepass.insight.demo import comparison
from onepass.insight.demo.comparison import COMPILED, EAGER, Embedded, Encode, Throughput
from onepass.insight.demo.encoder import batches, load_encoder
from onepass.insight.demo.passages import QUESTIONS, Passage, passages
from onepass.insight.fusion_experiment import Experiment
from onepass.runtime.timer import keep_allocator_warm

# A name or function that torch.compile takes for its back end.
Backend = str | Callable[..., Any]
# (steps done, steps in all, what is being done)
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Answer:
    """The passages that answer one question, by eager and by onepass."""

    question: str
    eager: Passage
    compiled: Passage

    @property
    def same(self) -> bool:
        """Whether both found the same passage."""
        return self.eager == self.compiled

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form."""
        return {
            "question": self.question,
            "topic": self.eager.topic,
            "answer": self.eager.opening,
            "same": self.same,
        }


@dataclass(frozen=True)
class Story:
    """What the demonstration found on this machine."""

    device: torch.device
    threads: int
    allocator_warm: bool
    passages: int
    throughput: Throughput
    largest_difference: float
    answers: tuple[Answer, ...]
    report: api.Report
    experiment: Experiment

    @property
    def totals(self) -> dict[str, Any]:
        """Kernels and bytes of the model, before and after."""
        totals: dict[str, Any] = self.report.to_dict()["totals"]
        return totals

    @property
    def right(self) -> bool:
        """Same answers, embeddings within the limit, and the experiment's results right."""
        close = self.largest_difference <= comparison.LARGEST_DIFFERENCE
        return close and all(answer.same for answer in self.answers) and self.experiment.right

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form, schema onepass.demo/1."""
        return {
            "schema": "onepass.demo/1",
            "device": str(self.device),
            "threads": self.threads,
            "allocator_warm": self.allocator_warm,
            "right": self.right,
            "passages": self.passages,
            "throughput": self.throughput.to_dict(),
            "largest_difference": self.largest_difference,
            "answers": [answer.to_dict() for answer in self.answers],
            "totals": self.totals,
            "experiment": self.experiment.to_dict(),
        }


def tell(backend: Backend, device: torch.device, passes: int, progress: Progress) -> Story:
    """Embed the language reference in eager and with onepass, ask the questions, run the experiment."""
    allocator_warm = device.type == "cpu" and keep_allocator_warm()
    progress(0, 1, "loading the model")
    encoder = load_encoder(device)
    texts = passages()
    work = batches([passage.text for passage in texts], device)
    asked = batches(QUESTIONS, device)
    encoders: dict[str, Encode] = {EAGER: encoder, COMPILED: torch.compile(encoder, backend=backend)}

    shapes = len(comparison.one_per_shape(work + asked))
    comparison.warm_up(encoders, work + asked, _counter(progress, shapes, "compiling and warming up"))
    steps = passes * len(work)
    embedded, throughput = comparison.compare(
        encoders, work, passes, device, _counter(progress, steps, "embedding")
    )
    questions, _ = comparison.compare(encoders, asked, 1, device, _counter(progress, len(asked), "asking"))

    progress(0, 1, "explaining the model")
    largest = max(work, key=lambda batch: batch.length)
    with torch.no_grad():
        report = api.explain(encoder, largest.input_ids, largest.attention_mask)
    progress(0, 1, "GELU + Add + LayerNorm on its own")
    experiment = _experiment(backend, device)
    progress(1, 1, "done")
    return Story(
        device=device,
        threads=torch.get_num_threads(),
        allocator_warm=allocator_warm,
        passages=len(texts),
        throughput=throughput,
        largest_difference=max(embedded.largest_difference, questions.largest_difference),
        answers=_answers(texts, embedded, questions),
        report=report,
        experiment=experiment,
    )


def _experiment(backend: Backend, device: torch.device) -> Experiment:
    rows, cols = fusion_experiment.default_shape(device)
    compile_with = partial(torch.compile, backend=backend)
    return fusion_experiment.run(compile_with, _plan_of, device, rows, cols, rounds=15)


def _plan_of(function: Callable[..., Any], *inputs: torch.Tensor) -> fusion_experiment.Traffic:
    totals = api.explain(function, *inputs).to_dict()["totals"]
    return totals["fused_kernels"], totals["fused_bytes"]


def _answers(texts: Sequence[Passage], embedded: Embedded, questions: Embedded) -> tuple[Answer, ...]:
    by_eager = comparison.nearest(questions.eager, embedded.eager)
    by_compiled = comparison.nearest(questions.compiled, embedded.compiled)
    found = zip(QUESTIONS, by_eager, by_compiled, strict=True)
    return tuple(Answer(question, texts[one], texts[other]) for question, one, other in found)


def _counter(progress: Progress, total: int, what: str) -> Callable[[], None]:
    done = iter(range(1, total + 1))
    progress(0, total, what)
    return lambda: progress(next(done), total, what)
