"""Settings from the environment: typed, read when used and never at import, all in one table."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from onepass.errors import BadSetting

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable: its name, type, default, and whether it changes what is compiled.

    `in_cache_key` says that two values may give two different binaries, so that the value is part of the key
    under which a compiled kernel is kept.
    """

    name: str
    parse: Callable[[str], T]
    default: T
    expected: str
    in_cache_key: bool
    doc: str

    def read(self) -> T:
        """Return the value set now, or the default when unset or empty.

        Raises: BadSetting if the text is not what the setting expects.
        """
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except (ValueError, KeyError) as e:
            raise BadSetting(self.name, text, self.expected) from e


def _flag(text: str) -> bool:
    return {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }[text.lower()]


def _words(text: str) -> tuple[str, ...]:
    return tuple(w for w in text.replace(",", " ").split() if w)


def _count(text: str) -> int | None:
    n = int(text)
    if n < 0:
        raise ValueError(text)
    return n


def _path(text: str) -> str | None:
    return os.path.expanduser(text)


DISABLE = Setting(
    "ONEPASS_DISABLE", _flag, False, "0 or 1", False, "Run every graph as PyTorch would, untouched."
)
DENY: Setting[tuple[str, ...]] = Setting(
    "ONEPASS_DENY", _words, (), "names of ops, separated by commas", False, "Ops that are left to PyTorch."
)
FUEL = Setting(
    "ONEPASS_FUEL",
    _count,
    None,
    "a whole number, 0 or more",
    False,
    "Stop after this many merges (to bisect).",
)
STRICT = Setting(
    "ONEPASS_STRICT",
    _flag,
    False,
    "0 or 1",
    False,
    "Raise where compiling fails, and do not run that graph in PyTorch with a warning.",
)
VERIFY = Setting(
    "ONEPASS_VERIFY",
    _flag,
    False,
    "0 or 1",
    False,
    "Check every cluster and kernel between the stages that make them.",
)
CACHE = Setting("ONEPASS_CACHE", _flag, True, "0 or 1", False, "Keep compiled kernels on disk.")
CACHE_DIR = Setting(
    "ONEPASS_CACHE_DIR",
    _path,
    None,
    "a directory",
    False,
    "Where compiled kernels are kept (default: user cache).",
)
CXX = Setting(
    "ONEPASS_CXX", _path, None, "a C++ compiler", True, "The host compiler (default: $CXX, g++, clang++)."
)
CXX_FLAGS: Setting[tuple[str, ...]] = Setting(
    "ONEPASS_CXX_FLAGS",
    _words,
    (),
    "compiler flags",
    True,
    "Further flags for the host compiler, after onepass's own.",
)

SETTINGS: tuple[Setting[Any], ...] = (
    DISABLE,
    DENY,
    FUEL,
    STRICT,
    VERIFY,
    CACHE,
    CACHE_DIR,
    CXX,
    CXX_FLAGS,
)
