"""What the emulator finds wrong with a kernel."""

from __future__ import annotations

from dataclasses import dataclass

# In the order of `FaultKind` in runtime.hpp.
_KINDS: tuple[tuple[str, str], ...] = (
    ("none", ""),
    ("out-of-bounds", "check the guard of the last vector and the row of the last group of lanes"),
    ("misaligned", "use narrower loads, or choose the vector width from the pointer and the row stride"),
    ("write-to-read-only", "the buffer was handed over as an input: store to an output"),
    (
        "read-only-load-of-written",
        "load with Hint plain: the read-only path may serve old bytes of memory written here",
    ),
    ("unwritten-shared", "write the element first, put a barrier between, or leave it out of the read"),
    ("shared-race", "put __syncthreads(), or inside a warp __syncwarp(), between the two accesses"),
    ("barrier-divergence", "every thread of a block must reach the same __syncthreads()"),
    (
        "missing-lane",
        "every lane in the mask must reach the shuffle, and the lane it reads must be in the mask",
    ),
    ("warp-divergence", "lanes of one mask wait in different places: move the collective out of the branch"),
    ("stack-overflow", "the thread needs more than the emulator's 64 KiB of stack: keep arrays smaller"),
    ("too-many-accesses", "a loop may not end; else raise max_accesses"),
    ("trap", "the kernel called __trap()"),
)


class CompileFault(Exception):
    """The host compiler refused a kernel text: its message names lines of that text."""

    def __init__(self, message: str, command: str) -> None:
        self.message, self.command = message, command
        super().__init__(f"{message}\ncompiled by: {command}\nfix the line the compiler names first")


@dataclass
class KernelFault(Exception):
    """A kernel did what no device allows, or what none defines."""

    kind: str  # one of the names above
    kernel: str
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    address: int | None  # of a memory access
    bytes: int  # of that access
    buffer: str | None  # the buffer hit, or the nearest with the offset in bytes
    other: int | None  # the second thread of a race, or the lane that is missing
    lines: tuple[tuple[int, str], ...]  # line numbers and texts, innermost first; empty if not known
    advice: str

    def __str__(self) -> str:
        where = f"{self.kernel}: {self.kind} in block {self.block} thread {self.thread}"
        if self.address is not None:
            where += f", {self.bytes} bytes at {self.address:#x}"
        if self.buffer:
            where += f" ({self.buffer})"
        if self.other is not None:
            where += f", with thread or lane {self.other}"
        stack = "".join(f"\n  line {number}: {text.strip()}" for number, text in self.lines)
        return f"{where}{stack}\n{self.advice}"


def kind_and_advice(number: int) -> tuple[str, str]:
    """Name and advice of a runtime fault number."""
    return _KINDS[number]
