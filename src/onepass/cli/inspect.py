"""`onepass inspect FILE`: what any GPU kernel takes and holds, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from onepass.cli.output import EXIT_WORSE, Output

if TYPE_CHECKING:
    from onepass.insight.inspect import Inspection, KernelFacts

GATE_HELP = 'Rules to keep, as "spill_bytes==0, registers<=64"; exit code 1 when one is broken.'


def inspect(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A .cu, .ptx or .cubin file, a fat binary, a library, an entry of Triton's cache, or FILE.py:NAME.",
        ),
    ],
    arch: Annotated[
        str, typer.Option(help="Architectures, as sm_86,sm_90; default: what the file holds.")
    ] = "",
    include: Annotated[list[Path] | None, typer.Option(help="A folder of headers; may be repeated.")] = None,
    kernel: Annotated[str, typer.Option(help="Only this kernel.")] = "",
    block: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads a block.")] = None,
    shared: Annotated[int, typer.Option(min=0, help="Dynamic shared memory a block, in bytes.")] = 0,
    lines: Annotated[bool, typer.Option("--lines", help="Add the machine code of each source line.")] = False,
    gate: Annotated[str | None, typer.Option(help=GATE_HELP)] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document (onepass.inspect/1).")
    ] = False,
) -> None:
    """Show registers, spills, shared memory, occupancy and machine code of GPU kernels. Needs no GPU."""
    from onepass.insight.gate import INSPECT, broken, read_gate

    output = Output.open(json)
    rules = read_gate(gate, "inspect", INSPECT) if gate is not None else ()
    archs = [a.strip() for a in arch.split(",") if a.strip()]
    found = _found(output, target, archs, include or [], kernel, block, shared)
    output.text(found.verdict)
    show(output, found)
    if lines:
        _show_lines(output, found)
    violated = broken(rules, found.records(), gate or "")
    for said in violated:
        output.text(f"gate broken: {said}")
    output.document(
        {
            **found.to_dict(),
            **({"gate": {"rules": [str(r) for r in rules], "broken": violated}} if rules else {}),
        }
    )
    if violated:
        raise typer.Exit(EXIT_WORSE)


def _found(
    output: Output,
    target: str,
    archs: list[str],
    include: list[Path],
    kernel: str,
    block: int | None,
    shared: int,
) -> Inspection:
    if Path(target.rpartition(":")[0]).suffix == ".py":
        from onepass.cli.target import blamed, load

        if block is not None or shared or include:
            raise typer.BadParameter(
                "a generated kernel has its own block and no headers",
                param_hint="--block, --shared, --include",
            )
        with output.foreign_prints():
            loaded = load(target)
            from onepass.insight.inspect import inspect_generated

            with blamed(loaded):
                return inspect_generated(target, loaded.function, loaded.inputs, archs, kernel)
    from onepass.insight.inspect import inspect_file

    return inspect_file(Path(target), archs, include, kernel, block, shared)


def show(output: Output, found: Inspection) -> None:
    """Two tables: what a kernel takes, and what its code holds."""
    from onepass.insight.inspect import EXECUTED_RULE, IN_FLIGHT_RULE, STATIC_RULE

    takes = Table("kernel", "arch", box=None, pad_edge=False)
    for name in ("registers", "spills st/ld B", "stack B", "shared B", "barriers", "threads", "warp occ."):
        takes.add_column(name, justify="right")
    takes.add_column("limited by")
    holds = Table("kernel", "arch", "counted in", "memory instructions", box=None, pad_edge=False)
    for name in ("instr.", "special", "barrier", "shuffle", "B in flight"):
        holds.add_column(name, justify="right")
    for k in found.kernels:
        takes.add_row(*_takes(k))
        holds.add_row(*_holds(k))
    output.console.print(takes)
    for said in dict.fromkeys(said for k in found.kernels for said in _cliffs(k)):
        output.text(f"- {said}")
    output.console.print()
    output.console.print(holds)
    executes = _executes(found)
    if executes.row_count:
        output.console.print()
        output.console.print(executes)
    rules = (STATIC_RULE, IN_FLIGHT_RULE, *((EXECUTED_RULE,) if executes.row_count else ()))
    for note in dict.fromkeys((*(m for k in found.kernels for m in k.missing), *rules)):
        output.text(f"- {note}")


def _executes(found: Inspection) -> Table:
    """What is executed a row, of the kernels that the emulator ran."""
    from onepass.insight.inspect import short

    table = Table("kernel", "arch", box=None, pad_edge=False)
    for name in (
        "barriers a row",
        "memory instr. a row",
        "shared instr. a row",
        "B read a row",
        "B written a row",
    ):
        table.add_column(name, justify="right")
    table.add_column("run")
    for k in found.kernels:
        if e := k.executed:
            counts = (e.barriers, e.memory_instructions, e.shared_instructions, e.read_bytes, e.written_bytes)
            table.add_row(short(k.name), k.arch, *(f"{n / e.rows:.6g}" for n in counts), e.case)
    return table


def _cliffs(k: KernelFacts) -> list[str]:
    """The nearest steps of occupancy by registers, and by shared memory where some is used; the share of threads too."""
    from onepass.analysis.occupancy import cliffs
    from onepass.insight.inspect import short

    if k.resident is None:
        return []
    said = []
    for c in cliffs(k.resident):
        if c.resource == "registers" or (c.resource == "shared_bytes" and k.resident.shared_bytes):
            what = "registers" if c.resource == "registers" else "bytes of shared memory"
            said.append(f"{c.value} {what} would give {c.then.warp_share:.1%}")
    if k.resident.thread_share != k.resident.warp_share:
        said.append(f"{k.resident.thread_share:.2%} of thread slots")
    return [f"{short(k.name)} on {k.arch}: {', '.join(said)}"] if said else []


def _takes(k: KernelFacts) -> list[str]:
    from onepass.insight.inspect import short

    spills = "?" if k.spill_bytes is None else f"{k.spill_store_bytes} / {k.spill_load_bytes}"
    shared = "?" if k.shared_bytes is None else str(k.shared_bytes)
    if k.dynamic_shared_bytes:
        shared += f" + {k.dynamic_shared_bytes}"
    occupied = "?" if k.occupancy is None else f"{k.occupancy:.1%}"
    assumed = " (assumed)" if k.threads_from == "assumed" else ""
    known = [_known(n) for n in (k.registers, k.stack_bytes, k.barriers)]
    name = short(k.name)
    return [
        name,
        k.arch,
        known[0],
        spills,
        known[1],
        shared,
        known[2],
        f"{k.threads}{assumed}",
        occupied,
        k.limit,
    ]


def _holds(k: KernelFacts) -> list[str]:
    from onepass.insight.inspect import short

    if k.code is None:
        return [short(k.name), k.arch, "–", "–", *["?"] * 5]
    memory = ", ".join(f"{a.space} {a.kind} {n} × {a.bits or 'bulk'}" for a, n in k.code.memory.items())
    c = k.code
    counts = [str(n) for n in (c.total, c.special, c.barriers, c.shuffles)]
    return [short(k.name), k.arch, c.origin, memory or "none", *counts, _known(c.bytes_in_flight)]


def _known(value: Any) -> str:
    return "?" if value is None else str(value)


def _show_lines(output: Output, found: Inspection) -> None:
    from onepass.insight.inspect import short

    for k in found.kernels:
        output.text(f"\n{short(k.name)} on {k.arch}")
        for (file, line), code in (k.code.lines if k.code else {}).items():
            output.text(f"  {file}:{line}: {len(code)} instructions: {', '.join(i.opcode for i in code)}")
