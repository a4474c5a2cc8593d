"""`onepass occupancy`: how many blocks of a kernel a multiprocessor holds, what limits it, and the nearest steps."""

import re
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from onepass.analysis.occupancy import (
    BLOCK_THREADS,
    THREAD_REGISTERS,
    Cliff,
    Occupancy,
    cliffs,
    curve,
    resident,
)
from onepass.cli.output import EXIT_FINE, EXIT_WORSE, Output
from onepass.device import Card, Limits, architectures, find
from onepass.errors import NoSuchArchitecture

_BAR = 24  # columns of a full bar
_OF = {
    "registers": "registers a thread",
    "shared_bytes": "bytes of shared memory a block",
    "threads": "threads a block",
}


def occupancy(
    device: Annotated[
        str, typer.Option("--device", help="A GPU (V100, '3080 Ti') or an architecture (sm_86).")
    ],
    block: Annotated[int, typer.Option("--block", min=1, max=BLOCK_THREADS, help="Threads a block.")] = 256,
    registers: Annotated[
        int, typer.Option("--registers", min=0, max=THREAD_REGISTERS, help="Registers a thread.")
    ] = 32,
    shared: Annotated[
        int,
        typer.Option(
            "--shared", min=0, help="Bytes of shared memory a block, static and dynamic, as ptxas says."
        ),
    ] = 0,
    barriers: Annotated[
        int, typer.Option("--barriers", min=0, max=16, help="Named barriers a block uses.")
    ] = 1,
    carveout: Annotated[
        int | None,
        typer.Option(
            "--carveout", min=0, max=100, help="Preferred share of shared memory in percent; default: all."
        ),
    ] = None,
    in_flight: Annotated[
        int, typer.Option("--in-flight", min=0, help="Bytes each thread has asked memory for at once.")
    ] = 0,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document (onepass.occupancy/1).")
    ] = False,
) -> None:
    """Say what a multiprocessor holds of a kernel, by NVIDIA's rules; no GPU is needed."""
    output = Output.open(json)
    name, limits, card = _limits(device)
    now = resident(limits, block, registers, shared, barriers=barriers, carveout_percent=carveout)
    output.text(_verdict(name, now))
    output.text(_flight(now, in_flight, card))
    _show(output, now)
    output.document(_document(name, now, in_flight))
    raise typer.Exit(EXIT_FINE if now.blocks else EXIT_WORSE)


def _show(output: Output, now: Occupancy) -> None:
    """What each limit allows, the nearest steps, and the curve over block sizes."""
    output.console.print(_allowed(now))
    for step in cliffs(now):
        output.text("  " + _step(now, step))
    output.text("\nOver block sizes, the rest as given:")
    for point in curve(now):
        output.text(_line(point, point.threads == now.threads))


def _document(name: str, now: Occupancy, in_flight: int) -> dict[str, Any]:
    return {
        "schema": "onepass.occupancy/1",
        "device": name,
        **now.to_dict(),
        "in_flight_bytes": now.blocks * now.threads * in_flight if in_flight else None,
        "cliffs": [step.to_dict() for step in cliffs(now)],
        "curve": [
            {
                "threads": p.threads,
                "blocks": p.blocks,
                "warp_occupancy": p.warp_share,
                "thread_occupancy": p.thread_share,
                "binding": list(p.binding),
            }
            for p in curve(now)
        ],
    }


def _limits(device: str) -> tuple[str, Limits, Card | None]:
    known = architectures().get(device.lower())
    if known:
        return known.arch, known, None
    if re.fullmatch(r"sm_\w*", device.lower()):
        raise NoSuchArchitecture(device, tuple(architectures()))
    card = find(device)
    return card.name, card.limits, card


def _verdict(name: str, now: Occupancy) -> str:
    if not now.blocks:
        return (
            f"Such a kernel cannot start on {name}: too much for one multiprocessor in {_and(now.binding)}."
        )
    what = "1 block" if now.blocks == 1 else f"{now.blocks} blocks"
    return (
        f"Warp occupancy {_percent(now.warp_share)}, thread occupancy {_percent(now.thread_share)} on {name}: {what} of "
        f"{now.threads} thread{'' if now.threads == 1 else 's'} on a multiprocessor, held there by {_and(now.binding)}."
    )


def _flight(now: Occupancy, in_flight: int, card: Card | None) -> str:
    """Occupancy is only the entry ticket: what feeds memory is the bytes that resident threads have asked for."""
    if not in_flight:
        return "Full occupancy is no promise of speed: what counts then is bytes in flight (--in-flight BYTES a thread)."
    each = now.blocks * now.threads * in_flight
    units = card.units if card else None
    whole = f", {each * units / 1e6:.2f} MB on all {units}" if units else ""
    return f"Bytes in flight: {each / 1e3:.1f} kB on a multiprocessor{whole}."


def _allowed(now: Occupancy) -> Table:
    table = Table("limit", "blocks", "")
    table.columns[1].justify = "right"
    for limit, blocks in sorted(now.allowed.items(), key=lambda item: item[1]):
        table.add_row(*map(Text, (limit, str(blocks), "binds" if limit in now.binding else "")))
    return table


def _step(now: Occupancy, step: Cliff) -> str:
    where = f"{step.value} {_OF[step.resource]} ({step.direction} from {getattr(now, step.resource)})"
    warps = f"{_percent(now.warp_share)} → {_percent(step.then.warp_share)}"
    return f"{where}: {_blocks(now.blocks)} → {_blocks(step.then.blocks)}, warps {warps}"


def _line(point: Occupancy, here: bool) -> str:
    bar = "█" * round(_BAR * point.warp_share)
    mark = "◀" if here else ""
    shares = f"{_percent(point.warp_share):>8}  {_blocks(point.blocks):>9}"
    return f"  {point.threads:>5}  {bar:<{_BAR}}{shares}  {_and(point.binding)} {mark}".rstrip()


def _blocks(n: int) -> str:
    return f"{n} block{'' if n == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + " %"


def _and(names: tuple[str, ...]) -> str:
    return " and ".join(names)
