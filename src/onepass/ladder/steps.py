"""A rung at one shape as kernels to launch: text, entry point, grid, block and arguments. A learner's file too."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from onepass.device import Device
from onepass.emulate.handwritten import kernels_of, without_comments
from onepass.errors import BadRung, NotAtThisShape
from onepass.ladder.expression import evaluate
from onepass.ladder.generated import generate
from onepass.ladder.rungs import Ladder, Launch, Rung

_ENTRY = re.compile(r"__global__\s+void\s*(?:__launch_bounds__\s*\([^;{]*?\)\s*\n?\s*)?(\w+)\s*\(")
_LAUNCH = re.compile(
    r"^//\s*launch:\s*grid\s*=\s*(?P<grid>.+?)\s+block\s*=\s*(?P<block>.+?)\s*$", re.MULTILINE
)


_LAUNCH_LINE = re.compile(r"^//\s*launch\s*:.*$", re.MULTILINE)
MAX_THREADS = 1024  # of a block, on every device


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

    Raises: NotAtThisShape where the shape does not meet what the rung requires, BadRung for a launch of no size.
    """
    names = rung.names(rows, cols)
    if not evaluate(rung.requires, names):
        raise NotAtThisShape(
            rung.file or rung.name, f"it requires {rung.requires}, and cols is {cols}", "Choose other --cols."
        )
    if rung.generated:
        return _generated(ladder, rung, rows, cols, device)
    text = specialised(ladder.text(rung), cols)
    scratch = {name: int(evaluate(size, names)) for name, size in rung.scratch.items()}
    return Steps(
        tuple(_step(rung, launch, text, names) for launch in rung.launches),
        scratch,
        float(evaluate(rung.chain, names)),
    )


def specialised(text: str, cols: int) -> str:
    """A text with its row length, where it asks for one. Lines keep their numbers."""
    defined = f"#define COLS {cols}\n" if re.search(r"\bCOLS\b", text) else ""
    return f"{defined}#line 1\n{text}"


def _step(rung: Rung, launch: Launch, text: str, names: Mapping[str, int]) -> Step:
    return Step(
        launch.kernel,
        text,
        _size(rung, "grid", launch.grid, names, 2**31 - 1),
        _size(rung, "block", launch.block, names, MAX_THREADS),
        (*launch.arguments, names["rows"], names["cols"]),
    )


def _size(rung: Rung, what: str, text: str, names: Mapping[str, int], most: int) -> int:
    """Raises: BadRung for what no device launches or nobody understands."""
    known = ", ".join(f"{n} = {v}" for n, v in names.items())
    try:
        size = int(evaluate(text, names))
    except (ValueError, TypeError, ArithmeticError) as error:
        raise BadRung(rung.file or rung.name, f"{what}={text}: {error}", f"Known are {known}.") from None
    if not 1 <= size <= most:
        raise BadRung(
            rung.file or rung.name, f"{what}={text} is {size} where {known}", f"A {what} is 1 to {most}."
        )
    return size


def _generated(ladder: Ladder, rung: Rung, rows: int, cols: int, device: Device) -> Steps:
    function, operator = ladder.function(f"generate_{rung.generated}"), ladder.operators[rung.operator]
    made = generate(function, operator, rows, cols, device)
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


def _takes_the_same(path: Path, text: str, kernel: str, usual: Launch, against: Rung) -> None:
    """Raises: BadRung for another number of parameters, or a launch line that would be passed over."""
    line = _LAUNCH_LINE.search(text)
    if line and not _LAUNCH.search(text):
        raise BadRung(
            str(path), f"`{line.group().strip()}` is no launch", "Write // launch: grid=rows block=128"
        )
    declared = next((k for k in kernels_of(without_comments(text)) if k.name == kernel), None)
    wanted = (*usual.arguments, "rows", "cols")
    if declared and len(declared.parameters) != len(wanted):
        raise BadRung(
            str(path),
            f"{kernel} takes {', '.join(declared.parameters) or 'nothing'}; {against.name} takes {', '.join(wanted)}",
            "Take what that rung takes, in its order: it is called the same way.",
        )


def _unlike(path: Path, ladder: Ladder) -> str:
    """A name for a file that no rung has."""
    taken = {r.name for r in ladder.rungs}
    return next(n for n in (path.stem, path.name, str(path.resolve())) if n not in taken)


def learner(path: Path, ladder: Ladder, against: Rung) -> tuple[Ladder, Rung]:
    """A learner's file as a rung of a ladder, above the rung it is judged against.

    It takes that rung's arguments. Its launch is that rung's, or what a line `// launch: grid=… block=…` says.

    Raises: BadRung for a file that can't be read or does not hold one kernel, and for a rung that is wrong on purpose.
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
    if against.wrong:
        raise BadRung(
            str(path),
            f"{against.name} is wrong on purpose and never timed",
            "Judge against a rung that is right.",
        )
    said = _LAUNCH.search(text)
    usual = against.launches[0]
    _takes_the_same(path, text, kernels[0], usual, against)
    grid, block = (said["grid"], said["block"]) if said else (usual.grid, usual.block)
    launch = Launch(kernels[0], usual.arguments, grid, block)
    rung = replace(
        against,
        name=_unlike(path, ladder),
        file=str(path.resolve()),
        below=against.name,
        launches=(launch,),
        changed=f"a learner's kernel, judged against {against.name}",
        changed_zh=f"学习者的内核，与 {against.name} 比较",
        because="",
        because_zh="",
        predicted={},
        claims=(),
        correction="",
        correction_zh="",
        fails=(),
        wrong="",
        requires=against.requires if not said else "cols > 0",
    )
    return replace(ladder, rungs=(against, rung), is_learners=True), rung
