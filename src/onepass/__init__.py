"""Memory-bound PyTorch work at the speed of memory, with an account of every decision."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onepass import errors, functional, nn
    from onepass.api import Report, explain, fuse

    __version__: str

__all__ = ["Report", "__version__", "errors", "explain", "functional", "fuse", "nn"]

# Where each public name is. All are looked up on first use: importing onepass imports neither PyTorch nor its compiler.
_PLACES = {"Report": "api", "explain": "api", "fuse": "api"}
_MODULES = ("errors", "functional", "nn")


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"onepass.{_PLACES[name]}"), name)
    if name in _MODULES:
        return import_module(f"onepass.{name}")
    if name == "__version__":
        return _version()
    raise AttributeError(f"module 'onepass' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("onepass")
    except PackageNotFoundError:
        return "unknown"  # run from a source folder
