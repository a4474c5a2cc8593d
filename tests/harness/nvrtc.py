"""NVRTC for tests: what ptxas says of one kernel, or of many that share the prelude. Needs no GPU and no driver."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onepass.analysis.resources import Resources, read_resources
from onepass.codegen.cuda_prelude import cuda_prelude
from onepass.codegen.emit import Source
from onepass.runtime import nvrtc

# Kernels of one translation unit. On two cores 192 kernels take 43 s of CPU time one by one, 28 s by sixteens.
UNIT = 16


@dataclass(frozen=True)
class Compiled:
    """A cubin, its cost, and the compiler's words."""

    cubin: bytes
    resources: Resources
    log: str


def compile_cubin(text: str, arch: int) -> Compiled:
    """Raises: NoNvrtc, CompileError."""
    cubin, log = nvrtc.compile_text(text, "kernel", f"sm_{arch}")
    return Compiled(cubin, read_resources(log), log)


def resources(sources: Iterable[Source], arch: str) -> dict[str, Resources]:
    """What each text takes, compiled together: `ptxas` looks at one kernel at a time.

    Raises: NoNvrtc, CompileError.
    """
    distinct = list({s.text: s for s in sources}.values())
    found: dict[str, Resources] = {}
    for start in range(0, len(distinct), UNIT):
        found |= _unit(distinct[start : start + UNIT], arch)
    return found


def _unit(sources: Sequence[Source], arch: str) -> dict[str, Resources]:
    parts = [cuda_prelude()]
    for i, s in enumerate(sources):
        body = s.text.removeprefix(cuda_prelude())
        parts.append(
            f"#define {s.name} kernel_{i}\nnamespace of_kernel_{i} {{\n{body}\n}}\n#undef {s.name}\n"
        )
    _, log = nvrtc.compile_text("".join(parts), "unit", arch)
    reports = re.split(r"Compiling entry function 'kernel_(\d+)'", log)[1:]
    found = {sources[int(i)].text: read_resources(r) for i, r in zip(*[iter(reports)] * 2, strict=True)}
    if len(found) != len(sources):
        raise AssertionError(f"ptxas spoke of {len(found)} kernels of {len(sources)}")
    return found
