"""FILE.py:NAME on the command line: the user's file, what NAME is in it, and its example inputs."""

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from onepass.errors import BadUserFile, OnepassError

_FORM = "FILE.py:NAME, for example examples/gelu_add_layer_norm.py:block"


@dataclass(frozen=True)
class Target:
    """A function or module from a user's file, with the inputs that the file gives for it."""

    path: Path
    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]


def load(spec: str) -> Target:
    """Load FILE.py:NAME and call the file's `example_inputs()`.

    Raises: BadUserFile, naming what is missing, or the user's own line that raised.
    """
    path, name = _split(spec)
    module = _import(path)
    return Target(path, name, _callable(module, path, name), _example_inputs(module, path, name))


def function_in(spec: str) -> Callable[..., Any]:
    """Load FILE.py:NAME alone, without inputs. Raises: as `load`."""
    path, name = _split(spec)
    return _callable(_import(path), path, name)


def _callable(module: ModuleType, path: Path, name: str) -> Callable[..., Any]:
    if not hasattr(module, name):
        raise BadUserFile(str(path), f"has no `{name}`", _names_in(module))
    function: Callable[..., Any] = getattr(module, name)
    if not callable(function):
        kind = type(function).__name__
        raise BadUserFile(
            str(path), f"`{name}` is a {kind}, which can't be called", "Name a function or a torch module."
        )
    return function


@contextmanager
def blamed(target: Target) -> Iterator[None]:
    """Turn an error that the function raises in plain PyTorch too into one about the user's file."""
    try:
        yield
    except OnepassError:
        raise
    except Exception:
        try:
            target.function(*target.inputs)
        except Exception as error:
            problem = f"`{target.name}` raised with these example inputs\n{_trace(error, target.path)}"
            advice = f"Correct `{target.name}` or example_inputs()."
            raise BadUserFile(str(target.path), problem, advice) from error
        raise


def _split(spec: str) -> tuple[Path, str]:
    file, colon, name = spec.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise BadUserFile(spec, "is not of the form FILE.py:NAME", f"Write {_FORM}.")
    path = Path(file)
    if not path.is_file():
        problem = "is a directory" if path.is_dir() else "no such file"
        raise BadUserFile(str(path), problem, f"Name a Python file as {_FORM}; looked from {Path.cwd()}.")
    if path.suffix != ".py":
        raise BadUserFile(str(path), "is not a Python file", f"Write {_FORM}.")
    return path, name


def _import(path: Path) -> ModuleType:
    # Dynamo and pickling look a function's module up by name, so it has to be registered under one.
    module_name = f"onepass_user_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path.resolve())
    if spec is None or spec.loader is None:
        raise BadUserFile(str(path), "can't be imported", f"Write {_FORM}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(
        0, str(path.resolve().parent)
    )  # as when Python runs the file: its neighbours can be imported
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise BadUserFile(
            str(path), f"raised while it was loaded\n{_trace(error, path)}", "Correct the file."
        ) from error
    finally:
        sys.path.pop(0)
    return module


def _example_inputs(module: ModuleType, path: Path, name: str) -> tuple[Any, ...]:
    example_inputs = getattr(module, "example_inputs", None)
    if not callable(example_inputs):
        raise BadUserFile(
            str(path),
            "has no function `example_inputs`",
            f"Add `def example_inputs():` that returns a tuple of the arguments to call `{name}` with.",
        )
    try:
        inputs = example_inputs()
    except Exception as error:
        problem = f"example_inputs() raised\n{_trace(error, path)}"
        raise BadUserFile(str(path), problem, "Correct example_inputs().") from error
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def _names_in(module: ModuleType) -> str:
    names = sorted(
        n
        for n, v in vars(module).items()
        if callable(v) and getattr(v, "__module__", None) == module.__name__
    )
    return f"It defines {', '.join(names)}." if names else "It defines no function of its own."


def _trace(error: BaseException, path: Path) -> str:
    """The traceback from the user's file on: the frames before it are ours."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, frame in enumerate(frames) if Path(frame.filename) == path.resolve()]
    shown = frames[own[0] :] if own else []
    return "".join(traceback.format_list(shown) + traceback.format_exception_only(error)).rstrip()
