"""The C++ and Markdown texts of an export. They need the CUDA driver's header and library, and nothing of onepass."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from onepass.codegen.arguments import Field
from onepass.ir.symbol import Poly, Size

if TYPE_CHECKING:
    from onepass.insight.export import Argument

_TEMPLATES = Path(__file__).parent / "export_templates"

# What the launcher calls things of its own.
TAKEN = frozenset(
    (
        "a",
        "aligned",
        "blocks",
        "check",
        "code",
        "compare",
        "context",
        "count",
        "device",
        "extent",
        "f",
        "fill",
        "folder",
        "kernels",
        "main",
        "memory",
        "parameters",
        "rows",
        "scratch",
        "stream",
        "targets",
        "value",
        "vectors",
        "wide",
        "wrong",
    )
)


@dataclass(frozen=True)
class Words:
    """What the texts are about: the function's name, its tensors, the sizes that a call gives."""

    name: str
    arguments: tuple[Argument, ...]
    symbols: Mapping[str, str]  # of the plan → in C++
    meanings: Mapping[str, str]
    archs: tuple[str, ...]

    @property
    def public(self) -> list[Argument]:
        """Inputs and outputs; scratch is the launcher's own."""
        return [a for a in self.arguments if a.role != "scratch"]

    @property
    def tensors(self) -> str:
        """Parameters of a launch."""
        return "".join(f", CUdeviceptr {a.name}" for a in self.public)

    @property
    def sizes(self) -> str:
        """Parameters of a call."""
        return "".join(f", long long {s}" for s in self.symbols.values())

    @property
    def given(self) -> str:
        """What a call passes for them."""
        return "".join(f", {s}" for s in self.symbols.values())

    def size(self, size: Size) -> str:
        """A size as a C++ expression over the launcher's arguments."""
        if not isinstance(size, Poly):
            return f"{size}LL"
        return re.sub(r"^\((\w+)\)$", r"\1", re.sub(r"\b1\*", "", size.text(self.symbols.__getitem__)))

    def shape(self, a: Argument) -> str:
        """A tensor's shape in words."""
        return " × ".join(self.size(n).removesuffix("LL") for n in a.shape) or "one value"


@dataclass(frozen=True)
class Launch:
    """How one kernel is started. ``masks``: (field, multiplier to bytes, mask) that must be 0 for wide accesses."""

    kernel: str
    block: tuple[Field, ...]
    rows: Size
    extent: Size
    threads: int
    shared_bytes: int
    grid: str
    extras: Mapping[str, str]
    masks: tuple[tuple[str, int, int], ...]
    wide: str
    width: int
    narrow: str


def cubins(found: Sequence[tuple[str, bytes]]) -> str:
    """Machine code as arrays."""
    parts = ["// Machine code of the kernels, one array for each and each architecture.\n#pragma once\n"]
    for label, code in found:
        lines = [", ".join(map(str, code[i : i + 32])) for i in range(0, len(code), 32)]
        body = ",\n  ".join(lines)
        parts.append(f"alignas(16) static const unsigned char {label}[] = {{\n  {body}}};\n")
    return "".join(parts)


def header(w: Words) -> str:
    """The launcher's declarations."""
    return _filled(
        "launcher.h",
        name=w.name,
        archs=", ".join(w.archs),
        tensors="".join(f"//   {a.name}: {a.dtype.name}, {w.shape(a)}\n" for a in w.public),
        sizes="".join(f"//   {n}: {w.meanings[s]}\n" for s, n in w.symbols.items()),
        sizes_alone=w.sizes.removeprefix(", ") or "void",
        tensor_parameters=w.tensors,
        size_parameters=w.sizes,
    )


def launcher_of(w: Words, arch: str, launches: Sequence[Launch], arguments: Sequence[Argument]) -> str:
    """The function that starts an architecture's kernels one after the other, and the one that sizes their scratch."""
    names = {a.tensor: a.name for a in arguments}
    scratch, offset = "", "0LL"
    for a in arguments:
        if a.role == "scratch":
            scratch += f"  const CUdeviceptr {a.name} = scratch + {offset};\n"
            offset += f" + {_rounded(w, a)}"
    return _filled(
        "launch_arch.cpp",
        arch=arch,
        tensor_parameters=w.tensors,
        size_parameters=w.sizes,
        sizes_alone=w.sizes.removeprefix(", ") or "void",
        scratch=scratch,
        used="" if scratch else "  (void)scratch;\n",
        body="".join(_start(w, i, launch, names) for i, launch in enumerate(launches)),
        unused="" if scratch else "".join(f"  (void){n};\n" for n in w.symbols.values()),
        bytes=offset,
    )


def _rounded(w: Words, a: Argument) -> str:
    return f"(({w.size(a.numel)} * {a.dtype.nbytes} + 255) / 256 * 256)"


def _start(w: Words, i: int, launch: Launch, names: Mapping[str, str]) -> str:
    fields, values = [], []
    for f in launch.block:
        fields.append(f"      long long {f.name};")
        if f.kind == "pointer":
            values.append(f"(long long){names[f.tensor]} + {w.size(f.size)}")
        elif f.kind == "size":
            values.append(w.size(f.size))
        else:
            values.append("0")
    checks = " || ".join(f"((a.{n} * {by}) & {mask})" for n, by, mask in launch.masks) or "0"
    lines = [
        f"  {{  // {launch.kernel}",
        f"    const long long rows = {w.size(launch.rows)}, extent = {w.size(launch.extent)};",
        "    struct {",
        *fields,
        f"    }} a = {{{', '.join(values)}}};",
        f"    const bool aligned = !({checks});",
    ]
    if launch.narrow:
        lines.append(f"    if (!aligned) {launch.narrow}")
    if launch.wide:
        lines.append(f"    const long long wide = aligned && {launch.wide};")
        if "vectors" in launch.extras:
            lines.append(f"    const long long vectors = wide ? extent / {launch.width} : extent;")
    lines += [f"    a.{n} = {value};" for n, value in launch.extras.items()]
    lines += [
        "    (void)aligned;",
        f"    const long long blocks = {launch.grid};",
        "    void* parameters[] = {&a};",
        "    if (rows > 0 && extent > 0) {",
        f"      CUresult code = cuLaunchKernel(f[{i}], (unsigned)blocks, 1, 1, {launch.threads}, 1, 1, "
        f"{launch.shared_bytes}, stream, parameters, nullptr);",
        "      if (code) return code;",
        "    }",
        "  }",
    ]
    return "\n".join(lines) + "\n"


def launcher(w: Words, parts: Sequence[str], launches_by_arch: Mapping[str, Sequence[Launch]]) -> str:
    """The launcher: loads the machine code of the device's architecture, and starts it. ``parts``: `launcher_of` each."""
    tensors, sizes = "".join(f", {a.name}" for a in w.public), w.given
    targets, launches, scratches = [], [], []
    for at, arch in enumerate(w.archs):
        number, count = int(arch.removeprefix("sm_")), len(launches_by_arch[arch])
        codes = ", ".join(f"kernel_{i}_{arch}" for i in range(count))
        targets.append(f"  {{{number // 10}, {number % 10}, {count}, {{{codes}}}}},")
        launches.append(
            f"    case {at}: return launch_{arch}(kernels->functions{tensors}, scratch{sizes}, stream);"
        )
        needed = f"scratch_{arch}({sizes.removeprefix(', ')})"
        scratches.append(f"  if ({needed} > most) most = {needed};")
    return _filled(
        "launcher.cpp",
        name=w.name,
        most=max(map(len, launches_by_arch.values())),
        targets="\n".join(targets),
        names=_table(launches_by_arch, lambda one: f'"{one.kernel}"'),
        shared=_table(launches_by_arch, lambda one: str(one.shared_bytes)),
        parts="".join(parts),
        count=len(w.archs),
        sizes_alone=w.sizes.removeprefix(", "),
        scratches="\n".join(scratches),
        tensor_parameters=w.tensors,
        size_parameters=w.sizes,
        launches="\n".join(launches),
    )


def _table(launches: Mapping[str, Sequence[Launch]], spell: Callable[[Launch], str]) -> str:
    return ", ".join("{" + ", ".join(map(spell, found)) + "}" for found in launches.values())


@dataclass(frozen=True)
class Tolerance:
    """What a result may be off by: ``share`` of its own and of ``typical`` magnitude, and ``least``."""

    share: float
    typical: float
    least: float


def self_test(w: Words, sizes: Mapping[str, int], tolerances: Mapping[str, Tolerance]) -> str:
    """A program that runs the launcher on the inputs in data/ and holds it to float64.

    ``sizes`` by symbol are the test's, ``tolerances`` by output.
    """
    lines, compares = [], []
    for a in w.public:
        size = f"{a.name}_n * {a.dtype.nbytes}"
        lines.append(f"  const long long {a.name}_n = {w.size(a.numel)};")
        lines.append(f"  CUdeviceptr {a.name} = memory({size});")
        if a.role == "input":
            lines.append(f'  fill({a.name}, read_file("{a.name}.bin", {size}));')
        else:
            lines.append(f'  check(cuMemsetD8({a.name}, 0xFF, {size}), "cuMemsetD8");  // NaN')
            t = tolerances[a.name]
            compares.append(
                f'  wrong += compare<{_HOST[a.dtype.name]}>("{a.name}", {a.name}, {a.name}_n, {t.share!r}, '
                f"{t.typical!r}, {t.least!r});"
            )
    return _filled(
        "self_test.cpp",
        name=w.name,
        declared="".join(f"  const long long {n} = {sizes[s]};\n" for s, n in w.symbols.items()),
        lines="\n".join(lines),
        sizes_alone=w.given.removeprefix(", "),
        tensors="".join(f", {a.name}" for a in w.public),
        sizes=w.given,
        compares="\n".join(compares),
    )


_HOST = {
    "float32": "float",
    "bfloat16": "bf16",
    "float16": "f16",
    "int64": "long long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "unsigned char",
}


def readme(w: Words, file: str, sources: Sequence[str]) -> str:
    """What the folder holds, how to build and test it, and how to call the launcher."""
    sizes = "\n".join(f"- `{n}`: {w.meanings[s]}" for s, n in w.symbols.items())
    return _filled(
        "README.md",
        name=w.name,
        file=file.rpartition("/")[2],
        archs=", ".join(w.archs),
        sources=", ".join(f"`{s}`" for s in sources),
        codes=" ".join(f"-gencode arch=compute_{a[3:]},code={a}" for a in w.archs),
        first=" ".join(sources[:1]),
        calls=", ".join(["kernels", *(a.name for a in w.public), "scratch", *w.symbols.values(), "stream"]),
        tensors="\n".join(f"| `{a.name}` | {a.dtype.name} | {w.shape(a)} |" for a in w.public),
        sizes=sizes or "All sizes are constants of the kernels.",
    )


def _filled(template: str, **words: object) -> str:
    return Template((_TEMPLATES / template).read_text()).substitute(words)
