"""What the compiler makes of a rung's kernels for a device: registers, spills, shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from onepass.codegen.emit import Source
from onepass.errors import BadRung, CompileError, NoNvrtc
from onepass.ladder.machine import Machine, Occupied, occupied
from onepass.ladder.steps import Step
from onepass.runtime.load import Binary, binary

# The oldest architecture of every NVRTC; stands in where none compiles for an older device.
OLDEST = "sm_75"


@dataclass(frozen=True)
class Compiled:
    """One kernel as machine code. ``arch`` is what it was compiled for: not the device's own where that is refused."""

    step: Step
    code: bytes
    arch: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    occupied: Occupied


def compile_step(step: Step, machine: Machine) -> Compiled:
    """Compile a kernel for a device, or for the nearest architecture that a compiler is there for.

    Raises: NoNvrtc where there is none at all; BadRung with the compiler's words.
    """
    made, arch = _binary(step, machine.device.arch)
    found = made.resources
    shared = found.shared_bytes + step.shared_bytes
    return Compiled(
        step,
        made.code,
        arch,
        found.registers,
        found.spill_bytes,
        shared,
        occupied(machine, found.registers, step.block, shared),
    )


def _binary(step: Step, arch: str) -> tuple[Binary, str]:
    source = Source(step.kernel, step.text, ())
    try:
        return binary(source, arch), arch
    except NoNvrtc:
        if arch == OLDEST or int(arch.removeprefix("sm_")) > int(OLDEST.removeprefix("sm_")):
            raise
        return binary(source, OLDEST), OLDEST
    except CompileError as error:
        raise BadRung(
            step.kernel, f"the compiler refuses it\n{error.what()}", "Correct the line that it names."
        ) from None
