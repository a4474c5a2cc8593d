"""`onepass diff A.json B.json`: what became of a measurement, or of kernels, between two documents."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from onepass.cli.output import EXIT_MISUSE, EXIT_WORSE, Output
from onepass.errors import BadUserFile


def diff(
    old: Annotated[
        Path, typer.Argument(metavar="A.json", help="What `onepass bench` or `inspect` --json wrote before.")
    ],
    new: Annotated[Path, typer.Argument(metavar="B.json", help="What it wrote after.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document (onepass.diff/1).")] = False,
) -> None:
    """Say better, worse, cannot tell or not comparable. Exit code 1: worse; 2: not comparable."""
    from onepass.insight.compare import NOT_COMPARABLE, SCHEMA, WORSE, overall
    from onepass.insight.compare import diff as compare

    output = Output.open(json)
    found = compare(_read(old), _read(new))
    verdict = overall(found)
    output.text(
        f"{verdict}: {found[0].reason}" if len(found) == 1 else f"{verdict} over {len(found)} kernels"
    )
    for d in found:
        output.text(f"{d.verdict:14}  {d.name}: {d.reason}")
        for change in d.changes:
            output.text(f"{'':14}    {change}")
    output.document({"schema": SCHEMA, "verdict": verdict, "differences": [d.to_dict() for d in found]})
    if verdict in (WORSE, NOT_COMPARABLE):
        raise typer.Exit(EXIT_WORSE if verdict == WORSE else EXIT_MISUSE)


def _read(path: Path) -> dict[str, Any]:
    from onepass.insight.compare import fault_in

    advice = "Name two files written by `onepass bench … --json` or `onepass inspect … --json`."
    try:
        document = json_module.loads(path.read_text(), parse_constant=_no_number)
    except OSError as error:
        raise BadUserFile(str(path), f"can't be read: {error.strerror}", advice) from error
    except (ValueError, RecursionError) as error:
        raise BadUserFile(str(path), f"is not one JSON document: {error}", advice) from error
    if not isinstance(document, dict) or "schema" not in document:
        raise BadUserFile(str(path), "is no document of onepass", advice)
    fault = fault_in(document)
    if fault:
        raise BadUserFile(str(path), f"is no whole document of {document['schema']}: {fault}", advice)
    return document


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
