"""`onepass bench FILE.py:fn`: how fast a callable is, how near the roof, and whether it is right."""

from __future__ import annotations

from typing import Annotated

import typer

from onepass.cli.inspect import GATE_HELP
from onepass.cli.output import EXIT_WORSE, Output


def bench(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py:fn", help="The file must define example_inputs().")
    ],
    reads: Annotated[str, typer.Option(help="Parameters that are read from memory, as x,r.")],
    writes: Annotated[str, typer.Option(help="What is written: parameters, or a name for each result.")],
    ref: Annotated[
        str, typer.Option(metavar="FILE.py:ref", help="What it should compute; called with float64 inputs.")
    ],
    rounds: Annotated[int, typer.Option(min=1, help="Samples to take.")] = 30,
    gate: Annotated[str | None, typer.Option(help=GATE_HELP)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document (onepass.bench/1).")] = False,
) -> None:
    """Time a callable beside the roof of its mix of reads and writes. A wrong result voids the row: exit code 1."""
    from onepass.cli.target import function_in, load
    from onepass.insight.gate import BENCH, broken, read_gate

    output = Output.open(json)
    rules = read_gate(gate, "bench", BENCH) if gate is not None else ()
    with output.foreign_prints():
        loaded, reference = load(target), function_in(ref)
        from onepass.insight import bench as benching

        job = benching.task(
            str(loaded.path), loaded.function, loaded.inputs, _names(reads), _names(writes), reference
        )
        row = benching.bench(job, rounds)
    output.text(row.verdict)
    for name, what in row.tensors.items():
        output.text(f"  {'reads' if name in job.reads else 'writes'} {name}: {what}")
    violated = [] if row.void else broken(rules, {job.name: row.record()}, gate or "")
    for said in violated:
        output.text(f"gate broken: {said}")
    judged = {"gate": {"rules": [str(r) for r in rules], "broken": violated}} if rules else {}
    output.document({**row.to_dict(), **judged})
    if row.void or violated:
        raise typer.Exit(EXIT_WORSE)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
