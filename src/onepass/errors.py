"""Errors of onepass: classes with fields, each message ending with what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path


class OnepassError(Exception):
    """Base of every error onepass raises on purpose."""

    def __post_init__(self) -> None:
        # The fields are the arguments, so that the error survives pickling between processes.
        self.args = tuple(getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]

    def what(self) -> str:
        """What happened, with the values that matter."""
        return type(self).__name__

    def advice(self) -> str:
        """What the user can do about it."""
        return ""

    def __str__(self) -> str:
        return f"{self.what()}\n{self.advice()}".rstrip()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the nearest names and a space behind it; empty where none is near."""
    nearest = difflib.get_close_matches(name, list(known), 3, 0.4)
    return f"Did you mean {' or '.join(nearest)}? " if nearest else ""


@dataclass(eq=False)
class BadUserFile(OnepassError):
    """A file named on the command line can't give what was asked of it."""

    path: str
    problem: str
    remedy: str

    def what(self) -> str:
        return f"{self.path}: {self.problem}"

    def advice(self) -> str:
        return self.remedy


@dataclass(eq=False)
class NoSuchDevice(OnepassError):
    """A device named on the command line can't be used here."""

    name: str
    problem: str

    def what(self) -> str:
        return f"device {self.name!r}: {self.problem}"

    def advice(self) -> str:
        return "Name cpu, cuda or cuda:N, or leave --device out."


@dataclass(eq=False)
class NoSuchArchitecture(OnepassError):
    """An architecture that no record here describes."""

    name: str
    known: tuple[str, ...]

    def what(self) -> str:
        return f"architecture {self.name!r} is not known"

    def advice(self) -> str:
        return f"{did_you_mean(self.name, self.known)}Known are {', '.join(self.known)}."


@dataclass(eq=False)
class UnknownGpu(OnepassError):
    """A GPU's name that the table does not have."""

    name: str
    nearest: tuple[str, ...]

    def what(self) -> str:
        return f"no GPU named {self.name!r} in the table"

    def advice(self) -> str:
        near = f"Near it: {', '.join(self.nearest)}. " if self.nearest else ""
        return f"{near}`onepass devices` lists all; a GPU that is not there can be measured: `onepass calibrate`."


@dataclass(eq=False)
class NoRoof(OnepassError):
    """A device of which neither a datasheet's nor a measured roof is known."""

    name: str

    def what(self) -> str:
        return f"no roof is known for {self.name}: the table of GPUs has no bandwidth of it, and it was not measured here"

    def advice(self) -> str:
        return "Measure it with `onepass calibrate`, or name a GPU of `onepass devices` with --device."


@dataclass(eq=False)
class NotCalibrated(OnepassError):
    """A device whose roofs were to be shown, and were never measured."""

    name: str

    def what(self) -> str:
        return f"the roofs of {self.name} were not measured here"

    def advice(self) -> str:
        return "Measure them: `onepass calibrate`, without --show."


@dataclass(eq=False)
class NotPresent(OnepassError):
    """A device that kernels were to be timed on and that the inputs are not on."""

    name: str
    where: str  # where they are
    present: tuple[str, ...]

    def what(self) -> str:
        return (
            f"example_inputs() are on {self.where}, not on {self.name}: nothing can be timed there; this machine has "
            f"{', '.join(self.present)}"
        )

    def advice(self) -> str:
        return "Leave --run out, or leave --device out to time where the inputs are."


@dataclass(eq=False)
class NoSuchLanguage(OnepassError):
    """A language that reports are not written in."""

    name: str
    near: tuple[str, ...]

    def what(self) -> str:
        return f"no reports in {self.name!r}; near it: {', '.join(self.near)}"

    def advice(self) -> str:
        return "Say --lang en or --lang zh."


@dataclass(eq=False)
class BadGate(OnepassError):
    """A gate that can't be judged."""

    gate: str
    problem: str
    remedy: str

    def what(self) -> str:
        return f"--gate {self.gate!r}: {self.problem}"

    def advice(self) -> str:
        return self.remedy


@dataclass(eq=False)
class MissingPackage(OnepassError):
    """A command needs a Python package that is not installed."""

    command: str
    package: str
    extra: str

    def what(self) -> str:
        return f"{self.command} needs the package {self.package}, which is not installed"

    def advice(self) -> str:
        return f"Install it with: pip install 'onepass[{self.extra}]'"


@dataclass(eq=False)
class CannotWrite(OnepassError):
    """A file or folder that was to be written can't be."""

    path: str
    message: str

    def what(self) -> str:
        return f"{self.path} can't be written: {self.message}"

    def advice(self) -> str:
        return "Name another place, or make this one writable."


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Raises: CannotWrite, of this file or folder, for an error of the system."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(str(path), error.strerror or str(error)) from error


@dataclass(eq=False)
class BadReportPath(OnepassError):
    """A report can't be kept in a file of this name."""

    path: str

    def what(self) -> str:
        return f"{self.path}: a report is kept as a page, in a file whose name ends in .html"

    def advice(self) -> str:
        return "Name one that does, for example report.html; report.text and report.to_dict() give the other forms."


@dataclass(eq=False)
class CannotFuse(OnepassError):
    """Something inside a function given to `fuse` can't become part of a kernel."""

    function: str
    where: str  # the user's file and line
    op: str  # empty where the trouble is not one op
    operands: tuple[str, ...]
    reason: str

    def what(self) -> str:
        if not self.op and self.where == self.function:
            return f"`{self.function}` can't be fused: {self.reason}"
        op = f"{self.op}({', '.join(self.operands)})" if self.op else "this"
        return f"{self.where}: {op} in `{self.function}` can't be fused: {self.reason}"

    def advice(self) -> str:
        if self.reason.startswith("gradients"):
            return "Call it under torch.no_grad() or torch.inference_mode()."
        return (
            "Move it out of the function that is fused, or use torch.compile(…, backend='onepass'), "
            "which leaves such ops to PyTorch."
        )


@dataclass(eq=False)
class NoCompiler(OnepassError):
    """No C++ compiler was found for the CPU."""

    looked_for: tuple[str, ...]

    def what(self) -> str:
        return f"no C++ compiler found; looked for {', '.join(self.looked_for)}"

    def advice(self) -> str:
        return (
            "Install one (Debian and Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; "
            "macOS: xcode-select --install), or name one in ONEPASS_CXX or CXX."
        )


@dataclass(eq=False)
class CompileError(OnepassError):
    """A compiler refused a generated source."""

    kernel: str
    source: str
    message: str
    command: str
    lines: tuple[int, ...] = ()  # of the source, as the message names them, from 1

    def what(self) -> str:
        if not self.lines:  # no line of the source is at fault, so none is shown
            return f"{self.kernel} did not compile: {self.message.strip() or 'the compiler gave no message'}"
        return f"{self.kernel} did not compile\n{numbered(self.source, self.lines)}\n{self.message.rstrip()}"

    def advice(self) -> str:
        if not self.lines:
            return (
                f"Compiled with: {self.command}\n"
                "Try the command by hand, and `onepass doctor`; ONEPASS_CXX and ONEPASS_CXX_FLAGS choose another "
                "compiler and its flags."
            )
        return (
            f"Compiled with: {self.command}\n"
            "This is a fault of onepass: please report the text above. "
            "ONEPASS_DISABLE=1 runs the program without onepass meanwhile."
        )


@dataclass(eq=False)
class LoadError(OnepassError):
    """A compiled kernel could not be loaded."""

    kernel: str
    path: str
    message: str

    def what(self) -> str:
        return f"{self.kernel} was compiled but could not be loaded from {self.path}: {self.message}"

    def advice(self) -> str:
        return (
            "Clear the cache (onepass cache clear) and try again; on a file system mounted noexec, "
            "point ONEPASS_CACHE_DIR elsewhere."
        )


@dataclass(eq=False)
class BadSetting(OnepassError):
    """An environment variable of onepass holds a value it cannot use."""

    name: str
    value: str
    expected: str

    def what(self) -> str:
        return f"{self.name}={self.value!r} is not {self.expected}"

    def advice(self) -> str:
        return f"Unset {self.name} or give it {self.expected}."


@dataclass(eq=False)
class BadOption(OnepassError):
    """torch.compile was given a mode or option that the back end does not know."""

    name: str
    value: object
    expected: str

    def what(self) -> str:
        return (
            f"torch.compile(backend='onepass'): {self.name} is {self.value!r}, which is not {self.expected}"
        )

    def advice(self) -> str:
        return "Correct it, or leave it out."


@dataclass(eq=False)
class BadQuantization(OnepassError, ValueError):
    """A functional was asked for 8-bit results that it can't give."""

    name: str
    value: object
    expected: str

    def what(self) -> str:
        return f"Results are not quantised so: {self.name} is {self.value!r}, which is not {self.expected}"

    def advice(self) -> str:
        return "Give another, or quantise the result with PyTorch's own ops."


class LeftToPyTorch(UserWarning):
    """Part of a program could not be compiled and runs in PyTorch."""

    @classmethod
    def after(cls, part: str, error: Exception) -> LeftToPyTorch:
        """What went wrong, with the error's own advice where it has one."""
        text = f"{part} runs in PyTorch: {type(error).__name__}: {error}"
        if not isinstance(error, OnepassError):
            text += (
                "\nThis is a fault of onepass: please report the text above. "
                "ONEPASS_STRICT=1 raises it with its traceback."
            )
        return cls(text)


@dataclass(eq=False)
class NoCacheSpace(OnepassError):
    """Neither the cache directory nor a temporary directory takes a compiled kernel."""

    directory: str
    message: str

    def what(self) -> str:
        return (
            f"a compiled kernel can be written neither to {self.directory} nor to a temporary directory: "
            f"{self.message}"
        )

    def advice(self) -> str:
        return "Free some space, or point ONEPASS_CACHE_DIR or TMPDIR at a directory that can be written."


@dataclass(eq=False)
class KernelFault(OnepassError):
    """A CUDA kernel, run on the CPU, did what no device allows or what none defines."""

    kind: str  # out-of-bounds, misaligned, shared-race …: the table in emulate/faults.py
    kernel: str
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    address: int | None  # of a memory access
    nbytes: int  # of that access
    buffer: str | None  # where in which buffer the access lies, or what it lies near
    other: int | None  # the second thread of a race, or the lane that is missing
    lines: tuple[tuple[int, str], ...]  # numbers and texts of source lines, innermost first; empty if unknown
    hint: str
    other_lines: tuple[tuple[int, str], ...] = ()  # where the second thread was
    undefined: bool = False  # a shuffle read a lane that is not there: wrong only if the value is used
    suspect: bool = False  # an atomic beside a plain read: wrong only if results depend on the order

    def what(self) -> str:
        text = f"{self.kernel}: {self.kind} in block {self.block} thread {self.thread}"
        if self.address is not None:
            text += f", {self.nbytes} bytes at {self.address:#x}"
        if self.buffer is not None:
            text += f" ({self.buffer})"
        if self.other is not None:
            text += f", with thread or lane {self.other}"
        return text + "".join(f"\n  line {number}: {line.strip()}" for number, line in self.lines)

    def advice(self) -> str:
        return self.hint


@dataclass(eq=False)
class CannotCheck(OnepassError):
    """A CUDA C++ file has something that the emulator does not run."""

    file: str
    line: int  # from 1; 0 where there is none
    text: str  # of that line
    construct: str
    reason: str

    def what(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        shown = f"\n  {self.line} | {self.text}" if self.line and self.text else ""
        return f"{place}: {self.construct}: {self.reason}{shown}"

    def advice(self) -> str:
        return (
            "The checker runs a subset of CUDA C++ (docs/checker.md). For the rest use a GPU and compute-sanitizer, with "
            "--tool memcheck, racecheck, synccheck and initcheck in turn."
        )


@dataclass(eq=False)
class NoSuchKernel(OnepassError):
    """A file does not have the kernel asked for, or has several and none was named."""

    file: str
    asked: str  # empty where none was named
    known: tuple[str, ...]
    nearest: str

    def what(self) -> str:
        if not self.known:
            return f"{self.file} defines no __global__ function"
        listed = ", ".join(self.known)
        if not self.asked:
            return f"{self.file} defines several kernels: {listed}"
        return f"{self.file} has no kernel {self.asked!r}; it has {listed}"

    def advice(self) -> str:
        if not self.known:
            return "Name a file with the source text of a kernel."
        return f"Name one with --kernel, for example --kernel {self.nearest or self.known[0]}."


@dataclass(eq=False)
class BadLaunch(OnepassError):
    """What a check was told about a launch does not fit the kernel."""

    file: str
    problem: str
    remedy: str

    def what(self) -> str:
        return f"{self.file}: {self.problem}"

    def advice(self) -> str:
        return self.remedy


def numbered(source: str, around: tuple[int, ...] = (), margin: int = 3) -> str:
    """Number the lines of a source, all of them or those within `margin` lines of the lines named."""
    lines = source.splitlines()
    near = {n for line in around for n in range(line - margin, line + margin + 1)}
    shown = [n for n in range(1, len(lines) + 1) if not near or n in near]
    out, previous = [], 0
    for n in shown:
        if n != previous + 1:
            out.append("  ...")
        out.append(f"{'>' if n in around else ' '}{n:5d} | {lines[n - 1]}")
        previous = n
    return "\n".join(out)


@dataclass(eq=False)
class BadCluster(OnepassError):
    """A cluster, or a kernel made from one, breaks a rule that the stages after it rely on."""

    name: str  # the cluster, node or tensor
    problem: str  # completes the sentence that starts with the name
    text: str = ""  # the whole, printed

    def what(self) -> str:
        return f"{self.name} {self.problem}" + (f"\n{self.text}" if self.text else "")

    def advice(self) -> str:
        return (
            "This is a fault of onepass: please report the text above. "
            "ONEPASS_DISABLE=1 runs the program without onepass meanwhile."
        )


@dataclass(eq=False)
class NoNvrtc(OnepassError):
    """No NVRTC that compiles for an architecture was found."""

    arch: str
    looked_in: tuple[str, ...]

    def what(self) -> str:
        return f"no NVRTC that compiles for {self.arch}; looked in {', '.join(self.looked_in)}"

    def advice(self) -> str:
        return "pip install 'onepass[inspect]', which has nvidia-cuda-nvrtc; for sm_70 also nvidia-cuda-nvrtc-cu12."


@dataclass(eq=False)
class DriverError(OnepassError):
    """The CUDA driver refused a call."""

    call: str
    code: int
    message: str

    def what(self) -> str:
        return f"{self.call} failed with {self.code}: {self.message}"

    def advice(self) -> str:
        return (
            "An earlier kernel may have failed: run with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer."
        )


@dataclass(eq=False)
class HostTooSlow(OnepassError):
    """The host took longer to start a call than the device can be kept busy meanwhile."""

    host_us: float

    def what(self) -> str:
        return (
            f"the host needed {self.host_us:.0f} µs to start a call: its time can't be told from the device's"
        )

    def advice(self) -> str:
        return "Time the call in a CUDA graph, or on more data."


@dataclass(eq=False)
class BadLadder(OnepassError):
    """A folder of kernels can't be read as a ladder."""

    path: str
    problem: str

    def what(self) -> str:
        return f"{self.path}: {self.problem}"

    def advice(self) -> str:
        return "docs/ladder/new.md says what a ladder's folder holds."


@dataclass(eq=False)
class NoSuchRung(OnepassError):
    """A ladder has no rung, or there is no ladder, of a name."""

    name: str
    where: str
    near: tuple[str, ...]

    def what(self) -> str:
        return f"there is no {self.name!r} among {self.where}"

    def advice(self) -> str:
        return f"Near it: {', '.join(self.near)}."


@dataclass(eq=False)
class BadRung(OnepassError):
    """A kernel file can't be run as a rung."""

    path: str
    problem: str
    remedy: str

    def what(self) -> str:
        return f"{self.path}: {self.problem}"

    def advice(self) -> str:
        return self.remedy


class NotAtThisShape(BadRung):
    """A rung says that it takes other rows or columns: the rungs beside it may take these."""
