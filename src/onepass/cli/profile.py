"""`onepass profile`: where a model's time goes, what fusing should save, and what it saves."""

import json as json_format
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from onepass.cli.language import Language
from onepass.cli.output import Output

if TYPE_CHECKING:
    from onepass.analysis.words import Words
    from onepass.insight.profile import Profile


def profile(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:BUILD | hf:TYPE",
            help="A function that returns a model, in a file with example_inputs(); or a model type of transformers.",
        ),
    ],
    batch: Annotated[int, typer.Option("--batch", min=1, help="Of hf: models: sequences.")] = 8,
    length: Annotated[int, typer.Option("--length", min=1, help="Of hf: models: tokens a sequence.")] = 128,
    layers: Annotated[
        int, typer.Option("--layers", min=0, help="Of hf: models: layers; 0 keeps the default.")
    ] = 0,
    dtype: Annotated[str, typer.Option("--dtype", help="Of hf: models: fp32, bf16 or fp16.")] = "fp32",
    device: Annotated[str, typer.Option("--device", help="Of hf: models: cpu or cuda.")] = "",
    inductor: Annotated[bool, typer.Option("--inductor", help="Time Inductor beside.")] = False,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Whole steps of each, in turn.")] = 9,
    lang: Language = "en",
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write the profile as one HTML page.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document (onepass.profile/1).")
    ] = False,
) -> None:
    """Run a model on this machine, forecast what fusing saves, and measure it."""
    from onepass.analysis.html.page import check_path, write
    from onepass.analysis.words import words_of

    output, words = Output.open(json), words_of(lang)
    if html is not None:
        check_path(html)  # before the minutes that a large model takes
    with output.foreign_prints():
        model, inputs = _built(target, batch, length, layers, dtype, device)
        from onepass.insight.profile import profile as measured
        from onepass.insight.profile_page import profile_page, verdict

        with _telling(output.console) as told, _blamed(target, model, inputs):
            found = measured(model, inputs, ("inductor",) if inductor else (), rounds, told, keep)
    output.text(verdict(found, words))
    for table in _tables(found, words):
        output.console.print()
        output.console.print(table)
    kept = keep(found)
    output.text("\n" + words("profile_kept", id=found.id, path=kept) if kept else "")
    if html is not None:
        write(html, profile_page(found, words))
        output.text(words("kept_files", files=html))
    output.document(found.to_dict())


def _built(
    target: str, batch: int, length: int, layers: int, dtype: str, device: str
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    if target.startswith("hf:"):
        from onepass.insight.random_models import transformers_model

        return transformers_model(target.removeprefix("hf:"), batch, length, layers, dtype, device)
    from onepass.cli.target import load
    from onepass.errors import BadUserFile

    loaded = load(target)
    model = loaded.function
    if _builds(loaded.function):
        try:
            model = loaded.function()
        except Exception as error:
            problem = f"`{loaded.name}` raised {type(error).__name__}: {error}"
            raise BadUserFile(str(loaded.path), problem, "It is called without arguments.") from error
    if not callable(model):
        problem = f"`{loaded.name}` returned {type(model).__name__}, which is no model"
        raise BadUserFile(
            str(loaded.path),
            problem,
            "Return a torch.nn.Module, or a function of tensors; example_inputs() gives what it is called with.",
        )
    return model, loaded.inputs


@contextmanager
def _blamed(target: str, model: Callable[..., Any], inputs: tuple[Any, ...]) -> Iterator[None]:
    """Turn an error into BadUserFile where plain PyTorch can't run the model either."""
    import torch

    from onepass.errors import BadUserFile, OnepassError

    try:
        yield
    except OnepassError:
        raise
    except Exception:
        try:
            with torch.no_grad():
                model(*inputs)
        except Exception as error:
            said = str(error).strip().splitlines() or [""]
            remedy = (
                "Choose other --length and --batch."
                if target.startswith("hf:")
                else "Correct it or its inputs."
            )
            raise BadUserFile(target, f"PyTorch raises {type(error).__name__}: {said[0]}", remedy) from error
        raise


def _builds(function: Callable[..., Any]) -> bool:
    """Whether it returns the model, rather than being it."""
    import inspect

    import torch

    return not isinstance(function, torch.nn.Module) and not inspect.signature(function).parameters


@contextmanager
def _telling(console: Console) -> Iterator[Callable[[str], None]]:
    with console.status("") as status:
        yield status.update


def _tables(found: "Profile", words: "Words") -> Iterator[Table]:
    from onepass.insight import profile_page as told

    for head, rows in (
        (told.shares_head(words), told.shares_rows(found, words)),
        (told.contenders_head(words), told.contenders_rows(found, words)),
        (told.groups_head(words), told.groups_rows(found, words)),
    ):
        table = Table(*head)
        for row in rows:
            table.add_row(*row)
        yield table


def keep(found: "Profile") -> Path | None:
    """Write the forecast under its id, and again with its measurement; None where the cache can't be written."""
    from onepass.runtime.cache import default_directory

    path = default_directory() / "profiles" / f"{found.id}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json_format.dumps(found.to_dict(), indent=2))
    except OSError:
        return None
    return path
