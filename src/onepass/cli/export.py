"""`onepass export FILE.py:NAME`: a function's kernels for use without onepass."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onepass.cli.output import Output
from onepass.errors import writing

SCHEMA = "onepass.export/1"


def export(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="The file must define example_inputs().")
    ],
    arch: Annotated[str, typer.Option(help="Architectures, as sm_80,sm_90.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document (onepass.export/1).")] = False,
) -> None:
    """Write kernels as CUDA C++ with machine code, a launcher in C++ and a test of its own. Needs no GPU."""
    from onepass.cli.target import blamed, load
    from onepass.device import of_arch

    output = Output.open(json)
    archs = [a.strip() for a in arch.split(",") if a.strip()]
    if not archs:
        raise typer.BadParameter("name at least one architecture, as sm_90", param_hint="--arch")
    for a in archs:
        of_arch(a)
    with output.foreign_prints():
        loaded = load(target)
        from onepass.insight.export import export as write

        with writing(out), blamed(loaded):
            made = write(str(loaded.path), loaded.name, loaded.function, loaded.inputs, archs, out)
    noun = "kernel" if len(made.kernels) == 1 else "kernels"
    output.text(f"{loaded.name} is {len(made.kernels)} {noun} for {', '.join(archs)}, written to {out}.")
    for file in made.files:
        output.text(f"  {file}")
    output.text(f"{out}/README.md says how to build, test and use them.")
    output.document(
        {
            "schema": SCHEMA,
            "verdict": f"{len(made.kernels)} {noun} for {', '.join(archs)}",
            "folder": str(out),
            "architectures": archs,
            "kernels": list(made.kernels),
            "files": list(made.files),
            "fat_binary": made.fat_binary,
        }
    )
