"""What ``torch.compile(mode=…, options=…)`` may say to the back end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch

from onepass import settings
from onepass.errors import BadOption, BadSetting
from onepass.ops.table import BY_ATEN

# PyTorch's own modes. All are taken, none changes anything: kernels are chosen by the time model, not by timing, and
# whether launches are recorded in a CUDA graph is the caller's to decide.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def _names(value: Any) -> frozenset[str]:
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise TypeError(value)
    return frozenset(value)


def _wrong_names(names: Iterable[str]) -> str:
    """What names of ops were expected to be, where one of them is no op that a graph may hold; empty if all may be."""
    for name in names:
        if not _may_be_in_graphs(name):
            known = sorted({aten.split(".")[0] for aten in BY_ATEN})
            near = ", ".join(get_close_matches(name.removeprefix("aten.").split(".")[0], known)) or "none"
            return f"a list of names of ops as graphs hold them (not {name!r}; near it: {near})"
    return ""


def _may_be_in_graphs(name: str) -> bool:
    """Whether a name, with its overload or without, is that of an op which is not made of others before we see it."""
    if any(name in (aten, aten.split(".")[0]) for aten in BY_ATEN):
        return True
    short = name.removesuffix(".default")  # as the dispatcher has it
    wanted = (f"aten::{short}", *([] if name.startswith("aten.") else [short.replace(".", "::", 1)]))
    ops = [
        op for op in torch._C._dispatch_get_all_op_names() if not op.endswith("out")
    ]  # those write in place
    held = [op for op in ops if op in wanted or op.split(".")[0] in wanted]
    made_of_others = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(not made_of_others(op, "CompositeImplicitAutograd") for op in held)


def _denied() -> frozenset[str]:
    names = settings.DENY.read()
    if expected := _wrong_names(names):
        raise BadSetting(settings.DENY.name, ",".join(names), expected)
    return frozenset(names)


def _count(value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise TypeError(value)
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


@dataclass(frozen=True)
class _Key:
    parse: Callable[[Any], Any]
    expected: str
    doc: str


KEYS: dict[str, _Key] = {
    "deny": _Key(_names, "a list of names of ops", "Ops that are left to PyTorch; added to ONEPASS_DENY."),
    "fuel": _Key(
        _count, "a whole number, 0 or more, or None", "Stop after this many merges; for ONEPASS_FUEL."
    ),
    "strict": _Key(_flag, "True or False", "Raise where compiling fails; for ONEPASS_STRICT."),
}


@dataclass(frozen=True)
class Options:
    """How one graph is compiled. Defaults come from the settings at the moment of compiling."""

    deny: frozenset[str] = field(default_factory=_denied)
    fuel: int | None = field(default_factory=settings.FUEL.read)
    strict: bool = field(default_factory=settings.STRICT.read)

    @classmethod
    def read(
        cls, mode: str | None = None, options: Mapping[str, Any] | None = None, **unknown: Any
    ) -> Options:
        """What ``torch.compile`` was given, over the settings.

        Raises: BadOption for an unknown mode, key or value; BadSetting.
        """
        for name in unknown:
            raise BadOption(name, unknown[name], f"one of the arguments {', '.join(('mode', 'options'))}")
        if mode is not None and mode not in MODES:
            raise BadOption("mode", mode, f"one of {', '.join(MODES)}")
        given = {name: _read(name, value) for name, value in (options or {}).items()}
        if "deny" in given:
            if expected := _wrong_names(given["deny"]):
                raise BadOption("options['deny']", sorted(given["deny"]), expected)
            given["deny"] |= _denied()
        return cls(**given)


def _read(name: str, value: Any) -> Any:
    if name not in KEYS:
        raise BadOption(f"options[{name!r}]", value, f"known; the keys are {', '.join(KEYS)}")
    try:
        return KEYS[name].parse(value)
    except TypeError as error:
        raise BadOption(f"options[{name!r}]", value, KEYS[name].expected) from error
