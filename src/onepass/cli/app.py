"""The table of verbs, and what becomes of their errors."""

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import click
import typer
from rich.console import Console

from onepass.cli import cache, demo, doctor, explain
from onepass.errors import OnepassError

EXIT_FINE, EXIT_WORSE, EXIT_MISUSE = 0, 1, 2
_EXIT_INTERRUPTED = 130  # what a shell reports for a program ended by control-C


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (by default this process's) and return its exit code."""
    command = typer.main.get_command(_application())
    try:
        outcome = command.main(args=arguments, prog_name="onepass", standalone_mode=False)
        return outcome if isinstance(outcome, int) else EXIT_FINE
    except click.ClickException as error:
        error.show()
        return EXIT_MISUSE
    except OnepassError as error:
        _show(f"error: {error}")
        return EXIT_MISUSE
    except (KeyboardInterrupt, click.Abort):
        _show("stopped")
        return _EXIT_INTERRUPTED
    except Exception:  # noqa: BLE001 - the last stop: whatever it is, the user sees all of it
        _show(traceback.format_exc())
        _show("error: this is a fault in onepass; please report the text above with `onepass doctor --json`")
        return EXIT_MISUSE


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
    application.command("doctor")(doctor.doctor)
    application.add_typer(cache.group(), name="cache")
    return application


def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed_version

        Console(highlight=False).print(f"onepass {installed_version('onepass')}")
        raise typer.Exit


def _show(text: str) -> None:
    Console(file=sys.stderr, highlight=False, markup=False, soft_wrap=True).print(text.rstrip())
