"""`onepass ladder`: hand-written kernels, one idea a rung, checked, predicted and measured."""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from onepass.cli.language import Language
from onepass.cli.output import EXIT_FINE, EXIT_WORSE, Output
from onepass.errors import BadRung, NoSuchRung, writing

if TYPE_CHECKING:
    from onepass.analysis.words import Words
    from onepass.ladder.machine import Machine
    from onepass.ladder.report import Report
    from onepass.ladder.rungs import Ladder

# What rungs.toml states its predictions for: the device to speak of where none is named and none is here.
_DEVICE = "H200"
_TABLE_WIDTH = 150
ALL = "all"


def ladder(
    target: Annotated[
        str,
        typer.Argument(metavar="NAME | FOLDER | FILE.cu", help="layer_norm, fusion, softmax, or your own."),
    ],
    rows: Annotated[int, typer.Option("--rows", min=1, help="Rows to predict and measure.")] = 65536,
    cols: Annotated[str, typer.Option("--cols", help="Row lengths, separated by commas.")] = "256,1024",
    device: Annotated[
        str, typer.Option("--device", help="A GPU by name; by default the one that is here.")
    ] = "",
    against: Annotated[
        str, typer.Option("--against", help="Of FILE.cu: the rung it is judged against.")
    ] = "",
    of: Annotated[str, typer.Option("--of", help="Of FILE.cu: the ladder that rung is in.")] = "layer_norm",
    predict: Annotated[
        float | None, typer.Option("--predict", min=0.0, help="Of FILE.cu: the speed-up you expect.")
    ] = None,
    lang: Language = "en",
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write the study as one HTML page.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to keep each ladder's document in.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document (onepass.ladder/1).")] = False,
) -> None:
    """Study a ladder of kernels, or judge a kernel of yours against one of its rungs."""
    from onepass.analysis.words import words_of

    output = Output.open(json)
    if Path(target).suffix != ".cu" and (against or predict is not None):
        raise typer.BadParameter(
            "--against and --predict are of a .cu file of yours: onepass ladder mine.cu …"
        )
    words = words_of(lang)
    file = _page_path(html, target)
    machine, assumed = _machine(device)
    sizes = _sizes(cols)
    told = [
        _study(output, each, machine, rows, sizes, words, predict, assumed, file)
        for each in _ladders(target, of, against)
    ]
    for document, _ in told:
        _keep(out, document)
    documents = [document for document, _ in told]
    output.document(
        documents[0] if target != ALL else {"schema": documents[0]["schema"], "ladders": documents}
    )
    raise typer.Exit(EXIT_FINE if all(fine for _, fine in told) else EXIT_WORSE)


def _study(
    output: Output,
    chosen: "Ladder",
    machine: "Machine",
    rows: int,
    cols: list[int],
    words: "Words",
    asked: float | None,
    assumed: bool,
    html: Path | None,
) -> tuple[dict[str, Any], bool]:
    """One ladder, shown: its document, and whether all is as it should be."""
    from onepass.ladder.measure import ready
    from onepass.ladder.report import Report
    from onepass.ladder.study import study

    with output.console.status("") as status:
        found = study(chosen, machine, rows, cols, on_device=ready(machine), progress=status.update)
    report = Report(found, words.language)
    judged = report.learner(asked) if chosen.is_learners else None
    output.text(judged.sentence if judged else report.verdict())
    if assumed:
        output.text(report.say("assumed", device=machine.name))
    _show(output, report)
    _write(output, report, words, judged.sentence if judged else "", html)
    document = report.to_dict()
    if judged:
        document |= {"verdict": judged.sentence, "predicted_factor": asked, "met": judged.met}
    return document, judged.met if judged else not found.surprises


def _write(output: Output, report: "Report", words: "Words", verdict: str, html: Path | None) -> None:
    """The page, where one was asked for."""
    if html is None:
        return
    from onepass.analysis.html.page import write
    from onepass.ladder.page import ladder_page

    write(html, ladder_page(report, words, verdict))
    output.text("\n" + words("kept_files", files=html))


def _page_path(html: Path | None, target: str) -> Path | None:
    """Checked before the minutes that a study takes. Raises: BadReportPath; BadParameter for several ladders."""
    if html is None:
        return None
    from onepass.analysis.html.page import check_path

    if target == ALL:
        raise typer.BadParameter("--html is a page of one ladder: name one, or keep all with --out")
    return check_path(html)


def _keep(out: Path | None, document: dict[str, Any]) -> None:
    """Write a document where `--out` says, for tables to be made of."""
    if out is None:
        return
    path = out / f"ladder-{document['ladder']}.json"
    with writing(path):
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(json_format.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _machine(name: str) -> "tuple[Machine, bool]":
    """The device named, the one that is here, or the one that predictions are stated for: then it is assumed."""
    from onepass.ladder.machine import named, present

    found = named(name) if name else present()
    return (found, False) if found else (named(_DEVICE), True)


def _ladders(target: str, of: str, against: str) -> "list[Ladder]":
    from onepass.ladder.rungs import known

    return [_ladder(name, of, against) for name in (known() if target == ALL else [target])]


def _ladder(target: str, of: str, against: str) -> "Ladder":
    from onepass.ladder.rungs import HERE, LIST, known, load, near
    from onepass.ladder.steps import learner

    path = Path(target)
    if path.suffix == ".cu":
        if not against:
            raise BadRung(target, "there is nothing to judge it against", "Name a rung: --against v4.")
        below = _ladder(of, "", "")
        return learner(path, below, below.rung(against))[0]
    if target in known():
        return load(HERE / target)
    if (path / LIST).is_file():
        return load(path.resolve())
    raise NoSuchRung(target, "the ladders", near(target, [*known(), ALL]))


def _sizes(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--cols {text!r}: give whole numbers separated by commas") from None
    if min(found) < 1:
        raise typer.BadParameter(f"--cols {text!r}: a row has at least one column")
    return list(dict.fromkeys(found))


def _show(output: Output, report: "Report") -> None:
    # Wider than a terminal may be: a column squeezed to dots says nothing.
    screen = output.console
    wide = Console(file=screen.file, width=max(screen.width, _TABLE_WIDTH), highlight=False)
    output.text("\n".join(report.lines()))
    for cols in report.study.cols:
        output.text("")
        output.text("\n".join(report.rooflines(cols)))
        table = Table(box=None, pad_edge=False)
        for i, name in enumerate(report.header()):
            table.add_column(name, justify="left" if i < 2 else "right", no_wrap=i < 2)
        for entry in report.study.at(cols):
            table.add_row(*report.row(entry))
        wide.print(table, crop=False)
        output.text("")
        for entry in report.study.at(cols):
            output.text(report.sentence(entry))
