"""`onepass export FILE.py:NAME`: a function's kernels for use without onepass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onepass.cli.output import Output
from onepass.errors import writing

if TYPE_CHECKING:
    from onepass.insight.export import Export

SCHEMA = "onepass.export/1"


def export(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="The file must define example_inputs().")
    ],
    arch: Annotated[str, typer.Option(help="Architectures, as sm_80,sm_90.")],
    out: Annotated[str, typer.Option(help="The folder to write: a new one, or one of an older export.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document (onepass.export/1).")] = False,
) -> None:
    """Write kernels as CUDA C++ with machine code, a launcher in C++ and a test of its own. Needs no GPU."""
    output = Output.open(json)
    archs, folder = _archs(arch), _folder(out)
    with output.foreign_prints():
        made = _written(target, archs, folder)
    output.text(f"{target.rpartition(':')[2]} is {made.verdict}.")
    for file in made.files:
        output.text(f"  {file}")
    output.text(f"{folder}/README.md says how to build, test and use them.")
    output.document(
        {
            "schema": SCHEMA,
            "verdict": made.verdict,
            "folder": str(folder),
            "architectures": archs,
            "kernels": list(made.kernels),
            "files": list(made.files),
            "fat_binary": not made.no_fat_binary,
            "missing": [made.no_fat_binary] if made.no_fat_binary else [],
        }
    )


def _archs(asked: str) -> list[str]:
    from onepass.device import of_arch

    archs = list(dict.fromkeys(a.strip() for a in asked.split(",") if a.strip()))
    if not archs:
        raise typer.BadParameter("name at least one architecture, as sm_90", param_hint="--arch")
    for a in archs:
        of_arch(a)
    return archs


def _folder(out: str) -> Path:
    if not out.strip():
        raise typer.BadParameter("name a folder", param_hint="--out")
    return Path(out)


def _written(target: str, archs: list[str], folder: Path) -> Export:
    from onepass.cli.target import blamed, load

    loaded = load(target)
    from onepass.insight.export import export as write

    with writing(folder), blamed(loaded):
        return write(str(loaded.path), loaded.name, loaded.function, loaded.inputs, archs, folder)
