"""`onepass demo`: a real model over real text, eager beside onepass."""

import json as json_format
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from onepass.cli.output import EXIT_FINE, EXIT_WORSE, Output
from onepass.errors import MissingPackage, NoSuchDevice, writing

if TYPE_CHECKING:
    import torch

    from onepass.insight.demo.story import Story
    from onepass.insight.fusion_experiment import Experiment, Way
    from onepass.runtime.timer import Spread

_OUT = Path("out/demo")
_REPORT_WIDTH = 110


def demo(
    out: Annotated[
        Path, typer.Option("--out", help="Folder for explain.json, report.txt and report.html.")
    ] = _OUT,
    passes: Annotated[
        int | None, typer.Option("--passes", min=1, help="How often to go over the text: 2, on a GPU 10.")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="cpu or cuda; by default the GPU if there is one.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document (onepass.demo/1).")] = False,
) -> None:
    """Embed Python's language reference with a real model, in eager and with onepass, and compare."""
    from onepass.capture.backend import onepass
    from onepass.insight.demo.story import tell

    output = Output.open(json)
    chosen = _device(device)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    with output.foreign_prints(), _progress_bar(output.console) as progress:
        story = tell(onepass, chosen, passes or _passes(chosen), progress)
    page = _page(story)
    output.console.print(page)
    _keep(story, page, out)
    output.text(
        f"\nkept: {out / 'explain.json'}, {out / 'report.txt'}{_keep_html(story, out / 'report.html')}"
    )
    output.document(story.to_dict())
    raise typer.Exit(EXIT_FINE if story.right else EXIT_WORSE)


def _passes(device: "torch.device") -> int:
    """Enough for dozens of pairs; a pass of both takes about 30 s on two cores."""
    return 10 if device.type == "cuda" else 2


def _device(name: str) -> "torch.device":
    import torch

    if not name:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise NoSuchDevice(name, "is not a device that PyTorch knows") from error
    if device.type not in ("cpu", "cuda"):
        raise NoSuchDevice(name, "onepass has no code for it")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise NoSuchDevice(name, f"PyTorch sees {torch.cuda.device_count()} CUDA devices")
    return device


@contextmanager
def _progress_bar(console: Console) -> Iterator[Callable[[int, int, str], None]]:
    columns = (TextColumn("{task.description:<34}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def _page(story: "Story") -> Group:
    """Everything the demo says: the verdict first, then what it rests on."""
    parts: list[RenderableType] = [
        Text(_verdict(story), style="bold"),
        Text(_protocol(story)),
        _model_table(story),
        _answers_table(story),
        _experiment_table(story.experiment),
    ]
    spaced: list[RenderableType] = [item for part in parts for item in (part, "")]
    return Group(*spaced[:-1])


def _verdict(story: "Story") -> str:
    ratio = story.throughput.ratio
    middle = f"middle half of the pairs {ratio.low:.2f} to {ratio.high:.2f}"
    speed = f"{ratio.median:.2f} × eager's throughput ({middle})"
    if story.right:
        return f"The same answers as eager, at {speed}."
    differ = sum(not answer.same for answer in story.answers)
    experiment = "right" if story.experiment.right else "wrong"
    return (
        f"WRONG: {differ} of {len(story.answers)} answers differ, largest embedding difference "
        f"{story.largest_difference:.1e}, the experiment is {experiment}; {speed}."
    )


def _protocol(story: "Story") -> str:
    where = f"CPU, {story.threads} threads" if story.device.type == "cpu" else str(story.device)
    warm = ", freed memory kept for reuse by both" if story.allocator_warm else ""
    return (
        f"all-MiniLM-L6-v2 over {story.passages} passages of Python's language reference, fp32, "
        f"{where}{warm}; {story.throughput.pairs} batches, each timed in eager and with onepass in turn."
    )


def _model_table(story: "Story") -> Table:
    throughput, totals = story.throughput, story.totals
    table = Table("sentence embedding", "eager", "onepass", "ratio")
    table.add_row(
        "tokens/s, median (quartiles)",
        _spread(throughput.eager, ",.0f"),
        _spread(throughput.compiled, ",.0f"),
        _spread(throughput.ratio, ".3f"),
    )
    for label, before, after, scale, form in (
        ("memory-bound kernels, longest batch", totals["eager_kernels"], totals["fused_kernels"], 1, ".0f"),
        ("their MB, longest batch", totals["eager_bytes"], totals["fused_bytes"], 1e6, ",.1f"),
    ):
        saved = f"{before / after:.2f} × fewer" if after else "–"
        table.add_row(label, format(before / scale, form), format(after / scale, form), saved)
    table.add_row("largest embedding difference", "", f"{story.largest_difference:.1e}", "")
    same = sum(answer.same for answer in story.answers)
    table.add_row("questions with the same answer", "", f"{same} of {len(story.answers)}", "")
    return table


def _answers_table(story: "Story") -> Table:
    table = Table("question", "nearest passage", "same", show_lines=True)
    for answer in story.answers:
        opening = answer.eager.opening
        shown = opening if len(opening) <= 160 else opening[:157] + "…"
        table.add_row(
            Text(answer.question), Text(f"[{answer.eager.topic}] {shown}"), "yes" if answer.same else "NO"
        )
    return table


def _experiment_table(experiment: "Experiment") -> Table:
    shape = f"{experiment.rows} × {experiment.cols} fp32"
    title = f"GELU + Add + LayerNorm, {shape}, {experiment.rounds} rounds in turn"
    table = Table(
        "way",
        "kernels",
        "MB moved",
        "µs, median (quartiles)",
        "GB/s",
        "× eager",
        "largest error",
        title=title,
    )
    for way in experiment.ways:
        table.add_row(*_experiment_row(way))
    return table


def _experiment_row(way: "Way") -> tuple[str, ...]:
    return (
        way.name,
        str(way.kernels),
        f"{way.bytes_moved / 1e6:,.1f}",
        _spread(way.us, ",.0f"),
        f"{way.gbps:,.1f}",
        _spread(way.speedup, ".2f") if way.speedup else "–",
        "–" if way.largest_error is None else f"{way.largest_error:.1e}",
    )


def _spread(spread: "Spread", form: str) -> str:
    return f"{spread.median:{form}} ({spread.low:{form}} – {spread.high:{form}})"


def _keep(story: "Story", page: Group, out: Path) -> None:
    (out / "explain.json").write_text(
        json_format.dumps(story.report.to_dict(), indent=2, allow_nan=False) + "\n"
    )
    with (out / "report.txt").open("w") as file:
        console = Console(file=file, width=_REPORT_WIDTH, highlight=False)
        console.print(page)
        console.print()
        console.print(story.report.text, markup=False, soft_wrap=True)


def _keep_html(story: "Story", path: Path) -> str:
    """Says what was kept, or why not: the demonstration is complete without the page."""
    try:
        story.report.save(path)
    except MissingPackage as missing:
        return f"\nno {path.name}: {missing}"
    return f", {path}"
