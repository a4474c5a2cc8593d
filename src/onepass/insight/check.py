"""Check a hand-written CUDA C++ kernel without a GPU: run it in the emulator in several orders and say what is wrong."""

from __future__ import annotations

import inspect
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onepass.analysis.closeness import close_to
from onepass.emulate import Buffer, HandwrittenKernel, LaunchReport, Parameter, compile_handwritten
from onepass.emulate.faults import ENDLESS
from onepass.errors import BadLaunch, KernelFault

Grid = int | tuple[int, ...]

# Ascending, then blocks at random: seed 1 runs the lanes of all blocks backwards, the others those of half of them.
ORDERS = (0, 1, 2, 3)
# What a shuffle from a lane outside its mask gives: large floats of either sign, which neither min nor max drops in both.
GARBAGE = (0x7149F2CA7149F2CA, 0xF149F2CAF149F2CA)
MAX_ACCESSES = 200_000_000  # some seconds; a check needs few blocks
MAX_SHARED_BYTES = 232448  # a block's most on sm_90
MAX_STATIC_SHARED_BYTES = 49152  # what a kernel may declare without asking for more at its launch

_DTYPES: dict[tuple[str, int], tuple[torch.dtype, ...]] = {
    ("signed", 1): (torch.int8,),
    ("signed", 2): (torch.int16,),
    ("signed", 4): (torch.int32,),
    ("signed", 8): (torch.int64,),
    ("unsigned", 1): (torch.uint8,),
    ("unsigned", 2): (torch.int16, torch.uint16),
    ("unsigned", 4): (torch.int32, torch.uint32),
    ("unsigned", 8): (torch.int64, torch.uint64),
    ("float", 4): (torch.float32,),
    ("float", 8): (torch.float64,),
    ("half", 2): (torch.float16,),
    ("bf16", 2): (torch.bfloat16,),
    ("bool", 1): (torch.bool,),
}
_FORMATS = {
    ("signed", 1): "b",
    ("signed", 2): "h",
    ("signed", 4): "i",
    ("signed", 8): "q",
    ("unsigned", 1): "B",
    ("unsigned", 2): "H",
    ("unsigned", 4): "I",
    ("unsigned", 8): "Q",
    ("float", 4): "f",
    ("float", 8): "d",
    ("half", 2): "e",
    ("bool", 1): "?",
}
MAX_GRID, MAX_BLOCK = (2**31 - 1, 65535, 65535), (1024, 1024, 64)  # of every device since sm_30
MAX_THREADS = 1 << 24  # of a launch; about a microsecond each
RACES = frozenset({"shared-race", "global-race"})
_PAD_BYTES = 4096  # before and after each buffer: an overrun must not land in another one


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a kernel."""

    kind: str  # of emulate/faults.py, or wrong-result, order-dependent
    line: int  # from 1; 0 if unknown
    text: str  # of that line
    other_line: int  # the second thread's: its access, or where it waits; 0 if there is none
    other_text: str
    block: tuple[int, int, int] | None
    thread: tuple[int, int, int] | None
    detail: str
    advice: str
    case: str = ""
    callers: tuple[tuple[int, str], ...] = ()  # where the line's function was called from, innermost first

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kind": self.kind,
            "case": self.case,
            "line": self.line or None,
            "text": self.text,
            "called_from": [{"line": n, "text": text} for n, text in self.callers],
            "other_line": self.other_line or None,
            "other_text": self.other_text,
            "block": self.block,
            "thread": self.thread,
            "detail": self.detail,
            "advice": self.advice,
        }


@dataclass(frozen=True)
class CheckReport:
    """What one kernel did with one set of arguments, over all orders of blocks and lanes that were tried."""

    file: str
    kernel: str
    case: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    faults: tuple[Fault, ...]
    counts: LaunchReport  # executed, in ascending order; up to the fault where one ends the launch
    outputs: Mapping[str, Tensor]  # by parameter: what the launch in ascending order left
    orders: int
    uncompared: tuple[str, ...] = ()  # of the outputs: those that nobody gave a result for

    @property
    def clean(self) -> bool:
        """No fault was found."""
        return not self.faults

    @property
    def compared(self) -> bool:
        """Whether any output was compared with a result."""
        return len(self.uncompared) < len(self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "case": self.case,
            "kernel": self.kernel,
            "grid": list(self.grid),
            "block": list(self.block),
            "clean": self.clean,
            "orders": self.orders,
            "compared": self.compared,
            "uncompared": list(self.uncompared),
            "faults": [f.to_dict() for f in self.faults],
            "executed": executed(self.counts),
        }


def executed(counts: LaunchReport) -> dict[str, Any]:
    """Executed counts of a launch as a document; the rule for instructions is that of `MemorySite`."""
    kinds = sorted({(s.space, s.direction, s.width_bytes) for s in counts.sites})
    return {
        "blocks": counts.blocks,
        "barriers": counts.barriers,
        "barriers_per_block": counts.barriers_per_block,
        "warp_collectives": counts.exchanges,
        "static_shared_bytes": counts.static_shared_bytes,
        "memory": [
            {
                "space": space,
                "direction": direction,
                "width_bytes": width,
                "warp_instructions": counts.memory_instructions(space, direction, width),
                "thread_accesses": sum(
                    s.thread_accesses
                    for s in counts.sites
                    if (s.space, s.direction, s.width_bytes) == (space, direction, width)
                ),
            }
            for space, direction, width in kinds
        ],
        "buffers": [
            {"name": b.name, "read_bytes": b.read_bytes, "written_bytes": b.written_bytes}
            for b in counts.buffers
        ],
    }


def check_kernel(
    text: str,
    arguments: Mapping[str, Any],
    grid: Grid,
    block: Grid,
    *,
    kernel: str | None = None,
    shared_bytes: int = 0,
    expected: Mapping[str, Any] | None = None,
    reference: Callable[..., Any] | None = None,
    file: str = "kernel.cu",
    case: str = "",
    orders: Sequence[int] = ORDERS,
    rtol: float | None = None,
    cache_dir: str | None = None,
    defines: Mapping[str, str] = MappingProxyType({}),
) -> CheckReport:
    """Run a kernel of a CUDA C++ text in the emulator and report its faults and executed counts.

    `arguments` holds a value by parameter name: a torch tensor or numpy array for a pointer, a number for a scalar.
    Tensors are copied (to memory as aligned as theirs), never written. `expected` gives results by parameter name;
    `reference` computes them from the arguments it names, as float64 tensors (`reference_results`). An element is wrong
    if it is further from its result than rtol times the sum of its own and the typical magnitude (`closeness.typical`).
    rtol is 1e-4 for fp32, 4 eps for 16 bits. `defines` are macros.

    Raises: BadLaunch, CannotCheck, NoSuchKernel, NoCompiler.
    """
    built = compile_handwritten(text, kernel, file, cache_dir=cache_dir, defines=defines)
    return check_built(
        built,
        arguments,
        grid,
        block,
        shared_bytes=shared_bytes,
        expected=expected,
        reference=reference,
        file=file,
        case=case,
        orders=orders,
        rtol=rtol,
    )


def check_built(
    built: HandwrittenKernel,
    arguments: Mapping[str, Any],
    grid: Grid,
    block: Grid,
    *,
    shared_bytes: int = 0,
    expected: Mapping[str, Any] | None = None,
    reference: Callable[..., Any] | None = None,
    file: str = "kernel.cu",
    case: str = "",
    orders: Sequence[int] = ORDERS,
    rtol: float | None = None,
) -> CheckReport:
    """As `check_kernel`, of a kernel that is compiled already: one compilation serves many cases."""
    call = _Call(built, _values(built, arguments, file), _sizes(grid), _sizes(block), shared_bytes, file)
    call.fits()
    runs = list(call.runs(orders))
    first = runs[0]
    call.shared_fits(first.counts.static_shared_bytes)
    undefined = _undefined_used(call, first) if any(f.undefined for r in runs for f in r.faults) else ()
    seen = [f for r in runs for f in r.faults]
    found = [_fault(f) for f in seen if not (f.undefined or f.suspect)] + [_fault(f) for f in undefined]
    faults = [_at_least_the_kernel(built, f) for f in _distinct(found)]
    wanted = {n: _result(n, t, list(first.outputs), file) for n, t in (expected or {}).items()}
    if not faults:
        if reference is not None:
            wanted |= reference_results(reference, call.values, built.parameters, file)
        depends = [*_order_dependent(built, runs, rtol)]
        suspects = _distinct([_fault(f) for f in seen if f.suspect]) if depends else []
        faults = suspects or [*_wrong(built, runs, wanted, rtol)] or _unless_meant(depends, first)
    return CheckReport(
        file,
        built.declared.name,
        case,
        call.grid,
        call.block,
        tuple(replace(f, case=case) for f in faults),
        first.counts,
        first.outputs,
        len(orders),
        () if faults and reference is not None else tuple(n for n in first.outputs if n not in wanted),
    )


def dtype_of(parameter: Parameter) -> torch.dtype:
    """The torch dtype that a pointer's elements have; bytes where C++ knows a type that torch does not."""
    return _DTYPES.get((parameter.element, parameter.element_bytes), (torch.uint8,))[0]


# One launch


@dataclass(frozen=True)
class _Run:
    counts: LaunchReport
    faults: tuple[KernelFault, ...]
    outputs: dict[str, Tensor]  # of every pointer that may be written


@dataclass(frozen=True)
class _Call:
    built: HandwrittenKernel
    values: Mapping[str, Any]  # tensors and numbers by parameter
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    file: str

    def fits(self) -> None:
        """Raise BadLaunch for what no device would launch."""
        threads = math.prod(self.block)
        if not 0 < threads <= 1024:
            raise BadLaunch(self.file, f"block={threads} threads", "A block has 1 to 1024 threads.")
        blocks = math.prod(self.grid)
        if blocks < 1:
            raise BadLaunch(self.file, f"grid={self.grid}", "A launch has at least one block.")
        for name, sizes, most in (("grid", self.grid, MAX_GRID), ("block", self.block, MAX_BLOCK)):
            if any(s > m for s, m in zip(sizes, most, strict=False)):
                raise BadLaunch(self.file, f"{name}={sizes}", f"A {name} has at most {most} in x, y and z.")
        if blocks * threads > MAX_THREADS:
            remedy = f"It runs {MAX_THREADS}; a few blocks, the last of them not full, show the same faults."
            raise BadLaunch(self.file, f"{blocks * threads} threads are too many to emulate", remedy)
        if not 0 <= self.shared_bytes <= MAX_SHARED_BYTES:
            raise BadLaunch(
                self.file,
                f"shared={self.shared_bytes} bytes; a block may have {MAX_SHARED_BYTES} on sm_90, 49152 everywhere",
                "Keep less of the row in shared memory, or read it twice.",
            )

    def shared_fits(self, static_bytes: int) -> None:
        """Raise BadLaunch where a block's arrays, which the compiled kernel knows, are more than a device has."""
        declared = f"{self.built.declared.name} declares {static_bytes} bytes of __shared__ arrays"
        total = static_bytes + self.shared_bytes
        if static_bytes > MAX_STATIC_SHARED_BYTES:
            raise BadLaunch(
                self.file,
                f"{declared}; a kernel may declare {MAX_STATIC_SHARED_BYTES}",
                "Make the arrays smaller, or take them from extern __shared__ memory.",
            )
        if total > MAX_SHARED_BYTES:
            raise BadLaunch(
                self.file,
                f"{declared} and is launched with shared={self.shared_bytes}: {total} bytes together; a block may have "
                f"{MAX_SHARED_BYTES} on sm_90",
                "Keep less of the row in shared memory, or read it twice.",
            )

    def runs(self, orders: Sequence[int]) -> Iterator[_Run]:
        """One launch an order, up to one that did not end by itself."""
        for seed in orders:
            run = self.run(seed)
            yield run
            if any(f.kind in ENDLESS for f in run.faults):
                return

    def run(self, seed: int, garbage: int = GARBAGE[0]) -> _Run:
        """Launch once, on copies of the arguments."""
        memory: dict[str, Tensor] = {}
        buffers, packed = [], b""
        for p in self.built.parameters:
            packed += bytes(-len(packed) % p.nbytes)
            value = self.values[p.name]
            if not p.pointer:
                packed += _scalar(p, value)
                continue
            held = _guarded(value)
            memory[p.name] = held
            packed += struct.pack("Q", held.data_ptr())
            nbytes = held.numel() * held.element_size()
            buffers.append(Buffer(p.name, held.data_ptr(), nbytes, not p.read_only))
        emulated = self.built.emulated.afresh() if self.built.variables else self.built.emulated
        buffers += emulated.variables(self.built.variables)
        counts, faults = emulated.watch(
            self.grid,
            self.block,
            self.shared_bytes,
            packed,
            buffers,
            seed,
            MAX_ACCESSES,
            garbage=garbage,
        )
        written = {p.name for p in self.built.parameters if p.pointer and not p.read_only}
        return _Run(counts, faults, {n: t for n, t in memory.items() if n in written})


def _guarded(value: Tensor) -> Tensor:
    """A copy with unregistered memory around it, as far from a multiple of 16 bytes as the given one."""
    offset = value.data_ptr() % 16
    nbytes = value.numel() * value.element_size()
    arena = torch.empty(nbytes + 2 * _PAD_BYTES + offset + 256, dtype=torch.uint8)
    begin = _PAD_BYTES + (-(arena.data_ptr() + _PAD_BYTES)) % 256 + offset
    held = arena[begin : begin + nbytes].view(value.dtype).view(value.shape)
    return held.copy_(value)


def _scalar(p: Parameter, value: Any) -> bytes:
    if p.element == "bf16":
        return struct.pack("h", int(torch.tensor(value, dtype=torch.bfloat16).view(torch.int16)))
    return struct.pack(_FORMATS[p.element, p.nbytes], value)


def _sizes(value: Grid) -> tuple[int, ...]:
    return (int(value),) if isinstance(value, int) else tuple(int(v) for v in value)


def _values(built: HandwrittenKernel, arguments: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The arguments in the kernel's order, each checked against its parameter."""
    names = [p.name for p in built.parameters]
    missing, unknown = [n for n in names if n not in arguments], [n for n in arguments if n not in names]
    if missing or unknown:
        problem = f"{built.declared.name} takes {', '.join(names)}"
        problem += f"; not given: {', '.join(missing)}" if missing else ""
        problem += f"; unknown: {', '.join(unknown)}" if unknown else ""
        raise BadLaunch(file, problem, "Give each parameter one value, by its name.")
    return {p.name: _value(p, arguments[p.name], file) for p in built.parameters}


def _value(p: Parameter, value: Any, file: str) -> Any:
    if not p.pointer:
        if (p.element, p.nbytes) not in _FORMATS and p.element != "bf16":
            raise BadLaunch(file, f"{p.name} is a struct passed by value", "Pass its fields one by one.")
        if p.element in ("signed", "unsigned"):
            return _integer(p, value, file)
        return bool(value) if p.element == "bool" else float(value)
    tensor = torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value
    wanted = _DTYPES.get((p.element, p.element_bytes))
    if not isinstance(tensor, Tensor):
        raise BadLaunch(
            file, f"{p.name} is a pointer and got {value!r}", "Give it a buffer: randn(n), zeros(n), out(n) …"
        )
    if wanted and tensor.dtype not in wanted:
        raise BadLaunch(
            file, f"{p.name} points to {wanted[0]} and got {tensor.dtype}", "Give it a buffer of its type."
        )
    return tensor


def _integer(p: Parameter, value: Any, file: str) -> int:
    low, high = (
        (0, 256**p.nbytes - 1) if p.element == "unsigned" else (-(256**p.nbytes) // 2, 256**p.nbytes // 2 - 1)
    )
    if isinstance(value, Tensor | np.ndarray) or int(value) != value or not low <= value <= high:
        raise BadLaunch(
            file, f"{p.name} is an integer of {p.nbytes} bytes and got {value!r}", "Give a number it holds."
        )
    return int(value)


# From launches to faults


def _fault(fault: KernelFault) -> Fault:
    line, text = fault.lines[0] if fault.lines else (0, "")
    other_line, other_text = fault.other_lines[0] if fault.other_lines else (0, "")
    return Fault(
        fault.kind,
        line,
        text.strip(),
        other_line,
        other_text.strip(),
        fault.block,
        fault.thread,
        _detail(fault),
        fault.hint,
        callers=tuple((n, t.strip()) for n, t in fault.lines[1:] if n != line),
    )


def _detail(fault: KernelFault) -> str:
    parts = []
    if fault.address is not None:
        parts.append(f"{fault.nbytes} bytes")
    if fault.buffer is not None:
        parts.append(fault.buffer)
    if fault.other is not None:
        who = "lane" if fault.kind in ("missing-lane", "warp-divergence") else "thread"
        where = "and" if fault.kind in RACES else "without"
        parts.append(f"{where} {who} {fault.other}")
    return ", ".join(parts)


def _distinct(faults: Sequence[Fault]) -> list[Fault]:
    """Each fault once, however many orders show it, and the cause rather than what follows from it.

    A read of what another thread writes later finds the memory unwritten in one order and races in another: it is a
    race. Two accesses race whichever of them comes first.
    """
    kept: dict[tuple[str, frozenset[int]], Fault] = {}
    for f in faults:
        both = {f.line, f.other_line} if f.kind in RACES else {f.line}
        kept.setdefault((f.kind, frozenset(both)), f)
    racing = {n for kind, lines in kept if kind == "shared-race" for n in lines}
    return [f for f in kept.values() if f.kind != "unwritten-shared" or f.line not in racing]


def _undefined_used(call: _Call, first: _Run) -> tuple[KernelFault, ...]:
    """The shuffles from lanes outside their masks, if what they give changes any result."""
    second = call.run(0, GARBAGE[1])
    same = all(_bits_equal(first.outputs[n], t) for n, t in second.outputs.items())
    same = same and [(f.kind, f.lines) for f in first.faults] == [(f.kind, f.lines) for f in second.faults]
    return () if same else tuple(f for f in first.faults if f.undefined)


def _bits_equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _wrong(
    built: HandwrittenKernel, runs: Sequence[_Run], wanted: Mapping[str, Any], rtol: float | None
) -> Iterator[Fault]:
    for name, result in wanted.items():
        for run in runs:
            problem = difference(run.outputs[name], torch.as_tensor(result), rtol)
            if problem:
                yield _of_result(
                    built, "wrong-result", f"{name}{problem}", "compare the formula, the last columns and eps"
                )
                break


def _unless_meant(depends: list[Fault], first: _Run) -> list[Fault]:
    """Without what depends on the order in a kernel with global atomics, which may mean it."""
    atomics = any(s.space == "global" and s.direction == "atomic" for s in first.counts.sites)
    return [] if atomics else depends


def _order_dependent(built: HandwrittenKernel, runs: Sequence[_Run], rtol: float | None) -> Iterator[Fault]:
    """Results that depend on which block or lane comes first."""
    for name, output in runs[0].outputs.items():
        problems = (difference(r.outputs[name], output, rtol) for r in runs[1:])
        problem = next((p for p in problems if p), None)
        if problem:
            advice = "blocks or threads write one element, or read what another block writes: use atomics or two launches"
            yield _of_result(built, "order-dependent", f"{name}{problem}", advice)


def _at_least_the_kernel(built: HandwrittenKernel, fault: Fault) -> Fault:
    """With the kernel's line where no better one is known."""
    return fault if fault.line else replace(fault, line=built.declared.line, text=built.declared.name)


def _of_result(built: HandwrittenKernel, kind: str, detail: str, advice: str) -> Fault:
    return Fault(kind, built.declared.line, built.declared.name, 0, "", None, None, detail, advice)


def difference(output: Tensor, wanted: Tensor, rtol: float | None = None) -> str | None:
    """What is wrong with a result, or None: elements outside the tolerance of `check_kernel`, the worst one."""
    floating = output.is_floating_point()
    share = (tolerance(output.dtype) if floating else 0.0) if rtol is None else rtol
    return close_to(output, wanted, share) or None


def tolerance(dtype: torch.dtype) -> float:
    """The default rtol: fp32 sums of thousands of terms keep four digits, 16-bit results are rounded once or twice."""
    return {torch.float32: 1e-4, torch.float64: 1e-10}.get(dtype, 4 * torch.finfo(dtype).eps)


def reference_results(
    reference: Callable[..., Any], values: Mapping[str, Any], parameters: Sequence[Parameter], file: str
) -> dict[str, Tensor]:
    """What a reference makes of the arguments: it gets those it names, buffers of floats as float64.

    `x` names the kernel's parameter x, or x_g as this project calls a pointer to global memory. It returns one tensor for
    each of the kernel's writable pointers, in their order, or a dict by parameter name, which may leave some out.
    """
    asked = list(inspect.signature(reference).parameters)
    names = {n: n if n in values else f"{n}_g" for n in asked}
    unknown = [n for n, own in names.items() if own not in values]
    if unknown:
        raise BadLaunch(
            file,
            f"the reference takes {', '.join(unknown)}, which the kernel does not; it takes {', '.join(values)}",
            "Name the reference's parameters like the kernel's.",
        )
    given = {
        n: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in values.items()
    }
    try:
        result = reference(**{n: _copied(given[own]) for n, own in names.items()})
    except Exception as error:
        problem = f"the reference raised {type(error).__name__}: {error}"
        raise BadLaunch(file, problem, "It gets the arguments that it names, floats as float64.") from error
    outputs = [p.name for p in parameters if p.pointer and not p.read_only]
    if not isinstance(result, Mapping):
        results = result if isinstance(result, tuple | list) else (result,)
        if len(results) != len(outputs):
            problem = f"the reference returns {len(results)} results; the kernel writes {', '.join(outputs) or 'nothing'}"
            remedy = "Return one tensor for each pointer that is not const, in their order, or a dict of those to compare; "
            raise BadLaunch(file, problem, f"{remedy}declare pointers that are only read const.")
        result = dict(zip(outputs, results, strict=True))
    if not result:
        raise BadLaunch(
            file, "the reference returns no result", "Return what a pointer that is not const leads to."
        )
    return {n: _result(n, t, outputs, file) for n, t in result.items()}


def _result(name: str, value: Any, outputs: Sequence[str], file: str) -> Tensor:
    if name not in outputs:
        problem = f"the reference returns {name}; the kernel writes {', '.join(outputs) or 'nothing'}"
        raise BadLaunch(file, problem, "Name what a pointer that is not const leads to.")
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        problem = f"the reference returns {type(value).__name__} for {name}"
        raise BadLaunch(file, problem, "Return a tensor.") from error


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
