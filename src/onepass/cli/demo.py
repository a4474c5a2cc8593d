"""`onepass demo`: a real model over real text, eager beside onepass."""

import json as json_format
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from onepass.cli.language import Language
from onepass.cli.output import EXIT_FINE, EXIT_WORSE, Output
from onepass.errors import MissingPackage, writing

if TYPE_CHECKING:
    import torch

    from onepass.analysis.words import Words
    from onepass.insight.demo.story import Story

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
    lang: Language = "en",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document (onepass.demo/1).")] = False,
) -> None:
    """Embed Python's language reference with a real model, in eager and with onepass, and compare."""
    from onepass.analysis.words import words_of

    output, words = Output.open(json), words_of(lang)
    from onepass.capture.backend import onepass
    from onepass.insight.demo.story import tell
    from onepass.insight.here import usable_device

    chosen = usable_device(device)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    with output.foreign_prints(), _progress_bar(output.console) as progress:
        story = tell(onepass, chosen, passes or _passes(chosen), progress)
    page = _page(story, words)
    output.console.print(page)
    _keep(story, page, out, words)
    files = f"{out / 'explain.json'}, {out / 'report.txt'}{_keep_html(story, out / 'report.html', words)}"
    output.text("\n" + words("kept_files", files=files))
    output.document(story.to_dict())
    raise typer.Exit(EXIT_FINE if story.right else EXIT_WORSE)


def _passes(device: "torch.device") -> int:
    """Enough for dozens of pairs; a pass of both takes about 30 s on two cores."""
    return 10 if device.type == "cuda" else 2


@contextmanager
def _progress_bar(console: Console) -> Iterator[Callable[[int, int, str], None]]:
    columns = (TextColumn("{task.description:<34}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def _page(story: "Story", words: "Words") -> Group:
    """Everything the demo says: the verdict first, then what it rests on."""
    from onepass.insight.demo import page as told

    experiment = story.experiment
    ways = [told.experiment_row(way, words) for way in experiment.ways]
    answers = told.answers_rows(story, words)
    parts: list[RenderableType] = [
        Text(told.verdict(story, words), style="bold"),
        Text(told.protocol(story, words)),
        _table(told.model_head(words), told.model_rows(story, words)),
        _table(told.answers_head(words), answers, show_lines=True),
        _table(told.experiment_head(words), ways, title=told.experiment_title(experiment, words)),
    ]
    spaced: list[RenderableType] = [item for part in parts for item in (part, "")]
    return Group(*spaced[:-1])


def _table(head: list[str], rows: list[list[str]], **options: Any) -> Table:
    table = Table(*head, **options)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _keep(story: "Story", page: Group, out: Path, words: "Words") -> None:
    (out / "explain.json").write_text(
        json_format.dumps(story.report.to_dict(), indent=2, allow_nan=False) + "\n"
    )
    with (out / "report.txt").open("w") as file:
        console = Console(file=file, width=_REPORT_WIDTH, highlight=False)
        console.print(page)
        console.print()
        console.print(story.report.told(words), markup=False, soft_wrap=True)


def _keep_html(story: "Story", path: Path, words: "Words") -> str:
    """Says what was kept, or why not: the demonstration is complete without the page."""
    from onepass.analysis.html.page import write
    from onepass.insight.demo.page import demo_page

    try:
        write(path, demo_page(story, words))
    except MissingPackage as missing:
        return "\n" + words("demo_not_kept", name=path.name, why=missing)
    return f", {path}"
