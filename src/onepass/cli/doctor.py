"""`onepass doctor`: what this machine has for onepass, and what to do about what is missing."""

import os
import platform
import sys
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from onepass.cli.output import EXIT_FINE, EXIT_WORSE, Output

# The PyTorch releases that the test suite runs with; newer ones are allowed.
_TORCH_TESTED = ("2.11", "2.13")

_PROGRAM = 'extern "C" int one() { return 1; }\n'


class State(StrEnum):
    """How a check came out: present, present but less than it could be, or missing."""

    OK = "ok"
    LESS = "less"
    MISSING = "missing"


@dataclass(frozen=True)
class Check:
    """One thing looked at, what was found, and what to do if that is not enough."""

    name: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Health:
    """All checks, and what follows for the two targets."""

    checks: tuple[Check, ...]
    off: bool = False  # by ONEPASS_DISABLE

    def state(self, name: str) -> State:
        """Look a check up by name."""
        return next(check.state for check in self.checks if check.name == name)

    @property
    def cpu(self) -> bool:
        """Whether kernels can be built for the CPU."""
        return self.state("C++ compiler") is not State.MISSING

    @property
    def cuda(self) -> bool:
        """Whether kernels can be built for a GPU and run there."""
        return all(self.state(name) is not State.MISSING for name in ("GPU", "NVRTC"))

    @property
    def verdict(self) -> str:
        """One sentence: where onepass runs its own kernels on this machine."""
        if self.state("compile") is State.MISSING:
            return "onepass can't run here: this PyTorch can't compile with this Python."
        if self.off:
            return "onepass is switched off by ONEPASS_DISABLE: everything runs in PyTorch."
        targets = [name for name, usable in (("the GPU", self.cuda), ("the CPU", self.cpu)) if usable]
        if not targets:
            return "onepass leaves everything to PyTorch here: no working C++ compiler, no usable GPU."
        return f"onepass runs its own kernels on {' and '.join(targets)}."

    @property
    def good(self) -> bool:
        """Whether onepass runs kernels of its own here, and on the GPU if there is one."""
        gpu_wasted = self.state("GPU") is State.OK and not self.cuda
        usable = self.state("compile") is not State.MISSING and (self.cpu or self.cuda)
        return usable and not gpu_wasted and not self.off


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document (onepass.doctor/1).")] = False,
) -> None:
    """Say what this machine has for onepass and what to do about what is missing."""
    output = Output.open(json)
    health = examine()
    output.console.print(Text(health.verdict, style="bold"))
    table = Table("", "state", "found", "advice")
    for check in health.checks:
        table.add_row(*(Text(cell) for cell in (check.name, check.state, check.found, check.advice)))
    output.console.print(table)
    checks = [asdict(check) for check in health.checks]
    output.document(
        {"schema": "onepass.doctor/1", "verdict": health.verdict, "good": health.good, "checks": checks}
    )
    raise typer.Exit(EXIT_FINE if health.good else EXIT_WORSE)


def examine() -> Health:
    """Look at everything onepass depends on; a one-line C++ program is compiled, no GPU memory is taken."""
    return Health(
        (
            _onepass(),
            _settings(),
            _system(),
            _torch(),
            _compile(),
            _backend(),
            _gpu(),
            _nvrtc(),
            _host(),
            _openmp(),
            _cache(),
        ),
        _is_off(),
    )


def installed_version(package: str) -> str:
    """A package's version, or that it is not installed (as when run from a source folder)."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _onepass() -> Check:
    return Check("onepass", State.OK, f"{installed_version('onepass')}, Python {platform.python_version()}")


def _system() -> Check:
    found = f"{platform.system()} {platform.machine()}"
    if sys.platform.startswith("linux"):
        return Check(
            "system", State.OK, found + (" (WSL)" if "microsoft" in platform.release().lower() else "")
        )
    if sys.platform == "win32":
        return Check("system", State.LESS, found, "Use WSL2: onepass is developed on Linux.")
    return Check("system", State.LESS, found, "onepass is developed on Linux; here it is not tested.")


def _torch() -> Check:
    import torch

    release = ".".join(torch.__version__.split(".")[:2])
    low, high = (_numbers(edge) for edge in _TORCH_TESTED)
    found = f"{torch.__version__}, {torch.get_num_threads()} threads"
    if _numbers(release) < low:
        return Check("PyTorch", State.LESS, found, f"Upgrade to {_TORCH_TESTED[0]} or newer.")
    if _numbers(release) > high:
        return Check(
            "PyTorch", State.LESS, found, f"Newer than what is tested ({' to '.join(_TORCH_TESTED)})."
        )
    return Check("PyTorch", State.OK, found)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _compile() -> Check:
    from torch._dynamo.eval_frame import is_dynamo_supported

    if is_dynamo_supported():
        return Check("compile", State.OK, "torch.compile supports this Python")
    return Check(
        "compile", State.MISSING, "torch.compile does not support this Python", "Use another Python release."
    )


def _backend() -> Check:
    from importlib.metadata import entry_points

    if entry_points(group="torch_dynamo_backends", name="onepass"):
        return Check("back end", State.OK, 'torch.compile(backend="onepass") finds onepass')
    return Check(
        "back end", State.LESS, "onepass is not registered with PyTorch", "Install it: pip install -e ."
    )


def _gpu() -> Check:
    import torch

    if torch.version.hip:
        return Check(
            "GPU", State.MISSING, f"AMD, ROCm {torch.version.hip}", "AMD GPUs are not supported yet."
        )
    if torch.version.cuda is None:
        return Check(
            "GPU", State.MISSING, "this PyTorch is built without CUDA", "For a GPU, install a CUDA build."
        )
    if not torch.cuda.is_available():
        return Check(
            "GPU",
            State.MISSING,
            f"none seen (CUDA {torch.version.cuda} build)",
            "Check the driver: nvidia-smi.",
        )
    names = ", ".join(_gpu_name(index) for index in range(torch.cuda.device_count()))
    return Check("GPU", State.OK, f"{names}; CUDA {torch.version.cuda} build")


def _gpu_name(index: int) -> str:
    import torch

    properties = torch.cuda.get_device_properties(index)
    return f"{properties.name} (sm_{properties.major}{properties.minor})"


def _nvrtc() -> Check:
    from onepass.runtime.nvrtc import libraries

    found = ", ".join(f"CUDA {major}" for major in sorted(libraries()))
    if found:
        return Check("NVRTC", State.OK, found)
    return Check(
        "NVRTC", State.MISSING, "not found", "To compile for GPUs: install onepass with its extra `cuda`"
    )


def _settings() -> Check:
    from onepass.errors import BadSetting
    from onepass.settings import SETTINGS

    wrong: list[tuple[str, str]] = []
    for setting in SETTINGS:
        try:
            setting.read()
        except BadSetting as error:
            wrong.append((error.what(), error.advice()))
    names = [s.name for s in SETTINGS]
    for name in sorted(os.environ):
        if name.startswith("ONEPASS_") and name not in names:
            near = " or ".join(get_close_matches(name, names)) or f"one of {', '.join(names)}"
            wrong.append((f"{name} is no setting", f"Did you mean {near}?"))
    if wrong:
        return Check("settings", State.LESS, *("; ".join(parts) for parts in zip(*wrong, strict=True)))
    given = [name for name in names if os.environ.get(name)]
    return Check("settings", State.OK, ", ".join(given) or "none set")


def _is_off() -> bool:
    from onepass.errors import BadSetting
    from onepass.settings import DISABLE

    try:
        return DISABLE.read()
    except BadSetting:
        return False


def _host() -> Check:
    from onepass.errors import BadSetting, CompileError, NoCompiler
    from onepass.runtime.hostcc import compile_shared, find_compiler

    try:
        found = find_compiler()
        with TemporaryDirectory() as folder:
            compile_shared(_PROGRAM, Path(folder) / "one.so", name="a one-line program", compiler=found)
    except (BadSetting, NoCompiler, CompileError) as error:
        return Check("C++ compiler", State.MISSING, error.what(), error.advice())
    return Check("C++ compiler", State.OK, found.path)


def _openmp() -> Check:
    from onepass.runtime.launch_cpu import torch_threads

    reason = torch_threads().reason
    if reason is None:
        return Check("threads", State.OK, "PyTorch's own OpenMP threads")
    return Check("threads", State.LESS, reason, "CPU kernels run, on one thread.")


def _cache() -> Check:
    from onepass import settings
    from onepass.runtime.cache import default_directory

    if not settings.CACHE.read():
        return Check(
            "cache", State.LESS, f"switched off by {settings.CACHE.name}", "Every process compiles anew."
        )
    folder = default_directory().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return Check("cache", State.OK, str(folder))
    except OSError as error:
        return Check(
            "cache",
            State.LESS,
            f"{folder} can't be written: {error.strerror}",
            f"Set {settings.CACHE_DIR.name} to another folder.",
        )
