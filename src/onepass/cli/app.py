"""The table of verbs, and what becomes of their errors."""

import errno
import io
import os
import sys
import traceback
from typing import Annotated

import typer
from rich.console import Console

from onepass.cli import (
    bench,
    cache,
    calibrate,
    check,
    demo,
    devices,
    diff,
    doctor,
    explain,
    export,
    inspect,
    ladder,
    occupancy,
    profile,
    roofline,
)
from onepass.cli.output import EXIT_CLOSED_PIPE, EXIT_FINE, EXIT_MISUSE
from onepass.errors import OnepassError

# A full disk, a device that fails, a stream closed from outside.
_NOT_WRITTEN = (errno.ENOSPC, errno.EIO, errno.EBADF)


def run() -> int:
    """Run this process's command line; wrong usage, help and a verb's own exit code leave as SystemExit."""
    _usable_streams()
    try:
        try:
            _application()(prog_name="onepass")
        finally:
            sys.stdout.flush()
    except SystemExit as leave:
        # Typer makes of a closed pipe exit code 1, which says of a verb that something is worse.
        if isinstance(leave.__context__, BrokenPipeError):
            return _silenced(EXIT_CLOSED_PIPE)
        raise
    except OSError as error:
        if error.errno == errno.EPIPE:
            return _silenced(EXIT_CLOSED_PIPE)
        if error.errno not in _NOT_WRITTEN:
            raise
        _show(f"error: the output can't be written: {error.strerror}")
        return _silenced(EXIT_MISUSE)
    except Exception as error:  # noqa: BLE001 - the last stop: whatever it is, the user sees all of it
        ours = _raised_on_purpose(error)
        if ours is not None:
            _show(f"error: {ours}")
            return EXIT_MISUSE
        _show(traceback.format_exc())
        _show("error: this is a fault of onepass; please report the text above and `onepass doctor --json`")
        return EXIT_MISUSE
    return EXIT_FINE


def _silenced(code: int) -> int:
    """The code, once standard output takes everything: what is still buffered would fail once more at exit."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process
    return code


def _usable_streams() -> None:
    """A closed stream takes everything and keeps nothing; a narrow encoding shows ? for what it lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the rest of the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _raised_on_purpose(error: BaseException | None) -> OnepassError | None:
    """Our own error, also where Dynamo has wrapped it in one of its own."""
    while error is not None and not isinstance(error, OnepassError):
        error = getattr(error, "inner_exception", None) or error.__cause__
    return error


def _version(asked: bool) -> None:
    if asked:
        Console(highlight=False).print(f"onepass {doctor.installed_version('onepass')}")
        raise typer.Exit


def _application() -> typer.Typer:
    application = typer.Typer(
        name="onepass",
        help="Memory-bound PyTorch work at the speed of memory, with an account of every decision.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    application.callback()(_options)
    application.command("demo")(demo.demo)
    application.command("explain")(explain.explain)
    application.command("bench")(bench.bench)
    application.command("export")(export.export)
    application.command("inspect")(inspect.inspect)
    application.command("diff")(diff.diff)
    application.command("check")(check.check)
    application.command("profile")(profile.profile)
    application.command("doctor")(doctor.doctor)
    application.command("ladder")(ladder.ladder)
    application.command("devices")(devices.devices)
    application.command("calibrate")(calibrate.calibrate)
    application.command("roofline")(roofline.roofline)
    application.command("occupancy")(occupancy.occupancy)
    application.add_typer(cache.group(), name="cache")
    return application


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the command itself, before a verb; each is dealt with by its callback."""


def _show(text: str) -> None:
    Console(file=sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True).print(text.rstrip())
