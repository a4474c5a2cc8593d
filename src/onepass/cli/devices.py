"""`onepass devices [NAME]`: the table of GPUs, each number with its source."""

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from onepass.cli.output import Output
from onepass.device import FACTS, Card, cards, find

_UNKNOWN = "unknown"


def devices(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="One GPU: V100, '3080 Ti', its full name.")
    ] = "",
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document (onepass.devices/1).")
    ] = False,
) -> None:
    """List the GPUs that can be named with --device, or show one with the source of each number."""
    output = Output.open(json)
    shown = (find(name),) if name else cards()
    output.text(_verdict(shown))
    output.console.print(_one(shown[0]) if name else _all(shown))
    if name:
        output.text("\n".join(filter(None, (_sources(shown[0]), shown[0].note))))
    document: dict[str, Any] = {"schema": "onepass.devices/1", "devices": [card.to_dict() for card in shown]}
    output.document(document)


def _verdict(shown: tuple[Card, ...]) -> str:
    if len(shown) > 1:
        holes = sum(len(card.unknown) for card in shown)
        return (
            f"{len(shown)} GPUs of {len({card.arch for card in shown})} architectures; {holes} numbers that no good "
            "source gives are left unknown. `onepass devices NAME` shows sources."
        )
    card = shown[0]
    ridge = _UNKNOWN if card.ridge is None else f"{card.ridge:.1f} FLOPs a byte"
    missing = f" Unknown: {', '.join(card.unknown)}." if card.unknown else ""
    return f"{card.name} ({card.arch}): a kernel below the ridge of {ridge} is bound by memory.{missing}"


def _all(shown: tuple[Card, ...]) -> Table:
    table = Table("device", "arch", "SMs", "MHz", "GB/s", "fp32 TFLOP/s", "ridge", "L2 MiB", "memory GiB")
    for column in table.columns[2:]:
        column.justify = "right"
    for card in shown:
        numbers = (card.units, card.boost_mhz, card.bandwidth_gbps, card.fp32_tflops)
        ridge = None if card.ridge is None else round(card.ridge, 1)
        cells = (card.name, card.arch, *map(_cell, (*numbers, ridge, card.l2_mib, card.memory_gib)))
        table.add_row(*map(Text, cells))
    return table


def _one(card: Card) -> Table:
    """Each number with the number of its source in the list below the table."""
    order = list(dict.fromkeys(card.sources.values()))
    table = Table("", "value", "unit", "source")
    table.columns[1].justify = "right"
    for fact, unit in FACTS.items():
        source = f"[{order.index(card.sources[fact]) + 1}]" if fact in card.sources else ""
        table.add_row(*map(Text, (fact, _cell(getattr(card, fact), _UNKNOWN), unit, source)))
    for fact, derived, unit, how in (
        ("bandwidth, derived", card.derived_gbps, FACTS["bandwidth_gbps"], "bus_bits × data_rate_gbps ÷ 8"),
        ("fp32, derived", card.derived_tflops, FACTS["fp32_tflops"], "units × fp32_lanes × 2 × boost_mhz"),
        ("ridge", card.ridge, "FLOPs a byte", "fp32_tflops ÷ bandwidth_gbps"),
    ):
        table.add_row(*map(Text, (fact, _cell(derived and round(derived, 2), _UNKNOWN), unit, how)))
    limits, source = card.limits, f"[{order.index(card.sources['limits']) + 1}]"
    for fact, number, unit in (
        ("threads", limits.threads, "resident, a multiprocessor"),
        ("blocks", limits.blocks, "resident, a multiprocessor"),
        ("registers", limits.registers, "32 bits each, a multiprocessor"),
        ("fp32_lanes", limits.fp32_lanes, "a multiprocessor"),
        ("shared_bytes", limits.shared_bytes, "bytes, a multiprocessor"),
        ("block_shared_bytes", limits.block_shared_bytes, "bytes, at most, a block"),
        ("reserved_shared_bytes", limits.reserved_shared_bytes, "bytes of each block, the system's"),
    ):
        table.add_row(*map(Text, (fact, str(number), unit, source)))
    return table


def _sources(card: Card) -> str:
    order = dict.fromkeys(card.sources.values())
    return "\n".join(f"[{i}] {source.document}, {source.date}" for i, source in enumerate(order, 1))


def _cell(value: float | None, unknown: str = "–") -> str:
    return unknown if value is None else f"{value:g}" if value < 1e4 else f"{value:.0f}"
