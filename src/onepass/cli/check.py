"""`onepass check KERNEL.cu`: run a hand-written CUDA C++ kernel on the CPU and say what is wrong with it, line by line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onepass.cli.output import EXIT_FINE, EXIT_WORSE, Output
from onepass.errors import BadLaunch, BadUserFile, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onepass.emulate import HandwrittenKernel
    from onepass.insight.check import CheckReport, Fault
    from onepass.insight.launch_line import Case

SCHEMA = "onepass.check/1"


def check(
    file: Annotated[Path, typer.Argument(metavar="KERNEL.cu", help="A CUDA C++ file.")],
    kernel: Annotated[
        str | None, typer.Option(help="Which kernel, with template arguments: 'sum<256>'.")
    ] = None,
    grid: Annotated[
        str | None, typer.Option(help="Blocks: N or (x,y,z); names of --args may be used.")
    ] = None,
    block: Annotated[str | None, typer.Option(help="Threads a block: N or (x,y,z).")] = None,
    shared: Annotated[str | None, typer.Option(help="Bytes of extern __shared__ memory.")] = None,
    args: Annotated[
        str, typer.Option(help="NAME=VALUE pairs for the kernel's parameters: 'n=1000 x=randn(n) y=out(n)'.")
    ] = "",
    ref: Annotated[str | None, typer.Option(metavar="FILE.py:NAME", help="Computes what is right.")] = None,
    define: Annotated[
        list[str] | None, typer.Option("--define", "-D", metavar="NAME=VALUE", help="A macro.")
    ] = None,
    arch: Annotated[str, typer.Option(help="What __CUDA_ARCH__ says.")] = "sm_90",
    case: Annotated[str | None, typer.Option(help="One case of the file alone.")] = None,
    seed: Annotated[int, typer.Option(help="Of random buffers.", min=0)] = 0,
    orders: Annotated[int, typer.Option(help="How many orders of blocks and lanes to try.", min=1)] = 4,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document (onepass.check/1).")] = False,
) -> None:
    """Find races, divergent barriers and shuffles, bad accesses and wrong results of a kernel, with no GPU.

    How to launch it stands in the file, `// onepass-check: n=1000 x=randn(n) y=out(n) grid=4 block=256`, or in options,
    which come first. `// onepass-check[NAME]: …` lines are further cases.
    """
    output = Output.open(json)
    with output.foreign_prints():
        reports = _reports(
            file,
            {"kernel": kernel, "grid": grid, "block": block, "shared": shared, "ref": ref},
            args,
            define or [],
            _architecture(arch),
            case,
            seed,
            orders,
        )
    output.text(_text(file, reports))
    output.document(_document(file, reports))
    raise typer.Exit(EXIT_FINE if all(r.clean for r in reports) else EXIT_WORSE)


def _reports(
    file: Path,
    options: dict[str, str | None],
    args: str,
    define: Sequence[str],
    arch: int,
    only: str | None,
    seed: int,
    orders: int,
) -> list[CheckReport]:
    from onepass.emulate import compile_handwritten
    from onepass.insight import check as checker
    from onepass.insight.launch_line import cases_of, launch_of, pairs_of

    text = _read(file)
    pairs = pairs_of(args, str(file)) | {n: v for n, v in options.items() if v is not None}
    cases = [c.changed(pairs) for c in _chosen(cases_of(text, str(file)), only, file)]
    built: dict[str | None, HandwrittenKernel] = {}
    for name in dict.fromkeys(c.pairs.get("kernel") for c in cases):
        built[name] = compile_handwritten(text, name, str(file), arch, defines=_macros(define))
    reports = []
    for c in cases:
        kernel = built[c.pairs.get("kernel")]
        launch = launch_of(c, kernel.parameters, str(file), seed)
        reports.append(
            checker.check_built(
                kernel,
                launch.arguments,
                launch.grid,
                launch.block,
                shared_bytes=launch.shared_bytes,
                reference=_reference(c, file, bool(options["ref"])),
                file=str(file),
                case=c.name,
                orders=range(orders),
                rtol=launch.rtol,
            )
        )
    return reports


def _macros(define: Sequence[str]) -> dict[str, str]:
    macros = {name: value or "1" for name, _, value in (d.partition("=") for d in define)}
    for name in macros:
        if not re.fullmatch(r"[A-Za-z_]\w*(?:\([\w, ]*\))?", name):
            raise typer.BadParameter(f"-D {name!r} is no macro's name: write -D NAME=VALUE")
    return macros


def _read(file: Path) -> str:
    if not file.is_file():
        problem = "is a directory" if file.is_dir() else "no such file"
        raise BadUserFile(str(file), problem, f"Name a CUDA C++ file; looked from {Path.cwd()}.")
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadUserFile(str(file), "is not text", "Name a CUDA C++ source file.") from error


def _architecture(text: str) -> int:
    """90 for sm_90, and for sm_90a."""
    m = re.fullmatch(r"(?:sm_|compute_)?(\d{2,3})[af]?", text)
    if m is None:
        raise typer.BadParameter(f"--arch {text!r}: write sm_80, sm_90 …")
    return int(m.group(1))


def _chosen(cases: Sequence[Case], only: str | None, file: Path) -> list[Case]:
    if only is None:
        return list(cases)
    names = [c.name for c in cases if c.name]
    if only not in names:
        remedy = f"{did_you_mean(only, names)}It has {', '.join(names) or 'none'}."
        raise BadLaunch(str(file), f"no case {only!r}", remedy)
    return [c for c in cases if c.name == only]


def _reference(case: Case, file: Path, from_options: bool) -> Callable[..., Any] | None:
    """What `ref=` names, seen from the .cu file's folder; the option is seen from the working directory."""
    from onepass.cli.target import function_in

    if "ref" not in case.pairs:
        return None
    return function_in(case.pairs["ref"] if from_options else str(file.parent / case.pairs["ref"]))


# Text


def _text(file: Path, reports: Sequence[CheckReport]) -> str:
    return "\n".join([_verdict(file, reports), *(line for r in reports for line in _case_text(file, r))])


def _verdict(file: Path, reports: Sequence[CheckReport]) -> str:
    names = list(dict.fromkeys(r.kernel for r in reports))
    kernel = ", ".join(names)
    tried = f"{len(reports)} case{'s' * (len(reports) > 1)}, {reports[0].orders} orders each"
    failing = [r for r in reports if not r.clean]
    compared = _compared(reports)
    if not failing:
        return f"{file}: {kernel} {'is' if len(names) == 1 else 'are'} clean in {tried}: no fault found.{compared}"
    count = sum(len(r.faults) for r in failing)
    where = ", ".join(r.case or "the file's launch" for r in failing)
    faults = f"{'has' if len(names) == 1 else 'have'} {count} fault{'s' * (count > 1)}"
    return f"{file}: {kernel} {faults} in {where} ({tried}).{compared}"


def _compared(reports: Sequence[CheckReport]) -> str:
    """A sentence on what nobody gave results for; empty where all were compared."""
    if not any(r.compared for r in reports):
        return " No reference was given: results were not compared."
    left = [f"{n} of {r.case or 'the launch'}" for r in reports for n in r.uncompared]
    return f" Not compared, for there is no result of it: {', '.join(left)}." if left else ""


def _case_text(file: Path, report: CheckReport) -> list[str]:
    lines = ["", f"{report.case or 'launch'}: grid {report.grid} block {report.block}"]
    for fault in report.faults:
        lines += [f"  {line}" for line in _fault_text(file, fault)]
    if report.clean:
        lines.append("  no fault")
    return lines + [f"  {line}" for line in _counts_text(report)]


def _fault_text(file: Path, fault: Fault) -> list[str]:
    place = f"{file}:{fault.line}" if fault.line else str(file)
    who = f", block {fault.block} thread {fault.thread}" if fault.block else ""
    lines = [f"{fault.kind} at {place}{who}"]
    lines += [f"  {fault.line:5d} | {fault.text}"] if fault.line else []
    lines += [f"  {number:5d} | {text}   (called from here)" for number, text in fault.callers]
    lines += (
        [f"  {fault.other_line:5d} | {fault.other_text}   (the other thread)"] if fault.other_line else []
    )
    lines += [f"  {fault.detail}"] if fault.detail else []
    return [*lines, f"  advice: {fault.advice}"]


def _counts_text(report: CheckReport) -> list[str]:
    from onepass.insight.check import executed

    counts = executed(report.counts)
    lines = [
        f"executed: {counts['barriers_per_block']:g} barriers a block, {counts['warp_collectives']} warp collectives"
    ]
    for m in counts["memory"]:
        lines.append(
            f"  {m['space']} {m['direction']}, {m['width_bytes']} B a thread: {m['warp_instructions']} warp instructions, "
            f"{m['thread_accesses']} accesses"
        )
    lines += [
        f"  {b['name']}: {b['read_bytes']} B read, {b['written_bytes']} B written" for b in counts["buffers"]
    ]
    return lines


def _document(file: Path, reports: Sequence[CheckReport]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "file": str(file),
        "clean": all(r.clean for r in reports),
        "cases": [r.to_dict() for r in reports],
    }
