"""A ladder as its folder has it: rungs.toml, reference.py and one .cu file a rung. A new ladder is such a folder."""

from __future__ import annotations

import difflib
import importlib.util
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from torch import Tensor

from onepass.errors import BadLadder, NoSuchRung
from onepass.ladder.expression import evaluate

HERE = Path(__file__).parent
LIST = "rungs.toml"
FLOAT_BYTES = 4
Extent = Literal["full", "col", "row"]


@dataclass(frozen=True)
class Operator:
    """What a rung computes: named tensors in and out, each [rows, cols], [cols] or [rows, n]."""

    name: str
    inputs: Mapping[str, Extent]
    outputs: Mapping[str, Extent]
    flops: str
    counted: str = ""
    unfused_bytes: str = ""

    def numel(self, extent: Extent, rows: int, cols: int) -> int:
        return {"full": rows * cols, "col": cols, "row": rows}[extent]

    def ideal_bytes(self, rows: int, cols: int) -> int:
        """Each input read once, each output written once; fp32."""
        extents = [*self.inputs.values(), *self.outputs.values()]
        return FLOAT_BYTES * sum(self.numel(e, rows, cols) for e in extents)

    def count_flops(self, rows: int, cols: int) -> int:
        return int(evaluate(self.flops, {"rows": rows, "cols": cols}))

    @property
    def reads(self) -> int:
        return list(self.inputs.values()).count("full")

    @property
    def writes(self) -> int:
        return list(self.outputs.values()).count("full")


@dataclass(frozen=True)
class Data:
    """Random inputs: full tensors about `mean` with `deviation`, row vectors about 0 with 1."""

    name: str
    mean: float
    deviation: float


@dataclass(frozen=True)
class Launch:
    """One kernel of a rung: its arguments by name, then rows and cols; grid and block as expressions."""

    kernel: str
    arguments: tuple[str, ...]
    grid: str
    block: str


@dataclass(frozen=True)
class Rung:
    """One version: what differs from the rung below, what that was expected to bring, and how it is launched."""

    name: str
    operator: str
    changed: str
    because: str
    file: str = ""
    generated: str = ""  # the name of an operator that onepass writes the kernel for
    below: str = ""
    predicted: Mapping[str, float] = field(default_factory=dict)  # cols → speed relative to the rung below
    claims: tuple[str, ...] = ()
    correction: str = ""
    fails: tuple[str, ...] = ()  # names of data on which it is known to be wrong
    wrong: str = ""  # the kind of fault of a rung that is wrong on purpose
    requires: str = "cols > 0"
    chain: str = "cols"  # the longest chain of additions: the error bound is derived from it
    atomics: str = "0"  # additions to global memory
    waits: str = ""  # times a row waits for memory, one after the other; empty: guessed from what it executes
    sizes: Mapping[str, str] = field(default_factory=dict)
    scratch: Mapping[str, str] = field(
        default_factory=dict
    )  # tensors between kernels: floats, as expressions
    launches: tuple[Launch, ...] = ()
    changed_zh: str = ""
    because_zh: str = ""
    correction_zh: str = ""

    def names(self, rows: int, cols: int) -> dict[str, int]:
        """Every size that the rung's expressions may use."""
        found = {"rows": rows, "cols": cols}
        for name, text in self.sizes.items():
            found[name] = evaluate(text, found)
        return found

    def says(self, what: Literal["changed", "because", "correction"], language: str) -> str:
        """A sentence in a language; the English one where there is no other."""
        return str((language == "zh" and getattr(self, f"{what}_zh")) or getattr(self, what))

    def prediction(self, cols: int) -> float | None:
        """The predicted speed relative to the rung below, at the nearest columns that it was stated for."""
        if not self.predicted:
            return None
        return self.predicted[min(self.predicted, key=lambda c: abs(int(c) - cols))]


@dataclass(frozen=True)
class Ladder:
    """The rungs of one folder, lowest first."""

    name: str
    title: str
    title_zh: str
    folder: Path
    operators: Mapping[str, Operator]
    data: tuple[Data, ...]
    rungs: tuple[Rung, ...]
    predicted_for: str
    is_learners: bool = False  # its last rung is a learner's file

    def rung(self, name: str) -> Rung:
        """Raises: NoSuchRung with the nearest names."""
        for rung in self.rungs:
            if rung.name == name:
                return rung
        raise NoSuchRung(name, self.name, near(name, [r.name for r in self.rungs]))

    def text(self, rung: Rung) -> str:
        return (self.folder / rung.file).read_text()

    @property
    def reference(self) -> ModuleType:
        return _module(self.folder / "reference.py")

    def function(self, name: str) -> Callable[..., Tensor]:
        """A function of reference.py. Raises: BadLadder."""
        found = getattr(self.reference, name, None)
        if not callable(found):
            raise BadLadder(str(self.folder / "reference.py"), f"it has no function {name}")
        return found  # type: ignore[no-any-return]


def known() -> list[str]:
    """Names of the ladders that come with onepass."""
    return sorted(p.parent.name for p in HERE.glob(f"*/{LIST}"))


def load(folder: Path) -> Ladder:
    """Read a ladder.

    Raises: BadLadder, naming the file and what is wrong in it.
    """
    path = folder / LIST
    try:
        raw = tomllib.loads(path.read_text())
        return _ladder(folder, raw)
    except OSError as e:
        raise BadLadder(str(path), f"it can't be read: {e.strerror}") from None
    except KeyError as e:
        raise BadLadder(str(path), f"it has no {e.args[0]}") from None
    except (TypeError, ValueError) as e:
        raise BadLadder(str(path), str(e)) from None


def near(name: str, names: list[str]) -> tuple[str, ...]:
    """The nearest of some names, or all of them where none is near."""
    return tuple(difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names)


def _ladder(folder: Path, raw: Mapping[str, Any]) -> Ladder:
    operators = {
        name: _made(Operator, f"operator {name}", {"name": name, **given})
        for name, given in raw["operators"].items()
    }
    title, stated = raw.get("title", folder.name), raw.get("predictions")
    ladder = Ladder(
        name=folder.name,
        title=title,
        title_zh=raw.get("title_zh", title),
        folder=folder,
        operators=operators,
        data=tuple(_made(Data, "[[data]]", d) for d in raw["data"]),
        rungs=tuple(_rung(r) for r in raw["rungs"]),
        predicted_for=f"{stated['device']}, rows = {stated['rows']}" if stated else "",
    )
    _check(ladder)
    return ladder


def _rung(raw: Mapping[str, Any]) -> Rung:
    launches = tuple(
        Launch(x["kernel"], tuple(x["arguments"]), x["grid"], x["block"]) for x in raw.get("launches", ())
    )
    lists = {k: tuple(raw[k]) for k in ("claims", "fails") if k in raw}
    return _made(Rung, f"rung {raw['name']}", {**raw, **lists, "launches": launches})


Made = TypeVar("Made", Operator, Data, Rung)


def _made(kind: type[Made], what: str, given: Mapping[str, Any]) -> Made:
    """Raises: ValueError for a field that there is not, with those near it, and for one that is left out."""
    known: dict[str, Field[Any]] = {f.name: f for f in fields(kind)}
    if unknown := [n for n in given if n not in known]:
        raise ValueError(
            f"{what}: {unknown[0]!r} is not known; near it: {', '.join(near(unknown[0], [*known]))}"
        )
    needed = (n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING)
    if missing := [n for n in needed if n not in given]:
        raise ValueError(f"{what} has no {', '.join(missing)}")
    return kind(**given)


def _check(ladder: Ladder) -> None:
    """Raises: ValueError for what no later stage could make sense of."""
    names = [r.name for r in ladder.rungs]
    if twice := [n for n in dict.fromkeys(names) if names.count(n) > 1]:
        raise ValueError(f"two rungs are named {twice[0]}")
    if not (ladder.rungs and ladder.data):
        raise ValueError("it needs a rung, and data for it")
    if not ladder.predicted_for and any(r.predicted for r in ladder.rungs):
        raise ValueError("it predicts, and has no [predictions] with the device and rows that this is for")
    for name, operator in ladder.operators.items():
        if [*operator.outputs.values()] != ["full"]:
            raise ValueError(f"operator {name} has one output, of extent full")
    for i, rung in enumerate(ladder.rungs):
        if rung.below and rung.below not in names[:i]:
            raise ValueError(f"rung {rung.name}: {rung.below!r} is no rung before it")
        if rung.operator not in ladder.operators:
            raise ValueError(f"rung {rung.name}: no operator {rung.operator!r}")
        if bool(rung.file) == bool(rung.generated):
            raise ValueError(f"rung {rung.name} needs either a file or what it is generated from")
        if rung.file and not rung.launches:
            raise ValueError(f"rung {rung.name} has no launches")
        if rung.file and not (ladder.folder / rung.file).is_file():
            raise ValueError(f"rung {rung.name}: no file {rung.file}")
        operator = ladder.operators[rung.operator]
        _understood(rung, operator)
        tensors = {*operator.inputs, *operator.outputs, *rung.scratch}
        for launch in rung.launches:
            if unknown := [a for a in launch.arguments if a not in tensors]:
                raise ValueError(
                    f"rung {rung.name}: {launch.kernel} takes {', '.join(unknown)}, which is no tensor"
                )


def _understood(rung: Rung, operator: Operator) -> None:
    """Raises: ValueError for an expression with a name or a sign that there is not; a shape may still be no rung's."""
    try:
        names = rung.names(64, 256)
        grids = [text for launch in rung.launches for text in (launch.grid, launch.block)]
        for text in (rung.requires, rung.chain, rung.atomics, rung.waits, *rung.scratch.values(), *grids):
            if text:
                evaluate(str(text), names)
        for text in (operator.flops, operator.unfused_bytes):
            if text:
                evaluate(str(text), {"rows": 64, "cols": 256})
    except ValueError as error:
        raise ValueError(f"rung {rung.name}: {error}") from None
    except ArithmeticError:
        pass


@cache
def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"onepass_ladder_{path.parent.name}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BadLadder(str(path), "it can't be read")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
