"""What ``torch.compile(mode=…, options=…)`` may say to the back end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onepass import settings
from onepass.errors import BadOption

# PyTorch's own modes. All are taken, none changes anything: kernels are chosen by the time model, not by timing, and
# whether launches are recorded in a CUDA graph is the caller's to decide.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def _names(value: Any) -> frozenset[str]:
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise TypeError(value)
    return frozenset(value)


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

    deny: frozenset[str] = field(default_factory=lambda: frozenset(settings.DENY.read()))
    fuel: int | None = field(default_factory=settings.FUEL.read)
    strict: bool = field(default_factory=settings.STRICT.read)

    @classmethod
    def read(
        cls, mode: str | None = None, options: Mapping[str, Any] | None = None, **unknown: Any
    ) -> Options:
        """Raises: BadOption for an unknown mode, key or value; BadSetting."""
        for name in unknown:
            raise BadOption(name, unknown[name], f"one of the arguments {', '.join(('mode', 'options'))}")
        if mode is not None and mode not in MODES:
            raise BadOption("mode", mode, f"one of {', '.join(MODES)}")
        given = {name: _read(name, value) for name, value in (options or {}).items()}
        if "deny" in given:
            given["deny"] |= frozenset(settings.DENY.read())
        return cls(**given)


def _read(name: str, value: Any) -> Any:
    if name not in KEYS:
        raise BadOption(f"options[{name!r}]", value, f"known; the keys are {', '.join(KEYS)}")
    try:
        return KEYS[name].parse(value)
    except TypeError as error:
        raise BadOption(f"options[{name!r}]", value, KEYS[name].expected) from error
