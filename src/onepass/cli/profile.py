"""`onepass profile`: where a model's time goes, what fusing should save, and what it saves."""

import json as json_format
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from onepass.cli.output import Output

if TYPE_CHECKING:
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
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document (onepass.profile/1).")
    ] = False,
) -> None:
    """Run a model on this machine, forecast what fusing saves, and measure it."""
    output = Output.open(json)
    with output.foreign_prints():
        model, inputs = _built(target, batch, length, layers, dtype, device)
        from onepass.insight.profile import profile as measured

        with _telling(output.console) as told, _blamed(target, model, inputs):
            found = measured(model, inputs, ("inductor",) if inductor else (), rounds, told)
    output.text(verdict(found))
    for table in (_shares(found), _contenders(found), _groups(found)):
        output.console.print()
        output.console.print(table)
    kept = keep(found)
    output.text(f"\nforecast {found.id}: {kept}" if kept else "")
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
        raise BadUserFile(str(loaded.path), problem, "Return a torch.nn.Module, or a function of tensors.")
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


def verdict(found: "Profile") -> str:
    """One sentence on what fusing should save, and one on what it did."""
    least, most = found.saving_us
    share = found.shares["memory-bound"]
    step = found.step_us
    if not found.groups:
        return "Nothing here for onepass: " + (found.left[0] if found.left else "no memory-bound ops.")
    head = (
        f"{share:.0%} of a step of {step / 1e3:.2f} ms is memory-bound; fusing should save "
        f"{max(least, 0) / 1e3:.2f} to {max(most, 0) / 1e3:.2f} ms"
    )
    if not found.worth_it:
        head = f"Not worth it here: {head}"
    ratio = step / found.contender("onepass").step_us.median
    held, of = found.held
    saved = found.saved_us or 0.0
    return (
        f"{head}.\nMeasured: the kernels save {saved / 1e3:.2f} ms, a step runs {ratio:.2f} × as fast as eager's; the "
        f"forecast held for {held} of {of} groups. Device: {found.device}."
    )


def _shares(found: "Profile") -> Table:
    table = Table("a step of eager's", "share", title_justify="left")
    for name, share in found.shares.items():
        table.add_row(name, f"{share:.1%}")
    return table


def _contenders(found: "Profile") -> Table:
    table = Table("step", "ms, median (quartiles)", "× eager", "first result, s", "peak, GiB")
    for c in found.contenders:
        s = c.step_us
        table.add_row(
            c.name,
            f"{s.median / 1e3:.2f} ({s.low / 1e3:.2f} – {s.high / 1e3:.2f})",
            f"{found.step_us / s.median:.2f}",
            f"{c.first_s:.1f}",
            "not counted here" if c.peak_bytes is None else f"{c.peak_bytes / 2**30:.2f}",
        )
    return table


def _groups(found: "Profile") -> Table:
    table = Table(
        "memory-bound group", "", "MB eager → fused", "eager, µs", "saving forecast, µs", "saved, µs", ""
    )
    for g in sorted(found.groups, key=lambda g: -g.eager_us):
        least, most = g.saving_us
        table.add_row(
            g.kernel,
            f"× {g.count}" if g.count > 1 else "",
            f"{g.eager_bytes / 1e6:.1f} → {g.fused_bytes / 1e6:.1f}",
            f"{g.eager_us:,.0f}",
            f"{least:,.0f} – {most:,.0f}",
            "–" if g.saved_us is None else f"{g.saved_us:,.0f}",
            g.verdict,
        )
    return table


def keep(found: "Profile") -> Path | None:
    """Write the forecast with its measurement under its id; None where the cache can't be written."""
    from onepass.runtime.cache import default_directory

    path = default_directory() / "profiles" / f"{found.id}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json_format.dumps(found.to_dict(), indent=2))
    except OSError:
        return None
    return path
