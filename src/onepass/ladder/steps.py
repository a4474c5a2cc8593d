"""A rung at one shape as kernels to launch: text, entry point, grid, block and arguments. A learner's file too."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from onepass.device import Device
from onepass.errors import BadRung
from onepass.ladder.expression import evaluate
from onepass.ladder.generated import generate
from onepass.ladder.rungs import Ladder, Launch, Rung

_ENTRY = re.compile(r"__global__\s+void\s*(?:__launch_bounds__\s*\([^;{]*?\)\s*\n?\s*)?(\w+)\s*\(")
_LAUNCH = re.compile(
    r"^//\s*launch:\s*grid\s*=\s*(?P<grid>.+?)\s+block\s*=\s*(?P<block>.+?)\s*$", re.MULTILINE
)


@dataclass(frozen=True)
class Step:
    """One kernel ready to compile. An argument is a tensor's name, or a number.

    ``block_struct`` packs the arguments into one struct of eight-byte fields, as generated kernels take them; otherwise
    each is a parameter, numbers as int.
    """

    kernel: str
    text: str
    grid: int
    block: int
    arguments: tuple[str | int, ...]
    shared_bytes: int = 0
    block_struct: bool = False

    def values(self, addresses: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(addresses[a] if isinstance(a, str) else a for a in self.arguments)

    def packed(self, addresses: Mapping[str, int]) -> bytes:
        """The bytes of the arguments as a device gets them."""
        kinds = "".join("q" if self.block_struct or isinstance(a, str) else "i" for a in self.arguments)
        return struct.pack(kinds, *self.values(addresses))


@dataclass(frozen=True)
class Steps:
    """All kernels of a rung at one shape, and the tensors between them (name → floats)."""

    steps: tuple[Step, ...]
    scratch: Mapping[str, int]
    chain: float


def steps_of(ladder: Ladder, rung: Rung, rows: int, cols: int, device: Device) -> Steps:
    """A rung at a shape; a generated one is written for `device`.

    Raises: BadRung where the shape does not meet what the rung requires.
    """
    names = rung.names(rows, cols)
    if not evaluate(rung.requires, names):
        raise BadRung(
            rung.file or rung.name, f"it requires {rung.requires}, and cols is {cols}", "Choose other --cols."
        )
    if rung.generated:
        return _generated(ladder, rung, rows, cols, device)
    text = specialised(ladder.text(rung), cols)
    scratch = {name: int(evaluate(size, names)) for name, size in rung.scratch.items()}
    return Steps(
        tuple(_step(launch, text, names) for launch in rung.launches),
        scratch,
        float(evaluate(rung.chain, names)),
    )


def specialised(text: str, cols: int) -> str:
    """A text with its row length, where it asks for one. Lines keep their numbers."""
    defined = f"#define COLS {cols}\n" if re.search(r"\bCOLS\b", text) else ""
    return f"{defined}#line 1\n{text}"


def _step(launch: Launch, text: str, names: Mapping[str, int]) -> Step:
    return Step(
        launch.kernel,
        text,
        int(evaluate(launch.grid, names)),
        int(evaluate(launch.block, names)),
        (*launch.arguments, names["rows"], names["cols"]),
    )


def _generated(ladder: Ladder, rung: Rung, rows: int, cols: int, device: Device) -> Steps:
    made = generate(
        ladder.function(f"generate_{rung.generated}"), ladder.operators[rung.operator], rows, cols, device
    )
    step = Step(
        made.source.name,
        made.source.text,
        made.grid,
        made.threads,
        made.arguments,
        made.shared_bytes,
        block_struct=True,
    )
    return Steps((step,), {}, made.chain)


def learner(path: Path, ladder: Ladder, against: Rung) -> tuple[Ladder, Rung]:
    """A learner's file as a rung of a ladder, above the rung it is judged against.

    It takes that rung's arguments. Its launch is that rung's, or what a line `// launch: grid=… block=…` says.

    Raises: BadRung for a file that can't be read or does not hold one kernel.
    """
    try:
        text = path.read_text()
    except OSError as e:
        raise BadRung(str(path), f"it can't be read: {e.strerror}", "Name a .cu file.") from None
    kernels = _ENTRY.findall(text)
    if len(kernels) != 1:
        found = ", ".join(kernels) or "none"
        raise BadRung(
            str(path),
            f"it must hold one kernel, and holds {found}",
            'Write one extern "C" __global__ function a file.',
        )
    if len(against.launches) != 1:
        raise BadRung(
            str(path),
            f"{against.name} is {len(against.launches)} kernels",
            "Judge against a rung of one kernel.",
        )
    said = _LAUNCH.search(text)
    usual = against.launches[0]
    grid, block = (said["grid"], said["block"]) if said else (usual.grid, usual.block)
    launch = Launch(kernels[0], usual.arguments, grid, block)
    rung = replace(
        against,
        name=path.stem,
        file=str(path.resolve()),
        below=against.name,
        launches=(launch,),
        changed=f"a learner's kernel, judged against {against.name}",
        changed_zh=f"学习者的内核,与 {against.name} 比较",
        because="",
        because_zh="",
        predicted={},
        claims=(),
        correction="",
        correction_zh="",
        fails=(),
        wrong="",
        waits="",
        requires=against.requires if not said else "cols > 0",
    )
    return replace(ladder, rungs=(against, rung), is_learners=True), rung
