"""`onepass roofline FILE.py:NAME`: what bounds each kernel of a function on a device, with a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from onepass.cli.output import Output
from onepass.errors import NoRoof, NotPresent, writing

if TYPE_CHECKING:
    from onepass.analysis.roofline import Roofline
    from onepass.cli.target import Target


def roofline(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="The file must define example_inputs().")
    ],
    device: Annotated[
        str,
        typer.Option("--device", help="A GPU of `onepass devices`, or cpu; default: where the inputs are."),
    ] = "",
    run: Annotated[bool, typer.Option("--run", help="Also time each kernel, on the device present.")] = False,
    svg: Annotated[Path | None, typer.Option("--svg", help="Write the picture to this file.")] = None,
    png: Annotated[Path | None, typer.Option("--png", help="The same as PNG; needs matplotlib.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document (onepass.roofline/1).")
    ] = False,
) -> None:
    """Place each kernel of a function under the datasheet's and the measured roof of a device."""
    from onepass.cli.target import load
    from onepass.device import find

    output = Output.open(json)
    named = find(device).name if device not in ("", "cpu") else ""  # before the seconds that PyTorch takes
    with output.foreign_prints():
        found = _place(load(target), named, run)
    output.text(found.text)
    _print(output, found)
    for path in _pictures(found, svg, png):
        output.text(f"picture: {path}")
    output.document(found.to_dict())


def _place(target: "Target", named: str, run: bool) -> "Roofline":
    from onepass import api
    from onepass.analysis.report import points_of
    from onepass.analysis.roofline import Roofline
    from onepass.capture.absent import generate
    from onepass.cli.target import blamed
    from onepass.runtime.calibration import roofs_of

    present = _present()
    where = _where(target.inputs, present)
    if named and named != where:
        if run:
            raise NotPresent(named, where, tuple(present))
        with blamed(target):
            plans = generate(named, target.function, target.inputs, compiled=False).plans
        notes = [f"Planned for {named}, where the inputs are not: nothing was compiled or run for it."]
        name, report = named, api.report(plans, [[] for _ in plans], [])
    else:
        with blamed(target):
            report = api.explain(target.function, *target.inputs, run=run)
        name, notes = present[0] if report.device == "cpu" else report.device, []
    known = roofs_of(name)
    if not known and report.kernels:  # the time model's roof, which the report has too, is no judge of itself
        raise NoRoof(name)
    if report.left:
        memory = sum(row.bound == "memory" for row in report.left)
        notes.append(
            f"Calls that stay with PyTorch and are no points here: {len(report.left)}, "
            f"of them memory-bound: {memory}."
        )
    return Roofline(name, report.roofs or known, points_of(report.kernels), tuple(notes))


def _where(inputs: Sequence[Any], present: Sequence[str]) -> str:
    """The name of the device that a function's inputs are on."""
    import torch

    on = next((x.device for x in inputs if isinstance(x, torch.Tensor)), torch.device("cpu"))
    return present[0] if on.type == "cpu" else torch.cuda.get_device_name(on)


def _present() -> list[str]:
    """The processor and the GPUs of this machine, by the names that their roofs are kept under."""
    import torch

    from onepass.runtime.calibration import cpu_name

    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return [cpu_name(), *(torch.cuda.get_device_name(i) for i in gpus)]


def _print(output: Output, found: "Roofline") -> None:
    from onepass.analysis.html.roofline_figure import roof_words

    table = Table("kernel", "", "FLOPs", "fused", "op by op", "AI", "op by op", "verdict", "at least")
    measured = any(p.measured_us for p in found.points)
    if measured:
        table.add_column("measured")
        table.add_column("of roof")
    for column in table.columns[1:]:
        column.justify = "right"
    for p in found.points:
        cells = [p.name, f"× {p.count}" if p.count > 1 else "", _si(p.flops, ""), _si(p.bytes, "B")]
        cells += [_si(p.eager_bytes, "B"), f"{p.ai:.2f}", f"{p.eager_ai:.2f}", found.roof.verdict(p.ai)]
        cells.append(f"{p.bound_us(found.roof):.1f} µs")
        if measured:
            share = p.share(found.roof)
            cells += [f"{p.measured_us:.1f} µs", f"{share:.0%}"] if p.measured_us and share else ["–", "–"]
        table.add_row(*map(Text, cells))
    output.console.print(table)
    for roof in found.roofs:
        output.text(f"{roof_words(roof)} ({roof.source})")
    if found.roofs and found.roof.kind == "datasheet":
        output.text("No measured roof is kept for this device: `onepass calibrate` on it measures one.")
    for note in found.notes:
        output.text(note)


def _pictures(found: "Roofline", svg: Path | None, png: Path | None) -> list[Path]:
    from onepass.insight import roofline_picture

    if svg:
        with writing(svg):
            svg.write_text(roofline_picture.svg(found), encoding="utf-8")
    if png:
        roofline_picture.png(found, png)
    return [path for path in (svg, png) if path]


def _si(n: float, unit: str) -> str:
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.1f} {prefix}{unit}".rstrip()
    return f"{n:g} {unit}".rstrip()
