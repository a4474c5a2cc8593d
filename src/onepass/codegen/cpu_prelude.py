"""The prelude texts that every CPU kernel begins with, and the driver that runs kernels over threads."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

FILES = ("vector.hpp", "memory.hpp", "math.hpp", "math_rare.hpp", "convert.hpp")
LIBRARY = ("library.hpp", "library.inc")


@lru_cache(maxsize=1)
def cpu_prelude() -> str:
    """Return the text that stands before `struct Args` in a CPU kernel."""
    return "".join(_text(name) for name in FILES)


@lru_cache(maxsize=1)
def cpu_library() -> str:
    """Return what stands after it in a kernel that computes in float64 or calls the C library: 60 ms of compiling."""
    return "".join(_text(name) for name in LIBRARY)


@lru_cache(maxsize=1)
def cpu_driver() -> str:
    """Return the source of the driver, a shared object of its own."""
    return _text("driver.hpp")


def _text(name: str) -> str:
    return resources.files("onepass.codegen").joinpath("prelude", name).read_text()
