"""`onepass explain FILE.py:NAME`: what a function would run as, and why."""

from pathlib import Path
from typing import Annotated, Any

import typer

from onepass.cli.language import Language
from onepass.cli.output import Output


def explain(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="The file must define example_inputs().")
    ],
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document (onepass.explain/1).")
    ] = False,
    source: Annotated[bool, typer.Option("--source", help="Add the source text of each kernel.")] = False,
    run: Annotated[bool, typer.Option("--run", help="Also run and time each kernel.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write the report as one HTML page.")
    ] = None,
    lang: Language = "en",
) -> None:
    """Show the kernels, bytes and decisions for a function in a file."""
    from onepass.analysis.words import words_of
    from onepass.cli.target import blamed, load

    words = words_of(lang)
    output = Output.open(json)
    if html is not None:
        from onepass.analysis.html.page import check_path

        check_path(html)  # before the minutes that a large model takes
    with output.foreign_prints():
        loaded = load(target)
        from onepass import api  # after the file's own errors are out: PyTorch takes seconds to import

        with blamed(loaded):
            report = api.explain(loaded.function, *loaded.inputs, run=run)
    output.text(report.told(words))
    if html is not None:
        report.save(html, lang)
        output.text("\n" + words("kept_files", files=html))
    if source and not json:
        for kernel in report.kernels:
            output.text(f"\n// {kernel.name}\n{kernel.source.rstrip()}")
    output.document(_document(report, source))


def _document(report: Any, source: bool) -> dict[str, Any]:
    document: dict[str, Any] = report.to_dict()
    if source:
        for row, kernel in zip(document["kernels"], report.kernels, strict=True):
            row["source"] = kernel.source
    return document
