"""`onepass cache info` and `onepass cache clear`: the compiled kernels kept on disk."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from onepass.cli.output import EXIT_FINE, EXIT_WORSE, Output

if TYPE_CHECKING:
    from onepass.runtime.cache import DiskCache

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document (onepass.cache/1).")]


def group() -> typer.Typer:
    """The two verbs as one group."""
    verbs = typer.Typer(help="Look at or clear the compiled kernels kept on disk.", no_args_is_help=True)
    verbs.command("info")(info)
    verbs.command("clear")(clear)
    return verbs


def info(json: _Json = False) -> None:
    """Say where compiled kernels are kept, how many, and how many bytes."""
    output, cache = Output.open(json), _cache()
    found = _found(cache)
    used = "in use" if found["enabled"] else "switched off"
    output.text(f"{found['kernels']} kernels, {_size(found['size_bytes'])}, in {cache.directory} ({used})")
    output.document(found)


def clear(json: _Json = False) -> None:
    """Remove all compiled kernels kept on disk; programs that have loaded some go on working."""
    output, cache = Output.open(json), _cache()
    before = cache.size_bytes()
    removed, problem = 0, ""
    try:
        removed = cache.clear()
    except OSError as error:
        problem = f"{error.filename or cache.directory} can't be removed: {error.strerror}"
    left = _found(cache)
    freed = before - left["size_bytes"]
    output.text(problem or f"removed {removed} kernels, {_size(freed)}, from {cache.directory}")
    output.document({**left, "removed": removed, "freed_bytes": freed, "problem": problem or None})
    raise typer.Exit(EXIT_WORSE if problem else EXIT_FINE)


def _cache() -> "DiskCache":
    from onepass import settings
    from onepass.runtime.cache import DiskCache, default_directory

    return DiskCache(default_directory(), enabled=settings.CACHE.read())


def _found(cache: "DiskCache") -> dict[str, Any]:
    return {
        "schema": "onepass.cache/1",
        "directory": str(cache.directory),
        "enabled": cache.enabled,
        "kernels": len(cache.entries()),
        "size_bytes": cache.size_bytes(),
    }


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
