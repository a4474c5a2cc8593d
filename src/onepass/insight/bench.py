"""Time any callable by the project's protocol, held to a reference in float64 and to the roof of its mix."""

from __future__ import annotations

import copy
import datetime
import inspect as inspection
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from onepass.analysis.closeness import too_far, typical
from onepass.analysis.roofline import MOST_OF_ROOF
from onepass.errors import BadUserFile, HostTooSlow, OnepassError
from onepass.insight.roof import Roof, roofs
from onepass.insight.wide import in_float64, is_narrow
from onepass.runtime import timer
from onepass.runtime.timer import Spread

SCHEMA = "onepass.bench/1"

# A tensor smaller than this share of the largest is no stream of its own: weights and biases of a row.
STREAM_SHARE = 1 / 16
# Sets of buffers beyond this cost memory and time that small inputs are not worth.
MOST_SETS = 512
# What an output may be off: so many roundings to its own dtype, and so many to fp32 inside, of the value and the typical
# value. A LayerNorm of 4096 fp32 columns added one by one is off by 30 fp32 roundings, a bf16 op that rounds after each
# of its steps by 4.
OWN_ROUNDINGS, INNER_ROUNDINGS = 8, 64
# Copies of a buffer start as far from a multiple of this as the buffer: a line of L2, and more than any vector.
ALIGNED = 128


@dataclass(frozen=True)
class Task:
    """What is timed. ``reads`` and ``writes`` name parameters; a written name that is none stands for a result."""

    name: str
    file: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]  # by parameter, in order
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    reference: Callable[..., Any]

    @property
    def results(self) -> tuple[str, ...]:
        """Written names that the function returns."""
        return tuple(w for w in self.writes if w not in self.arguments)


@dataclass(frozen=True)
class Row:
    """One measurement. ``void`` says why it does not count; empty when it does.

    Units: µs a call, bytes, 1e9 bytes a second; ``attained`` is the share of the roof of the same mix.
    """

    task: Task
    samples_us: tuple[float, ...]
    ideal_bytes: int
    streams: tuple[int, int]
    roof: str
    roof_us: tuple[float, ...]
    roof_bytes: int
    tensors: Mapping[str, str]
    device: str
    void: str

    @property
    def gbps(self) -> float:
        """Ideal bytes over the median time."""
        return self.ideal_bytes / Spread.of(self.samples_us).median / 1e3

    @property
    def roof_gbps(self) -> float:
        """Bytes of the best stream kernel over its median time."""
        return self.roof_bytes / Spread.of(self.roof_us).median / 1e3

    @property
    def attained(self) -> float:
        """The share of the roof, 0 … 1."""
        return self.gbps / self.roof_gbps

    @property
    def verdict(self) -> str:
        """The sentence that stands before the table."""
        if self.void:
            return f"void: {self.void}."
        spread = Spread.of(self.samples_us)
        reads, writes = self.streams
        return (
            f"{self.task.name} takes {spread.median:.1f} µs and moves {self.gbps:.1f} GB/s, {self.attained:.0%} of the "
            f"{self.roof_gbps:.1f} GB/s that {reads} read and {writes} write streams reach on {self.device}."
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form. A void row keeps its samples and has no rate: nothing may be concluded from it."""
        spread = Spread.of(self.samples_us) if self.samples_us else None
        good = spread is not None and not self.void
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "target": self.task.name,
            "void": self.void,
            "median_us": spread.median if good and spread else None,
            "iqr_us": spread.iqr if good and spread else None,
            "ideal_bytes": self.ideal_bytes,
            "gbps": self.gbps if good else None,
            "roof_gbps": self.roof_gbps if good else None,
            "attained": self.attained if good else None,
            "roof": {"kernel": self.roof, "read_streams": self.streams[0], "write_streams": self.streams[1]},
            "tensors": dict(self.tensors),
            "protocol": "cold",
            "device": self.device,
            "versions": versions(),
            "date": datetime.date.today().isoformat(),
            "samples_us": list(self.samples_us),
            "roof_samples_us": list(self.roof_us),
        }

    def record(self) -> dict[str, Any]:
        """What a gate judges."""
        return {**self.to_dict(), "missing": [f"The row is void: {self.void}."] if self.void else []}


def versions() -> dict[str, str]:
    """What a time depends on beside the code. Two rows that differ here alone measure the upgrade: `diff` names it."""
    cuda = str(torch.version.cuda) if torch.cuda.is_available() else "none"
    return {"torch": torch.__version__, "cuda": cuda, "python": platform.python_version()}


def task(
    file: str,
    function: Callable[..., Any],
    inputs: Sequence[Any],
    reads: Sequence[str],
    writes: Sequence[str],
    reference: Callable[..., Any],
) -> Task:
    """Names a function's arguments and says what is read and written of them.

    Raises: BadUserFile for a name that is no parameter with a tensor, or inputs that are no call's arguments.
    """
    name = getattr(function, "__name__", type(function).__name__)
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        arguments = dict(inspection.signature(called).bind(*inputs).arguments)
    except (TypeError, ValueError) as error:
        raise BadUserFile(
            file, f"example_inputs() are no arguments of `{name}`: {error}", "Correct either."
        ) from error
    held = [n for n, v in arguments.items() if isinstance(v, Tensor)]
    _check_names(file, name, held, reads, writes)
    _check_memory(file, {n: arguments[n] for n in (*reads, *writes) if n in held})
    if not any(arguments[n].numel() for n in reads):
        raise BadUserFile(
            file,
            "no tensor of --reads has an element: nothing is moved",
            "Let example_inputs() give larger ones.",
        )
    return Task(name, file, function, arguments, tuple(reads), tuple(writes), reference)


def _check_names(
    file: str, name: str, held: Sequence[str], reads: Sequence[str], writes: Sequence[str]
) -> None:
    """Something is read and written, each is named once, and what is read is a tensor. Raises: BadUserFile."""
    for read in reads:
        if read not in held:
            raise BadUserFile(
                file,
                f"--reads {read}: `{name}` has no such tensor",
                f"Its tensors are {', '.join(held) or 'none'}.",
            )
    twice = sorted({n for names in (reads, writes) for n in names if list(names).count(n) > 1})
    if twice:
        raise BadUserFile(
            file, f"{', '.join(twice)} is named twice: its bytes would count twice", "Name it once."
        )
    both = [n for n in reads if n in writes]
    if both:
        raise BadUserFile(
            file,
            f"{', '.join(both)} is read and written in place: called again and again it gives other results",
            "Write a function that takes a copy's memory beside it, or returns its result.",
        )
    if not reads or not writes:
        raise BadUserFile(
            file,
            "--reads and --writes must each name something",
            "Name the parameters that are read, and what is written: parameters, or any name for a result.",
        )


def _check_memory(file: str, named: Mapping[str, Tensor]) -> None:
    """Each tensor has memory of its own, where it can be timed. Raises: BadUserFile."""
    _usable(file, named)
    if _overlap([x for x in named.values() if x.numel()]):
        raise BadUserFile(
            file,
            "two of the tensors that are read or written are the same memory: their bytes would count twice",
            "Let example_inputs() give each its own.",
        )


def _overlap(tensors: Sequence[Tensor]) -> bool:
    """Whether two start at one place or, both without gaps, share bytes. Slices of one tensor may lie interleaved."""
    starts = [x.data_ptr() for x in tensors]
    spans = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for x in tensors if x.is_contiguous())
    shared = any(end > start for (_, end), (start, _) in pairwise(spans))
    return shared or len(set(starts)) < len(starts)


def _usable(file: str, named: Mapping[str, Tensor]) -> None:
    """Tensors of memory, on one device, of those that can be timed. Raises: BadUserFile."""
    devices = {str(x.device): n for n, x in named.items()}
    strange = [
        n for n, x in named.items() if x.device.type not in ("cpu", "cuda") or x.layout != torch.strided
    ]
    if strange:
        x = named[strange[0]]
        raise BadUserFile(
            file,
            f"{strange[0]} is on {x.device} with layout {str(x.layout).removeprefix('torch.')}",
            "Let example_inputs() give plain tensors on the CPU or a CUDA device.",
        )
    if len(devices) > 1:
        raise BadUserFile(
            file,
            f"the tensors are on several devices: {', '.join(f'{n} on {d}' for d, n in devices.items())}",
            "Let example_inputs() give them on one.",
        )


def bench(job: Task, rounds: int) -> Row:
    """Check, time with the roof's kernels in turn, check again on new values.

    Raises: HostTooSlow; BadUserFile where results can't be compared.
    """
    device = job.arguments[job.reads[0]].device
    if device.type == "cpu":
        timer.keep_allocator_warm()
    with torch.no_grad():
        run = _Run(job, device)
        fault = run.checked()
        if fault:
            return run.row((), None, (), fault)
        stream_bytes = run.ideal_bytes // max(1, sum(run.streams))
        streams = roofs(*run.streams, stream_bytes, device, run.count)
        for stream in streams:
            wrong = stream.check()
            if wrong:
                raise RuntimeError(wrong)
        calls = {"this": run.call, **{s.name: s.call for s in streams}}
        try:
            samples = timer.cold(calls, run.count, rounds, device)
        except HostTooSlow:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's function: whatever it raises voids the row
            return run.row((), None, (), f"while it was timed {raised(error)}")
        best = min(streams, key=lambda s: Spread.of(samples[s.name]).median)
        return run.finish(samples["this"], best, samples[best.name])


class _Run:
    """Sets of buffers, the exact results of set 0, and calls on them."""

    def __init__(self, job: Task, device: torch.device) -> None:
        self.job, self.device = job, device
        self.tensors = {n: v for n, v in job.arguments.items() if isinstance(v, Tensor)}
        self.made: dict[str, Tensor] = {}  # results of the last check
        self.exact = self._exact()
        self.count = min(
            MOST_SETS, timer.sets_needed(sum(_bytes(self.tensors[n]) for n in job.reads), device)
        )
        # The first set are the user's own tensors.
        self.sets = [dict(job.arguments), *(self._copied() for _ in range(self.count - 1))]
        self.before = {n: v.clone() for n, v in self.tensors.items() if n not in job.writes}

    @property
    def sizes(self) -> tuple[list[int], list[int]]:
        """Bytes of each tensor read and of each written, as far as they are known."""
        written = (self.made.get(n, self.tensors.get(n, self.exact[n])) for n in self.job.writes)
        return [_bytes(self.tensors[n]) for n in self.job.reads], [_bytes(x) for x in written]

    @property
    def ideal_bytes(self) -> int:
        return sum(map(sum, self.sizes))

    @property
    def streams(self) -> tuple[int, int]:
        """How many of the tensors read and written are large enough to be streams."""
        reads, writes = self.sizes
        least = max(*reads, *writes) * STREAM_SHARE
        return max(1, sum(n >= least for n in reads)), max(1, sum(n >= least for n in writes))

    def _copied(self) -> dict[str, Any]:
        return {
            n: copied(v) if n in (*self.job.reads, *self.job.writes) and isinstance(v, Tensor) else v
            for n, v in self.job.arguments.items()
        }

    def _exact(self) -> dict[str, Tensor]:
        """What the reference makes of the inputs in float64, by the names written."""
        given = {n: v for n, v in self.job.arguments.items() if n not in self.job.writes}
        wide = {n: widened(v) if isinstance(v, Tensor) else v for n, v in given.items()}
        reference = self.job.reference
        if isinstance(reference, torch.nn.Module):
            reference = copy.deepcopy(reference).double()
        try:
            wanted = inspection.signature(reference).parameters
            named = {n: v for n, v in wide.items() if n in wanted}
            by_name = len(named) == len(wide)
            values, names = ((), named) if by_name else (tuple(wide.values()), {})
            result = in_float64(reference, *values, narrow=is_narrow(tuple(given.values())), **names)
        except OnepassError:
            raise
        except (Exception, SystemExit) as error:
            raise BadUserFile(
                self.job.file,
                f"--ref: {raised(error)}",
                f"It is called with {', '.join(wide)}, floating-point tensors as float64: correct it for these.",
            ) from error
        outputs = list(result) if isinstance(result, tuple | list) else [result]
        if len(outputs) != len(self.job.writes) or not all(isinstance(o, Tensor) for o in outputs):
            kinds = ", ".join(type(o).__name__ for o in outputs)
            raise BadUserFile(
                self.job.file,
                f"--ref gives {len(outputs)} results ({kinds}), --writes names {len(self.job.writes)}",
                "Let the reference return one tensor for each name of --writes, in that order.",
            )
        strange = [n for n, o in zip(self.job.writes, outputs, strict=True) if _strange(o, self.device)]
        if strange:
            raise BadUserFile(
                self.job.file,
                f"--ref gives {', '.join(strange)} on another device than {self.device}, or not as a plain tensor",
                "Let the reference compute where its inputs are.",
            )
        return dict(zip(self.job.writes, outputs, strict=True))

    def call(self, index: int) -> Any:
        return self.job.function(*self.sets[index].values())

    def checked(self) -> str:
        """Empty when a call on poisoned memory gives what the reference does, else what is wrong."""
        self._poison()
        try:
            result = self.call(0)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's function: whatever it raises voids the row
            return raised(error)
        return self._judged(result) or self._touched()

    def _poison(self) -> None:
        for name in self.job.writes:
            if name in self.job.arguments:
                poison(self.sets[0][name])
        # A result is made in freed memory of its size: what is not written shows NaN.
        blocks = [
            torch.empty(self.exact[n].shape, dtype=self._dtype(n), device=self.device)
            for n in self.job.results
        ]
        for block in blocks:
            poison(block)

    def _dtype(self, result: str) -> torch.dtype:
        first = self.made.get(result, self.tensors[self.job.reads[0]])
        return first.dtype

    def _judged(self, result: Any) -> str:
        returned = list(result) if isinstance(result, tuple | list) else [result]
        if self.job.results and len(returned) != len(self.job.results):
            return f"it returned {len(returned)} results instead of {len(self.job.results)}"
        made = dict(zip(self.job.results, returned, strict=False))
        self.made = {n: v for n, v in made.items() if isinstance(v, Tensor)}
        for name, exact in self.exact.items():
            wrong = compared(made.get(name, self.tensors.get(name)), exact)
            if wrong:
                return f"{name}: {wrong}"
        return ""

    def _touched(self) -> str:
        changed = [n for n, kept in self.before.items() if not _same_bits(self.sets[0][n], kept)]
        return f"it changed {', '.join(changed)}, which --writes does not name" if changed else ""

    def finish(self, samples: list[float], best: Roof, roof_us: list[float]) -> Row:
        """Check once more with new values in the same memory: a result kept from before is found out."""
        for name in self.job.reads:
            x = self.sets[0][name]
            if x.is_floating_point() and name not in self.job.writes:
                whole = memory_of(x)
                whole.copy_(whole.flip(0) * 0.75)
        self.before = {n: self.tensors[n].clone() for n in self.before}
        self.exact = self._exact()
        wrong = self.checked()
        void = f"on new values: {wrong}" if wrong else ""
        row = self.row(samples, best, roof_us, void)
        if not row.void and row.attained > MOST_OF_ROOF:
            spread = max(Spread.of(x).iqr / Spread.of(x).median for x in (samples, roof_us))
            void = (
                f"{row.attained:.0%} of the measured roof: a cache served it, --reads and --writes count too much, or "
                f"the machine was disturbed (samples spread by {spread:.0%})"
            )
        return replace(row, void=row.void or void)

    def row(self, samples: Sequence[float], best: Roof | None, roof_us: Sequence[float], void: str) -> Row:
        known = {**self.exact, **self.tensors, **self.made}
        return Row(
            self.job,
            tuple(samples),
            self.ideal_bytes,
            self.streams,
            best.name if best else "",
            tuple(roof_us),
            best.bytes if best else 0,
            {n: _described(known[n]) for n in (*self.job.reads, *self.job.writes)},
            device_name(self.device),
            void,
        )


def raised(error: BaseException) -> str:
    """What a user's function raised, in a line."""
    said = str(error).strip().splitlines()
    return f"it raised {type(error).__name__}{': ' if said else ''}{said[0] if said else ''}"


def widened(x: Tensor) -> Tensor:
    """A copy that the reference may write to, in the widest type of its kind."""
    wide = torch.float64 if x.is_floating_point() else torch.complex128 if x.is_complex() else x.dtype
    return x.detach().to(wide, copy=True)


def memory_of(x: Tensor) -> Tensor:
    """The memory from a tensor's first element to its last, gaps included and no element twice."""
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    return x.as_strided((span,), (1,), x.storage_offset())


def copied(x: Tensor, device: torch.device | None = None) -> Tensor:
    """A copy with the same strides and the same place in a line of memory: `clone` closes gaps and unfolds dimensions.

    It is where ``x`` is, or on ``device``.
    """
    whole = memory_of(x)
    offset = x.data_ptr() % ALIGNED // x.element_size()
    made = torch.empty(whole.numel() + offset, dtype=x.dtype, device=device or x.device)
    made[offset:].copy_(whole)
    return made.as_strided(x.shape, x.stride(), offset)


def poison(x: Tensor) -> None:
    """Fill memory with what no kernel would write: NaN, or the integer furthest from 0."""
    if x.is_floating_point() or x.is_complex():
        x.fill_(torch.nan)
    elif x.dtype == torch.bool:
        x.fill_(True)
    else:
        limits = torch.iinfo(x.dtype)
        x.fill_(limits.min or limits.max)


def _strange(out: Tensor, device: torch.device) -> bool:
    return out.layout != torch.strided or out.device != device


def compared(out: Any, exact: Tensor) -> str:
    """Empty when a result is the float64 one up to rounding, else how it differs."""
    if not isinstance(out, Tensor):
        return f"a {type(out).__name__} instead of a tensor"
    if out.shape != exact.shape:
        return f"shape {tuple(out.shape)} instead of {tuple(exact.shape)}"
    if _strange(out, exact.device):
        return f"on {out.device} with layout {out.layout} instead of a plain tensor on {exact.device}"
    if out.is_complex() and exact.is_complex():
        return compared(torch.view_as_real(out.resolve_conj()), torch.view_as_real(exact.resolve_conj()))
    if exact.is_complex():
        return "real numbers instead of complex ones"
    if not out.is_floating_point():
        wrong = int((out != exact).sum())
        return f"{wrong} of {exact.numel()} values differ" if wrong else ""
    share = share_of(out.dtype)
    bad = too_far(out, exact, share)
    wrong = int(bad.sum())
    if not wrong:
        return ""
    both = out.double()
    numbers = int((~both.isnan() & exact.isnan()).sum())
    if numbers:
        return f"{numbers} of {exact.numel()} values are numbers where float64 gives NaN"
    lost = int((both.isnan() & ~exact.isnan()).sum())
    if lost:
        return f"{lost} of {exact.numel()} values were never written, or are NaN"
    off = (both - exact).abs() / (exact.double().abs() + typical(exact.double(), out.dtype))
    worst = float(off[bad].nan_to_num(math.inf).max())
    return (
        f"{wrong} of {exact.numel()} values are too far from float64 (worst {worst:.1e}, allowed {share:.1e})"
    )


def share_of(dtype: torch.dtype) -> float:
    """What a floating-point result of a type may be off by, as a share of magnitudes."""
    return OWN_ROUNDINGS * torch.finfo(dtype).eps / 2 + INNER_ROUNDINGS * 2.0**-24


def device_name(device: torch.device) -> str:
    """What a row calls the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu, {torch.get_num_threads()} threads"


def _described(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {' × '.join(map(str, x.shape))}"


def _bytes(x: Tensor) -> int:
    """What a tensor holds; a dimension that is expanded counts once."""
    held = math.prod(n for n, s in zip(x.shape, x.stride(), strict=True) if s != 0)
    return held * x.element_size()


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.element_size() == 1:  # bytes: PyTorch compares no 8-bit floating-point numbers
        return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    same = (a == b) | ((a != a) & (b != b))
    return bool(same.all())
