"""`onepass calibrate`: measure this machine's roofs and keep them for reports."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from onepass.cli.output import Output
from onepass.errors import NotCalibrated, UnknownGpu

if TYPE_CHECKING:
    import torch

    from onepass.runtime.calibration import Calibration


def calibrate(
    device: Annotated[
        str, typer.Option("--device", help="cpu, cuda or cuda:N; default: the GPU if there is one.")
    ] = "",
    rounds: Annotated[int, typer.Option("--rounds", min=3, help="Samples of each kernel.")] = 15,
    stream_mib: Annotated[
        int,
        typer.Option("--stream-mib", min=0, help="Size of each stream; default: far beyond the last cache."),
    ] = 0,
    show: Annotated[bool, typer.Option("--show", help="Show what is kept and measure nothing.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document (onepass.calibrate/1).")
    ] = False,
) -> None:
    """Measure memory by number of read and write streams, fp32 multiply-adds and starting a kernel."""
    from onepass.insight.calibrate import calibrate as measure
    from onepass.insight.here import usable_device
    from onepass.runtime import calibration

    output = Output.open(json)
    chosen = usable_device(device)
    if show:
        known = calibration.kept(calibration.present(chosen))
        if known is None:
            raise NotCalibrated(calibration.present(chosen))
        found, path = known, calibration.path_of(known.device)
    else:
        _fits(chosen, stream_mib)
        progress = Output.open(True).console  # standard error: never among the results
        found = measure(
            chosen,
            rounds=rounds,
            stream_bytes=stream_mib << 20 or None,
            progress=lambda text: progress.print(f"measuring {text}", markup=False),
        )
        path = calibration.keep(found)
    output.text(_verdict(found))
    output.console.print(_table(found))
    if found.disturbed:
        output.text(
            "The machine was disturbed: the quartiles of a mix lie far apart. Measure again when it is idle."
        )
    output.text(f"Measured {found.date} with {found.machine}; kept in {path}")
    output.document({**found.to_dict(), "path": str(path)})


def _fits(device: "torch.device", stream_mib: int) -> None:
    from onepass.insight.calibrate import largest_stream_bytes

    most_mib = largest_stream_bytes(device) >> 20
    if stream_mib > most_mib:
        raise typer.BadParameter(
            f"{stream_mib} MiB a stream do not fit into the memory that is free; {most_mib} would",
            param_hint="--stream-mib",
        )


def _verdict(found: "Calibration") -> str:
    best = max(found.memory, key=lambda m: m.gbps)
    ridge = found.fp32_gflops / found.best_gbps
    return (
        f"{found.device}: {best.gbps:.0f} GB/s at best ({best.reads} read, {best.writes} written), "
        f"{found.fp32_gflops / 1000:.3g} TFLOP/s of fp32 multiply-adds, ridge {ridge:.1f} FLOPs a byte; "
        f"no kernel takes less than {found.launch_us:.2f} µs.{_datasheet(found)}"
    )


def _datasheet(found: "Calibration") -> str:
    from onepass.device import find

    if found.kind == "cpu":
        return ""
    try:
        card = find(found.device)
    except UnknownGpu:
        return " The table has no such card: these measured roofs are the only ones."
    share = found.best_gbps / card.bandwidth_gbps if card.bandwidth_gbps else None
    return f" That is {share:.0%} of the datasheet's {card.bandwidth_gbps:g} GB/s." if share else ""


def _table(found: "Calibration") -> Table:
    table = Table("read streams", "write streams", "GB/s", "quartiles", "best kernel")
    for column in table.columns[:4]:
        column.justify = "right"
    for m in found.memory:
        spread = f"{m.low_gbps:.0f} … {m.high_gbps:.0f}"
        table.add_row(*map(Text, (str(m.reads), str(m.writes), f"{m.gbps:.1f}", spread, m.kernel)))
    return table
