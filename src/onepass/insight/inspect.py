"""What any GPU kernel takes and holds, read without running it: sources, PTX, cubins, libraries, Triton's cache."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from onepass.analysis.machine_code import Access, MachineCode, ptx_threads, read_ptx
from onepass.analysis.occupancy import Occupancy, cliffs, resident
from onepass.analysis.resources import Resources, resources_by_kernel
from onepass.device import limits_of, of_arch
from onepass.errors import BadUserFile, CompileError, did_you_mean
from onepass.insight import binaries
from onepass.insight.binaries import ELF, FATBIN, Image
from onepass.insight.executed import Executed, counted, of_built, of_text
from onepass.runtime.nvrtc import compile_with_ptx, folders

SCHEMA = "onepass.inspect/1"
# Where nothing tells how many threads a block has.
ASSUMED_THREADS = 256
# sm_90a, sm_100f: code that may use what only that device, or its family, has. Source: `ptxas --help` of CUDA 13.
FIRST_VARIANTS = {"a": 90, "f": 100}

IN_FLIGHT_RULE = (
    "bytes in flight: the most bytes a thread has asked of global memory before one of its loads is used, the text "
    "walked once from top to bottom"
)
STATIC_RULE = "counts are static: how often an instruction stands in the text, whatever loops execute"
EXECUTED_RULE = (
    "executed: run in the emulator; memory instructions are those of a warp to global memory, bytes those of every load "
    "and store, whether a cache serves it or not"
)
EXECUTED = ("barriers_per_row", "memory_instructions_per_row", "bytes_per_row")
SPILLS_UNKNOWN = "spills: only the compiler tells them, and this file holds its result."


@dataclass(frozen=True)
class KernelFacts:
    """One kernel for one architecture. None stands for what is not known; ``missing`` says why.

    Units: registers and bytes in flight a thread, shared bytes a block, stack and spill bytes a thread, ``occupancy``
    0 … 1 of a multiprocessor's warps.
    """

    name: str
    arch: str
    code: MachineCode | None
    registers: int | None
    spill_store_bytes: int | None
    spill_load_bytes: int | None
    stack_bytes: int | None
    shared_bytes: int | None
    dynamic_shared_bytes: int
    barriers: int | None
    threads: int
    threads_from: str
    missing: tuple[str, ...] = ()
    executed: Executed | None = None

    @property
    def spill_bytes(self) -> int | None:
        """Stored and loaded, a thread; None where the compiler was not heard."""
        if self.spill_store_bytes is None or self.spill_load_bytes is None:
            return None
        return self.spill_store_bytes + self.spill_load_bytes

    @property
    def resident(self) -> Occupancy | None:
        """What a multiprocessor holds of it; None where registers or shared memory are not known."""
        if self.registers is None or self.shared_bytes is None:
            return None
        shared = self.shared_bytes + self.dynamic_shared_bytes
        limits = limits_of(self.arch)
        barriers = 1 if self.barriers is None else self.barriers
        return resident(limits, self.threads, self.registers, shared, barriers=barriers)

    @property
    def occupancy(self) -> float | None:
        """By NVIDIA's definition: of warps."""
        return self.resident.warp_share if self.resident else None

    @property
    def limit(self) -> str:
        """What keeps more blocks from being resident; empty where occupancy is not known."""
        return " and ".join(self.resident.binding) if self.resident else ""

    def widest_bits(self, kind: str) -> int | None:
        """The widest access of global memory of a kind; None where the code is not known or has none."""
        found = [
            a.bits for a in (self.code.memory if self.code else {}) if a.kind == kind and a.space == "global"
        ]
        return max(found, default=None)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; a gate's quantities are its keys."""
        code = self.code
        return {
            "name": self.name,
            "demangled": demangle(self.name),
            "arch": self.arch,
            "counted_in": code.origin if code else None,
            "registers": self.registers,
            "spill_bytes": self.spill_bytes,
            "spill_store_bytes": self.spill_store_bytes,
            "spill_load_bytes": self.spill_load_bytes,
            "stack_bytes": self.stack_bytes,
            "shared_bytes": self.shared_bytes,
            "dynamic_shared_bytes": self.dynamic_shared_bytes,
            "barriers": self.barriers,
            "threads": self.threads,
            "threads_from": self.threads_from,
            "occupancy": self.occupancy,
            "thread_occupancy": self.resident.thread_share if self.resident else None,
            "occupancy_limit": self.limit or None,
            "cliffs": [c.to_dict() for c in cliffs(self.resident)] if self.resident else None,
            "memory": [{**_access_dict(a), "count": n} for a, n in code.memory.items()] if code else None,
            "instructions": code.total if code else None,
            "special_instructions": code.special if code else None,
            "barrier_instructions": code.barriers if code else None,
            "shuffle_instructions": code.shuffles if code else None,
            "local_accesses": _local(code) if code else None,
            "widest_load_bits": self.widest_bits("load"),
            "widest_store_bits": self.widest_bits("store"),
            "bytes_in_flight": code.bytes_in_flight if code else None,
            "executed": self.executed.to_dict() if self.executed else None,
            **{name: getattr(self.executed, name) if self.executed else None for name in EXECUTED},
            "lines": _lines(code) if code else [],
            "missing": list(self.missing),
        }


@dataclass(frozen=True)
class Inspection:
    """What a file's kernels are."""

    file: str
    kind: str
    kernels: tuple[KernelFacts, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "schema": SCHEMA,
            "file": self.file,
            "kind": self.kind,
            "verdict": self.verdict,
            "rules": [STATIC_RULE, IN_FLIGHT_RULE, EXECUTED_RULE],
            "kernels": [k.to_dict() for k in self.kernels],
        }

    @property
    def verdict(self) -> str:
        """The sentence that stands before the table."""
        names = list(dict.fromkeys(k.name for k in self.kernels))
        archs = list(dict.fromkeys(k.arch for k in self.kernels))
        what = short(names[0]) if len(names) == 1 else f"{len(names)} kernels"
        return f"{what} on {', '.join(archs)}: {self._spills()}; {self._occupancy()}."

    def _spills(self) -> str:
        known = [k for k in self.kernels if k.spill_bytes is not None]
        if not known:
            return "spills not known"
        worst = max(known, key=lambda k: k.spill_bytes or 0)
        if not worst.spill_bytes:
            return "no spills"
        return (
            f"{short(worst.name)} spills on {worst.arch} ({worst.spill_store_bytes} bytes stored, "
            f"{worst.spill_load_bytes} loaded)"
        )

    def _occupancy(self) -> str:
        known = [k for k in self.kernels if k.occupancy is not None]
        if not known:
            return "occupancy not known"
        worst = min(known, key=lambda k: k.occupancy or 0.0)
        at = f" ({short(worst.name)} on {worst.arch})" if len(self.kernels) > 1 else ""
        least = "at least " if len(known) > 1 else ""
        return (
            f"occupancy {least}{worst.occupancy:.0%} of warps with {worst.threads} threads a block "
            f"({worst.threads_from}), limited by {worst.limit}{at}"
        )

    def records(self) -> dict[str, dict[str, Any]]:
        """What a gate judges, by kernel and architecture; kernels of one name, as overloads, each for itself."""
        found: dict[str, dict[str, Any]] = {}
        for k in self.kernels:
            name = f"{short(k.name)} on {k.arch}"
            name = name if name not in found else f"{demangle(k.name)} on {k.arch}"
            found[name if name not in found else f"{name}, number {len(found) + 1}"] = k.to_dict()
        return found


# Files


def inspect_file(
    path: Path,
    archs: Sequence[str],
    include: Sequence[Path] = (),
    kernel: str = "",
    threads: int | None = None,
    dynamic_shared_bytes: int = 0,
) -> Inspection:
    """Everything that is known of a file's kernels; ``kernel`` picks one, ``threads`` are a block's.

    Raises: BadUserFile, NoSuchArchitecture, NoNvrtc.
    """
    for arch in archs:
        of_arch(_device_of(arch))
    kind, read = _reader(path)
    try:
        found = read(path, tuple(dict.fromkeys(archs)), tuple(include))
    except OSError as error:
        raise BadUserFile(
            str(path), f"can't be read: {error.strerror or error}", "Name a file that can."
        ) from error
    if threads is not None:
        found = [replace(k, threads=threads, threads_from="as asked") for k in found]
    if dynamic_shared_bytes:
        found = [replace(k, dynamic_shared_bytes=dynamic_shared_bytes) for k in found]
    chosen = picked(str(path), found, kernel)
    return Inspection(str(path), kind, _with_executed(path, chosen) if read is _source else chosen)


def _with_executed(path: Path, found: Sequence[KernelFacts]) -> tuple[KernelFacts, ...]:
    """A source's kernels with what they execute, where a line of it says how they are launched."""
    text = text_of(path)
    counts: dict[str, Executed | str] = {}
    for name in dict.fromkeys(k.name for k in found):
        called = short(name).removeprefix("(anonymous namespace)::")
        counts[name] = counted(lambda called=called: of_text(text, path.name, called))  # type: ignore[misc]
    return tuple(_counting(k, counts[k.name]) for k in found)


def _launched(k: KernelFacts, counts: Executed) -> KernelFacts:
    """With the block that the file launches, where nothing else told of one."""
    shared = k.dynamic_shared_bytes or counts.shared_bytes
    if k.threads_from != "assumed":
        return replace(k, dynamic_shared_bytes=shared)
    return replace(k, threads=counts.threads, threads_from="its launch line", dynamic_shared_bytes=shared)


def _counting(k: KernelFacts, counts: Executed | str) -> KernelFacts:
    if isinstance(counts, Executed):
        return replace(_launched(k, counts), executed=counts)
    return replace(k, missing=(*k.missing, f"executed counts of {short(k.name)}: {counts}"))


def picked(path: str, found: Sequence[KernelFacts], kernel: str) -> tuple[KernelFacts, ...]:
    """The kernels of a name, mangled or as written; all without one. Raises: BadUserFile."""
    if not found:
        raise BadUserFile(
            path,
            "holds no kernel",
            "A kernel is a __global__ function; a template needs an explicit instance.",
        )
    if not kernel:
        return tuple(found)
    names = {name: k for k in found for name in _names_of(k)}
    if kernel not in names:
        have = ", ".join(dict.fromkeys(demangle(k.name) for k in found))
        raise BadUserFile(path, f"has no kernel {kernel!r}", f"{did_you_mean(kernel, names)}It has {have}.")
    return tuple(k for k in found if kernel in _names_of(k))


def _names_of(k: KernelFacts) -> tuple[str, ...]:
    """What a kernel may be called by: in the machine code, in C++ with and without its arguments, by its name alone."""
    return k.name, demangle(k.name), short(k.name), _plain(k.name)


Reader = Callable[[Path, tuple[str, ...], tuple[Path, ...]], list[KernelFacts]]


def _reader(path: Path) -> tuple[str, Reader]:
    try:
        exists, folder = path.exists(), path.is_dir()
    except (OSError, ValueError) as error:  # a name that no file can have, a folder that can't be entered
        raise BadUserFile(str(path), f"can't be read: {error}", "Name a file that can.") from error
    if folder or (exists and path.suffix == ".json"):
        return "Triton cache entry", _triton
    if not path.is_file():
        problem = "is no plain file" if exists else "no such file"
        raise BadUserFile(str(path), problem, f"Looked from {Path.cwd()}.")
    if path.suffix in (".cu", ".cuh"):
        return "CUDA C++ source", _source
    if path.suffix == ".ptx":
        return "PTX", _ptx
    head = _head(path)
    if binaries.arch_of(head):
        return ("Triton cache entry", _triton) if path.with_suffix(".json").is_file() else ("cubin", _cubin)
    if head[:4] in (ELF, FATBIN):
        return "fat binary" if head[:4] == FATBIN else "library", _fat
    raise BadUserFile(
        str(path),
        "is nothing that holds GPU code",
        "Name a .cu, .ptx or .cubin file, a fat binary, a library, a folder of Triton's cache, or FILE.py:NAME.",
    )


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError as error:
        raise BadUserFile(str(path), f"can't be read: {error.strerror}", "Name a file that can.") from error


def _source(path: Path, archs: tuple[str, ...], include: tuple[Path, ...]) -> list[KernelFacts]:
    text = text_of(path)
    missing = [str(folder) for folder in include if not folder.is_dir()]
    if missing:
        raise BadUserFile(", ".join(missing), "no such folder of headers", f"Looked from {Path.cwd()}.")
    return [k for arch in archs or ("sm_90",) for k in inspect_source(text, path, arch, include)]


def text_of(path: Path) -> str:
    """A text as a compiler takes it: bytes that are no UTF-8 may stand in its comments. Raises: BadUserFile."""
    content = path.read_bytes()
    if b"\0" in content:
        raise BadUserFile(
            str(path), "is no text: it holds bytes of value 0", "Name a source in ASCII or UTF-8."
        )
    return content.decode("utf-8-sig", errors="replace")


def inspect_source(text: str, path: Path, arch: str, include: Sequence[Path] = ()) -> list[KernelFacts]:
    """The kernels of a CUDA C++ text, compiled by NVRTC. Raises: BadUserFile with the numbered lines; NoNvrtc."""
    options = tuple(f"--include-path={p}" for p in (path.resolve().parent, *include, *_headers(arch)))
    name = re.sub(
        r"[^\w.+-]|[^\x00-\x7f]", "_", path.stem
    )  # of line information, which the tools garble otherwise
    try:
        cubin, ptx, log = compile_with_ptx(text, name, arch, options)
    except CompileError as error:
        raise BadUserFile(str(path), error.what(), _compile_advice(error.message)) from error
    return _of_cubin(cubin, arch, resources_by_kernel(log), ptx)


def _compile_advice(message: str) -> str:
    if "could not open source file" in message or "cannot open source file" in message:
        return (
            "Name the folder of the header with --include; CUDA's own come with pip install 'onepass[inspect]'. "
            "NVRTC compiles device code alone: keep host code and its headers in another file."
        )
    if "too much shared data" in message:
        return "48 KiB of static shared memory is the most; declare more as extern __shared__ and name it with --shared."
    return "Correct the file. NVRTC compiles device code alone: keep host code in another file."


def _headers(arch: str) -> list[Path]:
    """CUDA's own headers where a wheel or the toolkit has brought them."""
    found = [f.parent / "include" for f in folders()]
    return [f for f in found if (f / "cuda_fp16.h").is_file()][:1]


def _of_cubin(
    cubin: bytes,
    arch: str,
    compiled: Mapping[str, Resources] | None = None,
    ptx: str = "",
    threads: Mapping[str, int] | None = None,
) -> list[KernelFacts]:
    """Facts of a cubin's kernels, with what the compiler said of them where it was heard."""
    code, used = binaries.disassemble(cubin), binaries.usage(cubin, arch)
    bounds = {**ptx_threads(ptx), **(threads or {})}
    names = [*(compiled or {}), *(used if isinstance(used, dict) else {}), *_kernels_in(cubin)]
    facts = []
    for name in dict.fromkeys(names):
        missing = []
        if isinstance(code, str):
            instead = " Counted in PTX instead, which the assembler still changes." if ptx else ""
            missing.append(f"machine code of {arch}: {code.rstrip('.')}.{instead}")
        if not compiled:
            missing.append(SPILLS_UNKNOWN)
        if not compiled and isinstance(used, str):
            missing.append(f"registers and shared memory: {used}.")
        own = code.get(name) if isinstance(code, dict) else read_ptx(ptx).get(name) if ptx else None
        known = (compiled or {}).get(name)
        from_cubin = used.get(name) if isinstance(used, dict) else None
        facts.append(
            KernelFacts(
                name,
                arch,
                own,
                known.registers if known else from_cubin.registers if from_cubin else None,
                known.spill_store_bytes if known else None,
                known.spill_load_bytes if known else None,
                known.stack_bytes if known else from_cubin.stack_bytes if from_cubin else None,
                known.shared_bytes if known else from_cubin.shared_bytes if from_cubin else None,
                0,
                known.barriers if known else None,
                bounds.get(name, ASSUMED_THREADS),
                "launch bounds" if name in bounds else "assumed",
                tuple(missing),
            )
        )
    return facts


def _kernels_in(cubin: bytes) -> list[str]:
    """Names of a cubin's kernels, from the names of its sections: what there is where no tool reads it."""
    return [n.decode() for n in dict.fromkeys(re.findall(rb"\0\.nv\.info\.([\w$.]+)(?=\0)", cubin))]


def _ptx(path: Path, archs: tuple[str, ...], include: tuple[Path, ...]) -> list[KernelFacts]:
    text = text_of(path)
    return [k for a in archs or (binaries.target_of(text) or "sm_90",) for k in _ptx_for(text, path, a)]


def _takes(target: str, arch: str) -> bool:
    """Whether PTX for a variant of an architecture may become code for another. Source: `ptxas --help` of CUDA 13."""
    if target[-1] == "f":
        return _number(target) // 10 == _number(arch) // 10
    return target[-1] != "a" or target == arch


def _ptx_for(text: str, path: Path, arch: str) -> list[KernelFacts]:
    target = binaries.target_of(text)
    if target and _number(arch) < _number(target):
        raise BadUserFile(
            str(path), f"is written for {target}, which {arch} does not run", f"Ask for {target} or later."
        )
    if target and not _takes(target, arch):
        alone = "and its family" if target[-1] == "f" else "alone"
        raise BadUserFile(
            str(path),
            f"is written for {target} {alone}, not for {arch}",
            "Leave --arch out, or compile it for that.",
        )
    made = binaries.assemble(path, arch)
    if isinstance(made, tuple):
        return _of_cubin(made[0], arch, resources_by_kernel(made[1]), text)
    if fault := binaries.fault_in_ptx(made):
        raise BadUserFile(
            str(path), f"does not assemble for {arch}: {fault}", "Correct it, or write it anew."
        )
    bounds = ptx_threads(text)
    return [
        KernelFacts(
            name,
            arch,
            code,
            None,
            None,
            None,
            None,
            None,
            0,
            None,
            bounds.get(name, ASSUMED_THREADS),
            "launch bounds" if name in bounds else "assumed",
            (f"registers, spills and machine code: {made}.",),
        )
        for name, code in read_ptx(text).items()
    ]


def _cubin(path: Path, archs: tuple[str, ...], include: tuple[Path, ...]) -> list[KernelFacts]:
    code = path.read_bytes()
    arch = binaries.arch_of(code) or ""
    if archs and arch not in map(_device_of, archs):
        raise BadUserFile(
            str(path), f"is for {arch}, not for {', '.join(archs)}", f"Leave --arch out or say {arch}."
        )
    if binaries.is_cut_off(code):
        raise BadUserFile(str(path), "is a cubin that was cut off", "Write it anew.")
    if binaries.tool("cuobjdump") and isinstance(said := binaries.usage(code, arch), str):
        raise BadUserFile(str(path), f"is a cubin that cuobjdump does not read: {said}", "Write it anew.")
    return _of_cubin(code, arch)


def _fat(path: Path, archs: tuple[str, ...], include: tuple[Path, ...]) -> list[KernelFacts]:
    held = binaries.images(path)
    cubins = [i for i in held if i.kind == "cubin"]
    texts = [i for i in held if i.kind == "ptx"]
    bounds = {n: most for t in texts for n, most in ptx_threads(t.code.decode(errors="replace")).items()}
    found: list[KernelFacts] = []
    for image in cubins:
        if not archs or image.arch in map(_device_of, archs):
            found += _of_cubin(image.code, image.arch, threads=bounds)
    for arch in archs or ([] if cubins else [t.arch for t in texts]):
        if _device_of(arch) in [c.arch for c in cubins]:
            continue
        if older := _next_older(cubins, arch):
            for image in (c for c in cubins if c.arch == older):
                found += [_run_on(k, arch) for k in _of_cubin(image.code, older)]
        else:
            found += [k for t in _runnable(texts, arch) for k in _embedded(t, arch, path)]
    if not found and archs:
        have = ", ".join(dict.fromkeys([c.arch for c in cubins] + [f"PTX for {t.arch}" for t in texts]))
        raise BadUserFile(str(path), f"holds nothing for {', '.join(archs)}", f"It holds {have}.")
    return found


def _next_older(cubins: Sequence[Image], arch: str) -> str:
    """Whose machine code a device takes before PTX: of its major version, the latest minor one not above its own."""
    able = [
        c.arch
        for c in cubins
        if _number(c.arch) // 10 == _number(arch) // 10 and _number(c.arch) <= _number(arch)
    ]
    return max(able, key=_number, default="")


def _run_on(k: KernelFacts, arch: str) -> KernelFacts:
    return replace(k, arch=arch, missing=(*k.missing, f"{arch} runs the machine code for {k.arch}."))


def _runnable(texts: Sequence[Image], arch: str) -> list[Image]:
    return [t for t in texts if t.arch and _number(t.arch) <= _number(arch)]


def _embedded(image: Image, arch: str, path: Path) -> list[KernelFacts]:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        file.write(image.code)
        file.flush()
        return _ptx_for(image.code.decode(errors="replace"), Path(file.name), arch)


def _triton(path: Path, archs: tuple[str, ...], include: tuple[Path, ...]) -> list[KernelFacts]:
    """A kernel in Triton's cache: its cubin, and beside it a JSON with the name, warps and shared memory."""
    folder = path if path.is_dir() else path.parent
    described = [
        (file, data)
        for file in sorted(folder.glob("*.json"))
        if (path.is_dir() or file.stem == path.stem)
        and "num_warps" in (data := _json(file))
        and file.with_suffix(".cubin").is_file()
    ]
    if not described:
        raise BadUserFile(
            str(path),
            "is no entry of Triton's cache",
            "Name a folder that holds NAME.json and NAME.cubin, for example one in ~/.triton/cache.",
        )
    found: list[KernelFacts] = []
    for file, data in described:
        cubin = file.with_suffix(".cubin").read_bytes()
        arch = binaries.arch_of(cubin) or ""
        if archs and arch not in map(_device_of, archs):
            continue
        warps, shared = _counts(file, data)
        beside = file.with_suffix(".ptx")
        ptx = beside.read_text(errors="replace") if beside.is_file() else ""
        for k in _of_cubin(cubin, arch, ptx=ptx):
            k = _with_spills(k, beside)
            found.append(
                replace(k, threads=32 * warps, threads_from=f"{warps} warps", dynamic_shared_bytes=shared)
            )
    if not found:
        raise BadUserFile(
            str(path), f"holds nothing for {', '.join(archs)}", "Leave --arch out to see what it holds."
        )
    return found


def _counts(file: Path, data: Mapping[str, Any]) -> tuple[int, int]:
    """Warps and bytes of shared memory a block. Raises: BadUserFile."""
    warps, shared = data["num_warps"], data.get("shared") or 0
    if not isinstance(warps, int) or not isinstance(shared, int) or not 1 <= warps <= 32 or shared < 0:
        raise BadUserFile(
            str(file),
            f"has num_warps={warps!r} and shared={shared!r}",
            "Let Triton write the entry anew: clear its cache.",
        )
    return warps, shared


def _with_spills(k: KernelFacts, ptx: Path) -> KernelFacts:
    """A cubin's kernel with what ptxas says when it assembles the PTX beside it once more, if that gives the same."""
    if not ptx.is_file():
        return k
    made = binaries.assemble(ptx, binaries.target_of(ptx.read_text()) or k.arch)
    if isinstance(made, str):
        return replace(k, missing=(*k.missing, f"The PTX beside it was not assembled again: {made}."))
    again = resources_by_kernel(made[1]).get(k.name)
    if again is None or again.registers != k.registers or again.stack_bytes != k.stack_bytes:
        return k
    known = tuple(m for m in k.missing if m != SPILLS_UNKNOWN)
    return replace(
        k,
        spill_store_bytes=again.spill_store_bytes,
        spill_load_bytes=again.spill_load_bytes,
        barriers=again.barriers,
        missing=known,
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _device_of(arch: str) -> str:
    """What a device is, of code for it alone or its family: sm_90 of sm_90a. A cubin's header tells no more."""
    plain, variant = arch[:-1], arch[-1:]
    return plain if variant in FIRST_VARIANTS and _number(plain) >= FIRST_VARIANTS[variant] else arch


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch) or 0)


def inspect_generated(
    spec: str, function: Callable[..., Any], inputs: Sequence[Any], archs: Sequence[str], kernel: str = ""
) -> Inspection:
    """The kernels that a function becomes, each as it would ship for an architecture.

    Raises: NoSuchArchitecture, NoNvrtc, BadUserFile; what the function raises.
    """
    from onepass.capture.absent import generate

    found: list[KernelFacts] = []
    for arch in dict.fromkeys(archs) or ("sm_90",):
        graphs = generate(arch, function, inputs).graphs
        for graph, built in ((g, b) for g in graphs for b in g.plan.kernels):
            schedule: Any = built.schedule
            counts = counted(lambda b=built, g=graph: of_built(b, g))  # type: ignore[misc]
            for k in inspect_source(built.source.text, Path(built.source.name), arch):
                shared = int(getattr(schedule, "shared_bytes", 0))
                found.append(
                    _counting(
                        replace(
                            k,
                            threads=schedule.threads,
                            threads_from="its schedule",
                            dynamic_shared_bytes=shared,
                        ),
                        counts,
                    )
                )
    return Inspection(spec, "generated kernels", picked(spec, found, kernel))


# Words


def demangle(name: str) -> str:
    """A C++ name as written; other names, and where no C++ library is loaded, unchanged."""
    if not name.startswith("_Z") or (library := _cxx()) is None:
        return name
    status = ctypes.c_int()
    pointer = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if status.value or not pointer:
        return name
    text = ctypes.string_at(pointer).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(pointer))
    return text


@cache
def _cxx() -> Any:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        library.__cxa_demangle.restype = ctypes.c_void_p
    except (OSError, AttributeError):
        return None
    return library


def short(name: str) -> str:
    """A C++ name as written, without its arguments; a template's stay."""
    written = demangle(name).removeprefix("void ")
    depth = 0
    for at, c in enumerate(written):
        if c == "(" and depth == 0 and not written.startswith("(anonymous namespace)", at):
            return written[:at]
        depth += (c in "<(") - (c in ">)")
    return written


def _plain(name: str) -> str:
    """The name alone, without its arguments and template's."""
    return re.split(r"[<(]", short(name).replace("(anonymous namespace)", ""))[0].rpartition("::")[2]


def _access_dict(a: Access) -> dict[str, Any]:
    return {"space": a.space, "kind": a.kind, "bits": a.bits or None}


def _local(code: MachineCode) -> int:
    return code.count("local", "load") + code.count("local", "store")


def _lines(code: MachineCode) -> list[dict[str, Any]]:
    return [
        {
            "file": file,
            "line": line,
            "instructions": len(found),
            "memory": [i.opcode for i in found if i.access],
            "special": sum(i.name == "MUFU" for i in found),
        }
        for (file, line), found in code.lines.items()
    ]
