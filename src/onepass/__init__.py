"""Memory-bound PyTorch work at the speed of memory, with an account of every decision."""

from typing import Any

__all__ = ["explain", "fuse"]


def __getattr__(name: str) -> Any:
    # On first use, so that importing onepass imports neither PyTorch nor its compiler.
    if name in __all__:
        from onepass import api

        return getattr(api, name)
    raise AttributeError(f"module 'onepass' has no attribute {name!r}")
