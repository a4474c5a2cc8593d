"""`onepass explain FILE.py:NAME`: what a function would run as, and why."""

from pathlib import Path
from typing import Annotated, Any

import typer

from onepass.cli.inspect import GATE_HELP
from onepass.cli.language import Language
from onepass.cli.output import EXIT_WORSE, Output


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
    gate: Annotated[str | None, typer.Option(help=GATE_HELP)] = None,
    lang: Language = "en",
) -> None:
    """Show the kernels, bytes and decisions for a function in a file."""
    from onepass.analysis.words import words_of
    from onepass.cli.target import blamed, load
    from onepass.insight.gate import EXPLAIN, broken, read_gate

    words = words_of(lang)
    output = Output.open(json)
    rules = read_gate(gate, "explain", EXPLAIN) if gate is not None else ()
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
    violated = broken(rules, _records(report), gate or "") if rules else []
    for said in violated:
        output.text(f"gate broken: {said}")
    judged = {"gate": {"rules": [str(r) for r in rules], "broken": violated}} if rules else {}
    output.document({**_document(report, source), **judged})
    if violated:
        raise typer.Exit(EXIT_WORSE)


def _records(report: Any) -> dict[str, dict[str, Any]]:
    """What a gate judges, by kernel; rates where it was timed, and where a roof of the device is known."""
    from onepass.analysis.roofline import MOST_OF_ROOF
    from onepass.runtime.calibration import cpu_name, roofs_of

    roofs = roofs_of(cpu_name() if report.device == "cpu" else report.device)
    found: dict[str, dict[str, Any]] = {}
    for i, k in enumerate(report.kernels, 1):
        record: dict[str, Any] = {
            "registers": k.registers,
            "spill_bytes": k.spill_bytes,
            "occupancy": k.occupancy,
        }
        missing = [] if k.measured_us else ["Nothing was timed: add --run."]
        missing += (
            []
            if k.registers is not None
            else ["Kernels for the CPU have no registers; `onepass inspect` compiles for GPUs."]
        )
        nbytes = k.bytes_read + k.bytes_written
        if k.measured_us:
            record["gbps"] = nbytes / k.measured_us / 1000
            if roofs and roofs[-1].kind == "measured":
                record["roof_gbps"] = roofs[-1].mix_gbps(k.bytes_read / nbytes if nbytes else 0.0)
                attained = record["gbps"] / record["roof_gbps"]
                if attained <= MOST_OF_ROOF:
                    record["attained"] = attained
                else:
                    missing.append(
                        "It is above the measured roof: its data was in a cache; take larger inputs."
                    )
            else:
                missing.append("No measured roof is kept: `onepass calibrate` measures one.")
        found[k.name if k.name not in found else f"{k.name}, kernel {i}"] = {**record, "missing": missing}
    return found


def _document(report: Any, source: bool) -> dict[str, Any]:
    document: dict[str, Any] = report.to_dict()
    if source:
        for row, kernel in zip(document["kernels"], report.kernels, strict=True):
            row["source"] = kernel.source
    return document
