"""Compile CUDA C++ kernel texts with the host compiler."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from onepass.emulate.faults import CompileFault
from onepass.emulate.launch import EmulatedKernel, Module

_HERE = Path(__file__).parent
_EXTERN_SHARED = re.compile(r"extern\s+__shared__\s+([^;\[]*?)(\w+)\s*\[\s*\]\s*;")

# -O1 compiles in half the time of -O2 and keeps register vectors in registers, so that they cause no hooks.
# FMA contraction as NVRTC does it by default; -mfma so that it is one instruction.
_KERNEL_FLAGS = ["-O1", "-g", "-fPIC", "-std=c++17", "-fsanitize=thread", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-Wno-unknown-pragmas", "-Wno-attributes"]
_RUNTIME_FLAGS = (
    ["-O2", "-g1", "-fPIC", "-std=c++17", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-Wall", "-Wextra"]
)


@dataclass(frozen=True)
class KernelSource:
    """A kernel text and the name of the `extern "C" __global__` function in it."""

    name: str
    text: str


def compile_for_host(
    source: str, name: str, arch: int = 90, cache_dir: Path | str | None = None
) -> EmulatedKernel:
    """Compile one kernel text for the CPU; see `compile_many`."""
    return compile_many([KernelSource(name, source)], arch, cache_dir)[0]


def compile_many(
    sources: Sequence[KernelSource], arch: int = 90, cache_dir: Path | str | None = None
) -> list[EmulatedKernel]:
    """Compile kernel texts in one go, each in a namespace of its own, so that names may repeat.

    `arch` is what `__CUDA_ARCH__` says, 90 for sm_90. Objects are kept in `cache_dir` by content, else in a
    temporary folder.

    Raises: CompileFault with the compiler's message, or if there is no compiler.
    """
    compiler = _compiler()
    folder = Path(cache_dir) if cache_dir is not None else Path(tempfile.mkdtemp(prefix="onepass-emulate-"))
    folder.mkdir(parents=True, exist_ok=True)
    runtime = _build(compiler, (_HERE / "runtime.cpp").read_text(), _RUNTIME_FLAGS, folder, ".o", ())
    files = [f"{i}_{s.name}.cu" for i, s in enumerate(sources)]
    text = _translation_unit(sources, files, arch)
    library = _build(compiler, text, [*_KERNEL_FLAGS, *_target_flags()], folder, ".so", (runtime,))
    module = Module(library, {f: s.text for f, s in zip(files, sources, strict=True)})
    return [
        EmulatedKernel(module, s.name, f"onepass_kernel_{i}", f)
        for i, (s, f) in enumerate(zip(sources, files, strict=True))
    ]


def _translation_unit(sources: Sequence[KernelSource], files: Sequence[str], arch: int) -> str:
    parts = [
        '#include "cuda_on_host.hpp"\n#include "ptx_on_host.hpp"\n',
        f"#define __CUDA_ARCH__ {arch * 10}\n",
    ]
    for i, (source, file) in enumerate(zip(sources, files, strict=True)):
        section = f"onepass_shared_{i}"
        body = _EXTERN_SHARED.sub(r'extern \1\2[] __asm__("onepass_dynamic_shared");', source.text)
        parts.append(
            f'extern unsigned char __start_{section}[] __attribute__((weak, visibility("hidden")));\n'
            f'extern unsigned char __stop_{section}[] __attribute__((weak, visibility("hidden")));\n'
            "#undef __shared__\n"
            f'#define __shared__ static __attribute__((section("{section}")))\n'
            f"#define {source.name} onepass_{i}_{source.name}\n"
            f"namespace onepass_{i} {{\n"
            f'#line 1 "{file}"\n{body}\n'
            f'#line 1 "entry"\n'
            f"static void entry(const void* args) {{ onepass_call({source.name}, args); }}\n"
            "}\n"
            f'extern "C" __attribute__((visibility("default"))) OnepassKernel onepass_kernel_{i};\n'
            f"OnepassKernel onepass_kernel_{i} = "
            f"{{onepass_{i}::entry, __start_{section}, __stop_{section}}};\n"
            f"#undef {source.name}\n"
        )
    return "".join(parts)


def _build(
    compiler: str, text: str, flags: Sequence[str], folder: Path, suffix: str, objects: Sequence[Path]
) -> Path:
    """The object or library of `text`, from the folder if it is there."""
    headers = "".join(p.read_text() for p in sorted(_HERE.glob("*.hpp")))
    key_parts = (text, headers, " ".join(flags), _version(compiler), *(p.name for p in objects))
    key = hashlib.sha256("\0".join(key_parts).encode()).hexdigest()[:32]
    built = folder / f"{key}{suffix}"
    if built.exists():
        return built
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source, result = Path(scratch) / "unit.cpp", Path(scratch) / f"unit{suffix}"
        compiled = Path(scratch) / "unit.o"
        source.write_text(text)
        _run([compiler, *flags, "-I", str(_HERE), "-c", str(source), "-o", str(compiled)])
        if suffix == ".so":
            # Linked without -fsanitize=thread: the hooks are the runtime's.
            _run([compiler, "-shared", str(compiled), *map(str, objects), "-lm", "-o", str(result)])
        os.replace(result, built)  # atomic, so that two processes may build the same text
    return built


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompileFault(done.stderr.strip(), " ".join(command))


def _compiler() -> str:
    wanted = [c for c in (os.environ.get("CXX"), "g++", "clang++") if c]
    for candidate in wanted:
        if found := shutil.which(candidate):
            return found
    raise CompileFault(f"no C++ compiler among {', '.join(wanted)}: install g++ or set CXX", "none")


@lru_cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout


def _target_flags() -> list[str]:
    # x86-64-v3 has FMA; without it each fused multiply-add is a library call, right but slow.
    if platform.machine() != "x86_64":
        return []
    flags = Path("/proc/cpuinfo")
    return ["-mfma"] if flags.exists() and " fma " in flags.read_text() else []
