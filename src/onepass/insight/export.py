"""A function's kernels for use without onepass: CUDA C++ texts, machine code, a launcher in C++, and a test of its own."""

from __future__ import annotations

import copy
import inspect
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from onepass.analysis.closeness import floor, typical
from onepass.build import Built, walked
from onepass.capture.absent import Generated, Graph, generate
from onepass.capture.launch import alignment_of, starts_only, tiled_alignment
from onepass.codegen.emit import emit
from onepass.dtypes import DType
from onepass.errors import BadUserFile
from onepass.insight import export_text as text
from onepass.insight.bench import share_of
from onepass.insight.wide import in_float64, is_narrow
from onepass.ir.cluster import Call
from onepass.ir.symbol import Poly, Size, product
from onepass.plan.choose import kernel_name
from onepass.plan.schedules.flat import FlatSchedule
from onepass.plan.schedules.row import RowSchedule
from onepass.plan.schedules.row_cluster import ClusterSchedule
from onepass.plan.schedules.row_grid import GridSchedule
from onepass.plan.schedules.row_serial import SerialSchedule
from onepass.plan.schedules.row_stream import StreamSchedule
from onepass.plan.schedules.row_strided import StridedSchedule, undivided
from onepass.plan.schedules.row_walk import WalkSchedule
from onepass.plan.schedules.tiled import TiledSchedule
from onepass.runtime.disassemble import how_to_get, tool
from onepass.runtime.load import binary
from onepass.runtime.nvrtc import compile_cubin

# Rows of the test's inputs: several blocks, and no multiple of the rows in one.
TEST_ROWS = 37
# Names every file of an export, one a line: what the next one into the same folder removes.
LIST = "files.txt"


@dataclass(frozen=True)
class Argument:
    """A tensor of the launcher, in the order of its storage."""

    name: str  # in C++
    tensor: str  # in the plan
    dtype: DType
    numel: Size
    shape: tuple[Size, ...]
    role: str  # input, output, or scratch between kernels


@dataclass(frozen=True)
class Export:
    """What was written, and for which architectures."""

    folder: Path
    files: tuple[str, ...]
    archs: tuple[str, ...]
    kernels: tuple[str, ...]
    no_fat_binary: str  # why there is none; empty where there is

    @property
    def verdict(self) -> str:
        """The sentence that stands before the list of files."""
        noun = "kernel" if len(self.kernels) == 1 else "kernels"
        lacks = f"; no fat binary: {self.no_fat_binary}" if self.no_fat_binary else ""
        return f"{len(self.kernels)} {noun} for {', '.join(self.archs)}, written to {self.folder}{lacks}"


def export(
    file: str,
    name: str,
    function: Callable[..., Any],
    inputs: Sequence[Any],
    archs: Sequence[str],
    folder: Path,
) -> Export:
    """Writes a function's kernels for some architectures into a folder, in place of an older export there.

    Raises: BadUserFile where not all of the function becomes kernels, its results are no memory of their own, or the
    folder holds something else; NoSuchArchitecture, NoNvrtc, OSError.
    """
    older = _older(folder)
    given, marked = _prepared(inputs)
    made = {archs[0]: _whole(file, name, generate(archs[0], function, given))}
    first = made[archs[0]][1]
    # Before another architecture is planned: Dynamo knows one back end at a time.
    test, exact = _test_run(file, name, function, given, marked, *made[archs[0]])
    made |= {arch: _whole(file, name, generate(arch, function, given)) for arch in archs[1:]}
    arguments = _same_arguments(file, name, made, _names(function, given, first))
    plain = arguments[archs[0]]
    outputs = dict(zip((a.name for a in plain if a.role == "output"), exact, strict=True))
    cubins = _cubins(made)
    texts = _texts(file, name, made, arguments, cubins, _sizes(first, test), outputs)
    for stale in older:
        stale.unlink(missing_ok=True)
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for path, content in texts.items():
        (folder / path).write_text(content)
    for label, code in cubins:
        (folder / f"{label}.cubin").write_bytes(code)
    data = _write_data(folder / "data", plain, dict(zip(_holders(first), test, strict=True)), outputs)
    fat, no_fat = _fat_binaries(folder, made)
    written = sorted((*texts, *(f"{label}.cubin" for label, _ in cubins), *data, *fat, LIST))
    (folder / LIST).write_text("".join(f"{path}\n" for path in written))
    entries = tuple(dict.fromkeys(b.source.name for _, g in made.values() for b in g.plan.kernels))
    return Export(folder, tuple(written), tuple(archs), entries, no_fat)


def _older(folder: Path) -> list[Path]:
    """The files of an older export in a folder, which its list names. Raises: BadUserFile for a folder of anything else."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return []
    if not (folder / LIST).is_file():
        raise BadUserFile(
            str(folder), f"holds files that are no export: it has no {LIST}", "Name a new or empty folder."
        )
    named = [Path(line) for line in (folder / LIST).read_text().splitlines() if line]
    return [folder / path for path in named if not path.is_absolute() and ".." not in path.parts]


def _same_arguments(
    file: str, name: str, made: Mapping[str, Made], names: Mapping[str, str]
) -> dict[str, tuple[Argument, ...]]:
    """The launcher's tensors by architecture. Raises: BadUserFile where two have other ones."""
    arguments = {arch: _arguments(file, name, graph, names) for arch, (_, graph) in made.items()}
    first, *others = arguments
    for arch in others:
        if _public(arguments[arch]) != _public(arguments[first]):
            raise BadUserFile(
                file, f"`{name}` has other tensors on {arch} than on {first}", "Export them apart."
            )
    return arguments


def _cubins(made: Mapping[str, Made]) -> list[tuple[str, bytes]]:
    """Machine code of each kernel for each architecture, by its name."""
    return [
        (f"kernel_{i}_{arch}", compile_cubin(built.source.text, built.source.name, arch).code)
        for arch, (_, graph) in made.items()
        for i, built in enumerate(graph.plan.kernels)
    ]


def _texts(
    file: str,
    name: str,
    made: dict[str, Made],
    arguments: Mapping[str, tuple[Argument, ...]],
    cubins: Sequence[tuple[str, bytes]],
    sizes: Mapping[str, int],
    outputs: Mapping[str, Tensor],
) -> dict[str, str]:
    """The C++ and Markdown files. ``sizes`` and ``outputs`` are the test's."""
    plain, (_, first) = next(iter(arguments.values())), next(iter(made.values()))
    kernels = {
        f"{_file_of(i, arch, made)}.cu": _source(built, arch)
        for arch, (_, graph) in made.items()
        for i, built in enumerate(graph.plan.kernels)
    }
    launches = {arch: [_launch(b) for b in graph.plan.kernels] for arch, (_, graph) in made.items()}
    spelled = {symbol: f"size_{k}" for k, symbol in enumerate(sorted(first.plan.hints))}
    words = text.Words(_identifier(name), plain, spelled, _meanings(first, plain), tuple(made))
    parts = [text.launcher_of(words, arch, launches[arch], arguments[arch]) for arch in made]
    dtypes = {a.name: a.dtype for a in plain}
    return {
        **kernels,
        f"{words.name}.h": text.header(words),
        f"{words.name}.cpp": text.launcher(words, parts, launches),
        "cubins.h": text.cubins(cubins),
        "self_test.cpp": text.self_test(
            words, sizes, {n: _tolerance(x, dtypes[n]) for n, x in outputs.items()}
        ),
        "README.md": text.readme(words, file, sorted(kernels)),
    }


def _tolerance(exact: Tensor, dtype: DType) -> text.Tolerance:
    """What the self-test allows a result, by the rule of `analysis/closeness.py`; whole numbers must be equal."""
    kept: torch.dtype = getattr(torch, dtype.name)
    if not kept.is_floating_point:
        return text.Tolerance(0.0, 0.0, 0.0)
    return text.Tolerance(share_of(kept), typical(exact.double(), kept), floor(kept))


Made = tuple[Generated, Graph]


def _prepared(inputs: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Contiguous inputs, and which of them have the leading size that the launcher takes as an argument."""
    given = [x.detach().contiguous() if isinstance(x, Tensor) else x for x in inputs]
    lead = next((x.shape[0] for x in given if isinstance(x, Tensor) and x.dim() > 1), None)
    marked = [i for i, x in enumerate(given) if isinstance(x, Tensor) and x.dim() > 1 and x.shape[0] == lead]
    _mark(given, marked)
    return given, marked


def _mark(given: Sequence[Any], marked: Sequence[int]) -> None:
    for i in marked:
        torch._dynamo.maybe_mark_dynamic(given[i], 0)


def _whole(file: str, name: str, made: Generated) -> Made:
    """The one graph of a function, all of it kernels. Raises: BadUserFile, naming what is not."""
    if len(made.graphs) != 1:
        raise BadUserFile(
            file, f"`{name}` is {len(made.graphs)} graphs", "Export a function without graph breaks."
        )
    graph = made.graphs[0]
    if any(c.mutates for c in graph.plan.calls):
        raise BadUserFile(file, f"`{name}` writes to an argument", "Return a new tensor instead.")
    left = [
        f"{c.target} ({c.reason or 'it stays with PyTorch'})" for c in graph.plan.calls if c.bound != "view"
    ]
    if left or not graph.plan.kernels:
        said = ", ".join(left) or "nothing in it becomes a kernel"
        raise BadUserFile(
            file,
            f"`{name}` does not become kernels entirely: {said}",
            "Export the part around it as a function.",
        )
    graph.plan = replace(graph.plan, items=tuple(map(_one_launch, graph.plan.items)))
    return made, graph


def _one_launch(item: Built | Call) -> Built | Call:
    """The same kernel in one launch: a launcher of one's own has no memory for what blocks leave for each other."""
    if not isinstance(item, Built):
        return item
    kernel, schedule = item.kernel, item.schedule
    if isinstance(schedule, GridSchedule):
        kernel, schedule = walked(item)
    elif isinstance(schedule, StridedSchedule) and schedule.parts != 1:
        schedule = undivided(kernel, schedule)
    else:
        return item
    source = emit(kernel, schedule, kernel_name(schedule, item.cluster))
    resources = binary(source, item.device.arch).resources
    return replace(item, kernel=kernel, schedule=schedule, source=source, resources=resources)


def _arguments(file: str, name: str, graph: Graph, names: Mapping[str, str]) -> tuple[Argument, ...]:
    """Inputs, outputs and scratch, in that order."""
    program = graph.captured.program
    written = list(dict.fromkeys(s.tensor for b in graph.plan.kernels for s in b.cluster.stores))
    used = list(
        dict.fromkeys(f.tensor for b in graph.plan.kernels for f in b.source.block if f.kind == "pointer")
    )
    outputs = _outputs(file, name, graph)
    strange = [t for t in used if t not in written and t not in program.inputs]
    if strange:
        raise BadUserFile(
            file, f"`{name}` reads constants of its own ({', '.join(strange)})", "Make them arguments."
        )
    if [t for t in written if t in program.inputs]:
        raise BadUserFile(file, f"`{name}` writes to an argument", "Return a new tensor instead.")
    found = [(t, "input") for t in program.inputs if t in used]
    found += [(t, "output") for t in outputs]
    found += [(t, "scratch") for t in written if t not in outputs]
    counts: dict[str, int] = {}
    arguments = []
    for tensor, role in found:
        number = counts[role] = counts.get(role, -1) + 1
        t = program.tensors[tensor]
        called = names.get(tensor, f"{role}_{number}") if role == "input" else f"{role}_{number}"
        arguments.append(Argument(called, tensor, t.dtype, t.numel, t.shape, role))
    return tuple(arguments)


def _names(function: Callable[..., Any], given: Sequence[Any], graph: Graph) -> dict[str, str]:
    """The graph's inputs by what the user calls them: a parameter of the function, or a module's."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        found = dict(inspect.signature(called).bind(*given).arguments)
    except (TypeError, ValueError):
        found = {}
    if isinstance(function, torch.nn.Module):
        found |= {**dict(function.named_buffers()), **dict(function.named_parameters())}
    by_address = {x.data_ptr(): _identifier(n) for n, x in found.items() if isinstance(x, Tensor)}
    names = {}
    for placeholder, x in zip(_holders(graph), graph.calls[0], strict=True):
        if isinstance(x, Tensor) and x.data_ptr() in by_address:
            name = by_address[x.data_ptr()]
            names[placeholder] = f"{name}_" if name in text.TAKEN else name
    return names if len(set(names.values())) == len(names) else {}


def _outputs(file: str, name: str, graph: Graph) -> list[str]:
    """Tensors that the function returns, in order."""
    written = {s.tensor for b in graph.plan.kernels for s in b.cluster.stores}
    names = []
    for node in tree_leaves(graph.captured.graph.graph.output_node().args[0]):
        tensor = _tensor_of(node, graph)
        if tensor not in written:
            raise BadUserFile(
                file,
                f"`{name}` returns {node}, which no kernel writes as it is",
                "Return what was computed, not a view of it.",
            )
        names.append(tensor)
    return names


def _tensor_of(node: Any, graph: Graph) -> str:
    alias: str = graph.captured.alias.get(node.name, node.name)
    if (
        alias == node.name
        and node.op == "call_function"
        and getattr(node.target, "__name__", "") == "getitem"
    ):
        return f"{node.args[0].name}.{node.args[1]}"
    return alias


def _public(arguments: Sequence[Argument]) -> list[tuple[str, str]]:
    return [(a.name, a.dtype.name) for a in arguments if a.role != "scratch"]


def _launch(built: Built) -> text.Launch:
    """How a kernel is started: the formulas of `capture/launch.py`, as C++."""
    kernel = built.kernel
    schedule: Any = built.schedule
    rows = product(kernel.outer)
    extent = kernel.inner if kernel.axis == "inner" else kernel.cols
    widths: dict[str, int] = {}
    wide, narrow = "", ""
    if isinstance(schedule, RowSchedule | ClusterSchedule):
        widths = dict(zip((a.name for a in kernel.accesses), schedule.accesses, strict=True))
        groups = schedule.groups if isinstance(schedule, RowSchedule) else 1
        grid, extras = f"(rows + {groups - 1}) / {groups}", {"zero": "0"}
        if isinstance(schedule, ClusterSchedule):
            grid = f"rows * {schedule.blocks}" if schedule.blocks > 1 else "rows"
        narrow = "return CUDA_ERROR_MISALIGNED_ADDRESS;"
    elif isinstance(schedule, FlatSchedule) and schedule.level:
        widths = dict.fromkeys((a.name for a in kernel.accesses), schedule.width)
        wide = f"extent >= {schedule.width}"
        per_block = schedule.threads * schedule.steps * schedule.width
        grid, extras = f"(rows * extent + {per_block - 1}) / {per_block}", {"wide": "wide"}
    elif isinstance(schedule, FlatSchedule):
        widths = dict.fromkeys((a.name for a in kernel.accesses), schedule.width)
        wide = f"extent % {schedule.width} == 0"
        per_block = schedule.threads * schedule.steps
        grid = f"(rows * vectors + {per_block - 1}) / {per_block}"
        extras = {"vectors": "vectors", "wide": "wide"}
    elif isinstance(schedule, StreamSchedule):
        widths = dict.fromkeys((a.name for a in kernel.accesses), schedule.width)
        wide = f"extent % {schedule.width} == 0"
        # A block a row, whatever the number of rows: nothing is allocated here for parts to wait in.
        parts = f"(extent + {schedule.part - 1}) / {schedule.part}"
        grid = "rows"
        extras = {"partial": "0", "only": "-1", "blocks": "1", "each": parts, "wide": "wide"}
    elif isinstance(schedule, TiledSchedule):
        tiles_down = f"((a.n{schedule.down} + {schedule.tall - 1}) / {schedule.tall})"
        tiles = f"((extent + {schedule.wide - 1}) / {schedule.wide})"
        grid = f"rows / (a.n{schedule.down} ? a.n{schedule.down} : 1) * {tiles_down} * {tiles}"
        extras = {"tiles_down": tiles_down, "tiles": tiles}
        narrow = "return CUDA_ERROR_MISALIGNED_ADDRESS;"
    elif isinstance(schedule, WalkSchedule):
        widths = dict.fromkeys((a.name for a in kernel.accesses), schedule.width)
        wide = f"{'a.run' if kernel.blocks else 'extent'} % {schedule.width} == 0"
        grid, extras = "rows", {"wide": "wide"}
    elif isinstance(schedule, SerialSchedule):
        threads = schedule.threads
        grid, extras = f"(rows * extent + {threads - 1}) / {threads}", {}
    else:
        assert isinstance(schedule, StridedSchedule)
        widths = dict.fromkeys((a.name for a in kernel.accesses), schedule.width)
        tile = schedule.across * schedule.width
        tiles = f"((extent + {tile - 1}) / {tile})"
        grid, extras = f"(rows + {schedule.groups - 1}) / {schedule.groups} * {tiles}", {"tiles": tiles}
        narrow = "return CUDA_ERROR_MISALIGNED_ADDRESS;"
    fields = [f for f in built.source.block if f.kind != "extra"]
    masks = alignment_of(fields, kernel.accesses, widths)
    if isinstance(schedule, TiledSchedule):
        masks = tuple(m for side in tiled_alignment(built, schedule) for m in side)
    if getattr(schedule, "level", False):
        masks = starts_only(fields, masks)
    return text.Launch(
        kernel=built.source.name,
        block=built.source.block,
        rows=rows,
        extent=extent,
        threads=int(getattr(schedule, "threads", 0)),
        shared_bytes=int(getattr(schedule, "shared_bytes", 0)),
        grid=grid,
        extras=extras,
        masks=tuple((fields[i].name, by, mask) for i, by, mask in masks),
        wide=wide,
        width=int(getattr(schedule, "width", 1)),
        narrow=narrow,
    )


def _source(built: Built, arch: str) -> str:
    r = built.resources
    said = f"{r.registers} registers, {r.spill_bytes} bytes spilled" if r else "not compiled"
    return (
        f"// {built.source.name}: {', '.join(built.cluster.origins)}\n"
        f"// {built.schedule.explain()}; on {arch} {said}.\n{built.source.text}"
    )


def _file_of(i: int, arch: str, made: dict[str, Made]) -> str:
    """One text for all architectures where it is the same."""
    texts = {g.plan.kernels[i].source.text for _, g in made.values() if i < len(g.plan.kernels)}
    return f"kernel_{i}" if len(texts) == 1 else f"kernel_{i}_{arch}"


def _meanings(graph: Graph, arguments: Sequence[Argument]) -> dict[str, str]:
    """What each size is, in words."""
    found: dict[str, str] = {}
    for a in arguments:
        for d, n in enumerate(a.shape):
            if isinstance(n, Poly) and n.text() not in found:
                for symbol in graph.plan.hints:
                    if re.fullmatch(rf"\(1\*{symbol}\)", n.text()):
                        found.setdefault(symbol, f"dimension {d} of {a.name}")
    return {s: found.get(s, "a size of the function's inputs") for s in graph.plan.hints}


def _test_run(
    file: str,
    name: str,
    function: Callable[..., Any],
    given: list[Any],
    marked: list[int],
    made: Generated,
    graph: Graph,
) -> tuple[list[Any], list[Tensor]]:
    """Arguments of the graph for a few rows, and the results in float64."""
    small = list(given)
    if graph.plan.hints:
        for i in marked:
            small[i] = given[i][:TEST_ROWS].contiguous()
        _mark(small, marked)
    with torch.no_grad():
        returned = tree_leaves(made.function(*small))
        _all_written(file, name, returned, [*small, *_own(function)], len(_outputs(file, name, graph)))
        wide = copy.deepcopy(function).double() if isinstance(function, torch.nn.Module) else function
        wider = (x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in small)
        exact = in_float64(wide, *wider, narrow=is_narrow(small))
    if len(made.graphs) != 1:
        raise BadUserFile(file, "takes another graph for fewer rows", "Export it for inputs of one size.")
    return graph.calls[-1], [x for x in tree_leaves(exact) if isinstance(x, Tensor)]


def _own(function: Callable[..., Any]) -> list[Tensor]:
    """A module's parameters and buffers."""
    return [*function.parameters(), *function.buffers()] if isinstance(function, torch.nn.Module) else []


def _all_written(file: str, name: str, returned: Sequence[Any], held: Sequence[Any], outputs: int) -> None:
    """Raises BadUserFile where a function returns more than the graph's outputs: Dynamo keeps the rest to itself."""
    tensors = [x for x in returned if isinstance(x, Tensor)]
    if any(x is h for x in tensors for h in held):
        problem, remedy = "an argument as it is, which no kernel writes", "Leave it out of what is returned."
    elif len({id(x) for x in tensors}) < len(tensors):
        problem, remedy = "one tensor twice", "Return it once."
    elif others := [x for x in returned if x is not None and not isinstance(x, Tensor)]:
        problem, remedy = f"{others[0]!r}, which is no tensor", "Leave it out of what is returned."
    elif len(tensors) != outputs:
        problem, remedy = f"{len(tensors)} tensors, of which kernels write {outputs}", "Return these alone."
    else:
        return
    raise BadUserFile(file, f"`{name}` returns {problem}", remedy)


def _holders(graph: Graph) -> list[str]:
    return [n.name for n in graph.captured.graph.graph.nodes if n.op == "placeholder"]


def _sizes(graph: Graph, test: Sequence[Any]) -> dict[str, int]:
    """Each symbol's value in the test."""
    found = {}
    for node, value in zip(
        (n for n in graph.captured.graph.graph.nodes if n.op == "placeholder"), test, strict=True
    ):
        if not isinstance(value, Tensor) and isinstance(node.meta["val"], torch.SymInt):
            found[str(node.meta["val"].node.expr)] = int(value)
    for symbol, hint in graph.plan.hints.items():
        found.setdefault(symbol, hint)
    return found


def _write_data(
    folder: Path, arguments: Sequence[Argument], given: Mapping[str, Any], outputs: Mapping[str, Tensor]
) -> list[str]:
    """One file of plain numbers a tensor: inputs by the plan's names, outputs by the launcher's."""
    files = []
    for a in arguments:
        if a.role == "scratch":
            continue
        x = given[a.tensor] if a.role == "input" else outputs[a.name].double()
        flat = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        (folder / f"{a.name}.bin").write_bytes(flat.numpy().tobytes())
        files.append(f"data/{a.name}.bin")
    return files


def _fat_binaries(folder: Path, made: dict[str, Made]) -> tuple[list[str], str]:
    """One fat binary a kernel; or why there is none."""
    path = tool("fatbinary")
    if path is None:
        return [], how_to_get("fatbinary")
    written: list[str] = []
    for i in range(max(len(g.plan.kernels) for _, g in made.values())):
        held = [arch for arch, (_, g) in made.items() if i < len(g.plan.kernels)]
        images = [f"--image3=kind=elf,sm={a[3:]},file={folder / f'kernel_{i}_{a}.cubin'}" for a in held]
        command = [path, f"--create={folder / f'kernel_{i}.fatbin'}", "--64", *images]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
            return written, f"{path} says {said[-1]}"
        written.append(f"kernel_{i}.fatbin")
    return written, ""


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)
