"""The host C++ compiler: found, asked who it is, and made to turn one source text into a shared object."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from onepass import settings
from onepass.errors import BadSetting, CompileError, NoCompiler
from onepass.runtime.cache import DiskCache, Entry, cache_key

# Each flag with its reason:
#   -O3 -march=native      kernels are compiled where they run; the cache key holds the processor's features.
#   -fno-math-errno        sqrt and fma become instructions; nobody reads errno.
#   -fno-trapping-math     comparisons and selects may be if-converted; nobody reads the exception flags.
#   -ffp-contract=off      a * b + c rounds twice, as PyTorch does: contracted, x*x - x*x is not 0, and an
#                          overflow that PyTorch shows as NaN (inf - inf) shows as inf. Kernels and prelude
#                          write op_fma where one rounding is wanted, which is where the speed is.
#   no -ffast-math         NaN and infinity must be right, and sums keep the order they are written in.
#   -fno-semantic-interposition -fno-exceptions -fno-rtti -fno-asynchronous-unwind-tables
#                          nothing in a kernel is replaced, thrown or unwound: smaller, quicker to compile.
#   -Wno-psabi             vectors are passed between functions of one file only.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fno-semantic-interposition",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-Wno-psabi",
    "-fPIC",
    "-shared",
    "-pipe",
)


@dataclass(frozen=True)
class HostCompiler:
    """A compiler on this machine; `identity` changes when the compiler does."""

    path: str
    identity: str

    def command(self, output: Path, options: tuple[str, ...] = ()) -> list[str]:
        """The command that reads a source from standard input and writes a shared object."""
        extra = settings.CXX_FLAGS.read()
        return [self.path, *FLAGS, *options, *extra, "-x", "c++", "-", "-o", str(output)]


def candidates() -> tuple[str, ...]:
    """The compilers looked for, in order: what ONEPASS_CXX names, and where it is not set CXX, g++, clang++."""
    named = settings.CXX.read()
    if named:
        return (named,)
    return tuple(dict.fromkeys(n for n in (os.environ.get("CXX", "").strip(), "g++", "clang++") if n))


def find_compiler() -> HostCompiler:
    """Find the host compiler.

    Raises: BadSetting if the one that ONEPASS_CXX names is not there, NoCompiler if none is. CXX may be set for other
    programs, even to a command with arguments: one that is not there is passed over.
    """
    looked_for = candidates()
    for name in looked_for:
        path = shutil.which(name)
        if path:
            return HostCompiler(path, _identity(path))
    if settings.CXX.read():
        raise BadSetting(settings.CXX.name, looked_for[0], "a program that can be run")
    raise NoCompiler(looked_for)


def _identity(path: str) -> str:
    """Name a compiler without running it (which would cost a process each time a cached kernel is loaded).

    A package upgrade changes the program file; its resolved name holds the version on most systems.
    """
    real = os.path.realpath(path)
    stat = os.stat(real)
    return f"{real}:{stat.st_size}:{stat.st_mtime_ns}"


@lru_cache(maxsize=1)
def cpu_features() -> str:
    """What -march=native depends on: the architecture, the processor's name and its feature flags."""
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    found: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo") as f:  # stops within the first processor: the file has a copy for each
            for line in f:
                key, _, value = line.partition(":")
                if key.strip() in wanted:
                    found[key.strip()] = value.strip()
                elif not line.strip():
                    break
    except OSError:
        found["processor"] = platform.processor()
    return f"{platform.machine()};" + ";".join(f"{k}={found[k]}" for k in sorted(found))


def compile_shared(
    source: str,
    output: Path,
    *,
    name: str,
    options: tuple[str, ...] = (),
    compiler: HostCompiler | None = None,
) -> None:
    """Compile one C++ source text to a shared object at `output`.

    Raises: BadSetting, NoCompiler if there is none, CompileError with the numbered lines and the message if it refuses.
    """
    cc = compiler or find_compiler()
    command = cc.command(output, options)
    try:
        done = subprocess.run(command, input=source, text=True, capture_output=True, check=False)
    except OSError as e:
        raise CompileError(name, source, str(e), " ".join(command)) from e
    if done.returncode != 0:
        raise CompileError(name, source, done.stderr, " ".join(command), lines_named(done.stderr))
    if not output.exists() or output.stat().st_size == 0:
        raise CompileError(name, source, f"{cc.path} succeeded but wrote nothing", " ".join(command))


def compile_cached(
    source: str,
    *,
    name: str,
    cache: DiskCache,
    options: tuple[str, ...] = (),
    metadata: Mapping[str, Any] | None = None,
) -> Entry:
    """Compile one C++ source text, or take it from the cache; `metadata` is kept beside it.

    Raises: BadSetting, NoCompiler, CompileError.
    """
    cc = find_compiler()
    all_options = (*FLAGS, *options, *settings.CXX_FLAGS.read())
    key = cache_key(source, all_options, cpu_features(), cc.identity)

    def build(path: Path) -> Mapping[str, Any]:
        start = time.perf_counter()
        compile_shared(source, path, name=name, options=options, compiler=cc)
        compile_ms = round((time.perf_counter() - start) * 1e3, 1)
        return {**(metadata or {}), "kernel": name, "compiler": cc.path, "compile_ms": compile_ms}

    return cache.get_or_build(key, ".so", build)


def lines_named(message: str) -> tuple[int, ...]:
    """The source lines that a compiler's message calls errors, at most the first five."""
    lines = (int(n) for n in re.findall(r"^<stdin>:(\d+):(?:\d+:)? (?:fatal )?error", message, re.MULTILINE))
    return tuple(dict.fromkeys(lines))[:5]
