"""What a kernel takes: the text of `ptxas -v` in NVRTC's log or nvcc's output, and `cuobjdump -res-usage`."""

from __future__ import annotations

import re
from dataclasses import dataclass

# From sm_90 on a cubin's figure holds what the system keeps of each block's shared memory. ptxas's never does.
SYSTEM_SHARED_BYTES = 1024


@dataclass(frozen=True)
class Resources:
    """What one kernel takes, as ptxas reports it. Units: bytes a thread, of shared memory a block; registers a thread.

    A stack frame is not a spill: an array that is indexed at run time lies there too, with no spilled byte.
    """

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int = 0
    barriers: int = 0  # named ones, of the 16 that a block has

    @property
    def spill_bytes(self) -> int:
        """Stores and loads together."""
        return self.spill_store_bytes + self.spill_load_bytes


@dataclass(frozen=True)
class Usage:
    """What a cubin says of one kernel. It holds no spills: those only ptxas tells, while it compiles."""

    registers: int
    stack_bytes: int
    shared_bytes: int  # without what the system keeps


def read_resources(log: str) -> Resources:
    """The figures of one kernel in the text that ``ptxas -v`` prints, its functions' together."""

    def total(pattern: str) -> int:
        return sum(int(n) for n in re.findall(pattern, log))

    def most(pattern: str) -> int:
        return max((int(n) for n in re.findall(pattern, log)), default=0)

    return Resources(
        most(r"Used (\d+) registers"),
        total(r"(\d+) bytes spill stores"),
        total(r"(\d+) bytes spill loads"),
        total(r"(\d+) bytes stack frame"),
        total(r"(\d+)(?:\+\d+)? bytes smem"),
        most(r"used (\d+) barriers"),
    )


def resources_by_kernel(log: str) -> dict[str, Resources]:
    """The figures of every kernel in a log, by its name in the machine code.

    NVRTC's lines begin with `ptxas`, nvcc's are indented. What is said of a function that a kernel calls is not the
    kernel's: each has its own stack frame.
    """
    parts = re.split(r"Compiling entry function '([^']+)'", log)[1:]
    return {name: read_resources(_own(name, text)) for name, text in zip(*[iter(parts)] * 2, strict=True)}


def _own(name: str, text: str) -> str:
    head, *functions = re.split(r"Function properties for (\S+)", text)
    pairs = zip(*[iter(functions)] * 2, strict=True)
    return head + "".join(
        t if n == name else re.sub(r".*bytes (stack frame|spill).*", "", t) for n, t in pairs
    )


def usage_by_kernel(text: str, arch: str) -> dict[str, Usage]:
    """What `cuobjdump -res-usage` prints of one cubin, by kernel."""
    found = re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", text)
    return {n: Usage(int(r), int(s), own_shared_bytes(int(shared), arch)) for n, r, s, shared in found}


def own_shared_bytes(cubin_bytes: int, arch: str) -> int:
    """A cubin's figure without what the system keeps, which on sm_90 and later it holds where any is used."""
    recent = int(re.sub(r"\D", "", arch)) >= 90
    return max(0, cubin_bytes - SYSTEM_SHARED_BYTES) if recent and cubin_bytes else cubin_bytes
