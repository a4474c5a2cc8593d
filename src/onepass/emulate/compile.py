"""Compile CUDA C++ kernel texts with the host compiler."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from onepass.emulate.launch import EmulatedKernel, KernelSource, source_file
from onepass.errors import CompileError
from onepass.runtime.hostcc import HostCompiler, cpu_features, find_compiler

_HERE = Path(__file__).parent
_EXTERN_SHARED = re.compile(r"extern\s+__shared__\s+([^;\[]*?)(\w+)\s*\[\s*\]\s*;")

_COMMON = ("-fPIC", "-std=c++17", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden")
# -O1 compiles in half the time of -O2 and keeps register vectors in registers, so that they cause no hooks.
_ARITHMETIC = ("-O1", "-fno-math-errno", "-fno-trapping-math")
_QUIET = ("-Wno-unknown-pragmas", "-Wno-attributes")
# DWARF 4: in version 5's line table g++ 12 calls some lines of the text lines of <stdin>.
_KERNEL_FLAGS = ("-g1", "-gdwarf-4", "-fsanitize=thread", *_COMMON, *_ARITHMETIC, *_QUIET)
_RUNTIME_FLAGS = ("-O2", "-g1", *_COMMON, "-Wall", "-Wextra")


def compile_for_host(
    source: str, name: str, arch: int = 90, cache_dir: Path | str | None = None, fmad: bool = True
) -> EmulatedKernel:
    """Compile one kernel text for the CPU; see `compile_many`."""
    return compile_many([KernelSource(name, source)], arch, cache_dir, fmad)[0]


def compile_many(
    sources: Sequence[KernelSource],
    arch: int = 90,
    cache_dir: Path | str | None = None,
    fmad: bool = True,
    prelude: str = "",
) -> list[EmulatedKernel]:
    """Compile kernel texts in one go, each in a namespace of its own, so that names may repeat.

    `prelude` is a text that they all begin with and that needs compiling only once. `arch` is what
    `__CUDA_ARCH__` says, 90 for sm_90. `fmad` contracts a * b + c to one rounding, as NVRTC does by default.
    Objects are kept by content in `cache_dir`, or in a folder of this process.

    Raises: CompileError with the compiler's message, NoCompiler.
    """
    contraction = f"-ffp-contract={'fast' if fmad else 'off'}"
    unit = _translation_unit(sources, arch, prelude)
    path = build(sources, unit, (contraction,), scratch_folder(cache_dir))
    return [EmulatedKernel(path, s, i) for i, s in enumerate(sources)]


def build(sources: Sequence[KernelSource], unit: str, options: Sequence[str], folder: Path) -> Path:
    """Compile a translation unit that holds kernel texts, with the runtime; the shared object is kept in `folder`.

    Raises: CompileError with the compiler's message, NoCompiler.
    """
    compiler = find_compiler()
    flags = (*_KERNEL_FLAGS, *options, *_target_flags())
    runtime = _runtime(compiler, folder)
    path = folder / f"{_key(compiler, flags, unit)}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            compiled, linked = Path(scratch) / "kernels.o", Path(scratch) / "kernels.so"
            _compile(compiler, flags, unit, compiled, sources)
            # Linked without -fsanitize: the hooks are the runtime's.
            link = [compiler.path, "-shared", str(compiled), str(runtime), "-lm", "-o", str(linked)]
            linking = subprocess.run(link, capture_output=True, text=True)
            if linking.returncode:  # a function that the text declares and nobody defines
                raise CompileError(sources[0].name, sources[0].text, linking.stderr, " ".join(link))
            os.replace(linked, path)  # atomic: two processes may build the same text
    return path


def scratch_folder(cache_dir: Path | str | None) -> Path:
    """Where objects go: the folder named, or one of this process."""
    folder = Path(cache_dir if cache_dir is not None else _own_folder().name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@lru_cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
    """Removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="onepass-emulate-")


def _runtime(compiler: HostCompiler, folder: Path) -> Path:
    """The object file of runtime.cpp."""
    text = (_HERE / "runtime.cpp").read_text()
    path = folder / f"{_key(compiler, _RUNTIME_FLAGS, text)}.o"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _compile(compiler, _RUNTIME_FLAGS, text, Path(scratch) / "runtime.o", ())
            os.replace(Path(scratch) / "runtime.o", path)
    return path


def _key(compiler: HostCompiler, flags: Sequence[str], *texts: str) -> str:
    ours = (p.read_text() for p in sorted(_HERE.iterdir()) if p.suffix in (".hpp", ".cpp"))
    parts = (compiler.identity, cpu_features(), " ".join(flags), *ours, *texts)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _compile(
    compiler: HostCompiler, flags: Sequence[str], text: str, output: Path, sources: Sequence[KernelSource]
) -> None:
    command = [compiler.path, *flags, "-I", str(_HERE), "-x", "c++", "-c", "-", "-o", str(output)]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode == 0:
        return
    for index, source in enumerate(sources):
        file = re.escape(source_file(source, index))
        lines = [int(n) for n in re.findall(rf"^{file}:(\d+):.*\berror\b", done.stderr, re.MULTILINE)]
        if lines:
            raise CompileError(source.name, source.text, done.stderr, " ".join(command), tuple(lines[:5]))
    raise CompileError("the emulator", text, done.stderr, " ".join(command))


def _translation_unit(sources: Sequence[KernelSource], arch: int, prelude: str) -> str:
    parts = [
        '#include "cuda_on_host.hpp"\n#include "ptx_on_host.hpp"\n#define LIB(f) __builtin_##f\n',
        f"#define __CUDA_ARCH__ {arch * 10}\n",
        f'namespace onepass_prelude {{\n#line 1 "prelude"\n{prelude}\n}}\n',
    ]
    return "".join(parts + [_namespace(s, i, prelude) for i, s in enumerate(sources)])


def _namespace(source: KernelSource, i: int, prelude: str) -> str:
    """One kernel: its text, a way in, and where its shared memory begins and ends."""
    section = f"onepass_shared_{i}"
    hidden = '__attribute__((weak, visibility("hidden")))'
    if not source.text.startswith(prelude):
        raise ValueError(f"{source.name} does not begin with the prelude: compile it without one")
    own = source.text.removeprefix(prelude)
    text = _EXTERN_SHARED.sub(r'extern \1\2[] __asm__("onepass_dynamic_shared");', own)
    return f"""\
extern unsigned char __start_{section}[] {hidden}, __stop_{section}[] {hidden};
#undef __shared__
#define __shared__ static __attribute__((section("{section}")))
#define {source.name} onepass_{i}_{source.name}
namespace onepass_prelude {{ namespace onepass_{i} {{
#line {prelude.count(chr(10)) + 1} "{source_file(source, i)}"
{text}
#line 1 "entry"
static void entry(const void* args) {{ onepass_call({source.name}, args); }}
}} }}
extern "C" __attribute__((visibility("default"))) OnepassKernel onepass_kernel_{i};
OnepassKernel onepass_kernel_{i} = {{onepass_prelude::onepass_{i}::entry, __start_{section}, __stop_{section}}};
#undef {source.name}
"""


def _target_flags() -> tuple[str, ...]:
    # Without the instruction each fused multiply-add is a library call, right but slow; AArch64 has it.
    return ("-mfma",) if platform.machine() == "x86_64" and " fma " in cpu_features() else ()
