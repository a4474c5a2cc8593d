"""The demonstration told in a language: its verdict, its tables, and its page."""

from __future__ import annotations

from onepass.analysis.html.page import Fact, Section, joined, page, paragraph, table
from onepass.analysis.html.report_page import report_sections
from onepass.analysis.words import Words
from onepass.insight.demo.story import Story
from onepass.insight.fusion_experiment import Experiment, Way
from onepass.runtime.timer import Spread


def verdict(story: Story, words: Words) -> str:
    """The sentence that stands first."""
    ratio = story.throughput.ratio
    speed = words("demo_speed", ratio=ratio.median, low=ratio.low, high=ratio.high)
    if story.right:
        return words("demo_same", speed=speed)
    return words(
        "demo_wrong",
        differ=sum(not answer.same for answer in story.answers),
        of=len(story.answers),
        difference=story.largest_difference,
        experiment=words("demo_right" if story.experiment.right else "demo_not_right"),
        speed=speed,
    )


def protocol(story: Story, words: Words) -> str:
    """What was run, where, and how it was timed."""
    on_cpu = story.device.type == "cpu"
    return words(
        "demo_protocol",
        passages=story.passages,
        where=words("demo_cpu", threads=story.threads) if on_cpu else str(story.device),
        warm=words("demo_warm") if story.allocator_warm else "",
        pairs=story.throughput.pairs,
    )


def model_head(words: Words) -> list[str]:
    return [words("demo_embedding"), "eager", "onepass", words("demo_ratio")]


def model_rows(story: Story, words: Words) -> list[list[str]]:
    throughput, totals = story.throughput, story.totals
    tokens = [
        spread(s, f)
        for s, f in ((throughput.eager, ",.0f"), (throughput.compiled, ",.0f"), (throughput.ratio, ".3f"))
    ]
    rows = [[words("demo_tokens"), *tokens]]
    for label, before, after, scale, form in (
        ("demo_kernels", totals["eager_kernels"], totals["fused_kernels"], 1, ".0f"),
        ("demo_megabytes", totals["eager_bytes"], totals["fused_bytes"], 1e6, ",.1f"),
    ):
        saved = words("demo_fewer", ratio=before / after) if after else "–"
        rows.append([words(label), format(before / scale, form), format(after / scale, form), saved])
    same = sum(answer.same for answer in story.answers)
    rows.append([words("demo_difference"), "", f"{story.largest_difference:.1e}", ""])
    rows.append([words("demo_same_answers"), "", words("demo_of", n=same, of=len(story.answers)), ""])
    return rows


def answers_head(words: Words) -> list[str]:
    return [words(name) for name in ("demo_question", "demo_passage", "demo_same_column")]


def answers_rows(story: Story, words: Words) -> list[list[str]]:
    return [
        [
            answer.question,
            f"[{answer.eager.topic}] {_short(answer.eager.opening)}",
            words("demo_yes" if answer.same else "demo_no"),
        ]
        for answer in story.answers
    ]


def _short(opening: str) -> str:
    return opening if len(opening) <= 160 else opening[:157] + "…"


def experiment_title(experiment: Experiment, words: Words) -> str:
    return words("demo_experiment", rows=experiment.rows, cols=experiment.cols, rounds=experiment.rounds)


def experiment_head(words: Words) -> list[str]:
    names = ("demo_way", "demo_kernel_count", "demo_moved", "demo_time")
    return [*(words(name) for name in names), "GB/s", words("demo_times_eager"), words("demo_error")]


def experiment_row(way: Way, words: Words) -> list[str]:
    return [
        words.phrase(way.name),
        str(way.kernels),
        f"{way.bytes_moved / 1e6:,.1f}",
        spread(way.us, ",.0f"),
        f"{way.gbps:,.1f}",
        spread(way.speedup, ".2f") if way.speedup else "–",
        "–" if way.largest_error is None else f"{way.largest_error:.1e}",
    ]


def spread(found: Spread, form: str) -> str:
    """A median with its quartiles."""
    return f"{found.median:{form}} ({found.low:{form}} – {found.high:{form}})"


def demo_page(story: Story, words: Words) -> str:
    """The page: verdict, throughput, answers, the experiment, then the model's plan as explain has it.

    Raises: MissingPackage
    """
    experiment = story.experiment
    model = table(words("demo_model"), model_head(words), model_rows(story, words), " nnn", words)
    answers = table(words("demo_answers"), answers_head(words), answers_rows(story, words), "ww ", words)
    ways = table(
        experiment_title(experiment, words),
        experiment_head(words),
        [experiment_row(way, words) for way in experiment.ways],
        " nnnnnn",
        words,
    )
    sections = [
        Section("model", words("demo_model"), model),
        Section("answers", words("demo_answers"), answers),
        Section(
            "experiment",
            "GELU + Add + LayerNorm",
            joined([paragraph(experiment_title(experiment, words)), ways]),
        ),
        Section(
            "plan",
            words("demo_plan"),
            joined([paragraph(line) for line in story.report.verdict_in(words).splitlines()]),
        ),
        *report_sections(story.report, words),
    ]
    told = f"{verdict(story, words)}\n{protocol(story, words)}"
    return page("onepass demo", told, _facts(story, words), sections, words)


def _facts(story: Story, words: Words) -> list[Fact]:
    totals, throughput = story.totals, story.throughput
    same = sum(answer.same for answer in story.answers)
    tokens = f"{throughput.eager.median:,.0f} → {throughput.compiled.median:,.0f} token/s"
    return [
        Fact(words("demo_throughput"), tokens),
        Fact(words("kernels_before_after"), f"{totals['eager_kernels']} → {totals['fused_kernels']}"),
        Fact(words("demo_same_answers"), words("demo_of", n=same, of=len(story.answers))),
        Fact(words("demo_difference"), f"{story.largest_difference:.1e}"),
    ]
