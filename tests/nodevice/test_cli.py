"""The command line: exit codes, what a bad file is told, and where text and JSON go."""

import json
import re
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onepass.analysis.words import Words
from onepass.cli import main
from onepass.errors import NoCompiler

VERBS = ("demo", "explain", "bench", "export", "inspect", "diff", "doctor", "cache info", "cache clear")

GOOD_FILE = """
print("a print of the user's")
def double(x):
    return 2 * x
def example_inputs():
    return (21,)
"""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Invoke = Callable[..., Outcome]


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["onepass", *arguments])
        try:
            code = main()
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 1
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@dataclass(frozen=True)
class Kernel:
    name: str
    source: str


class Report:
    """Of the shape that `onepass.explain` returns."""

    text = "one kernel\n  three passes"
    kernels = (Kernel("gelu_add", "// the source of gelu_add\n"),)

    def told(self, words: Words) -> str:
        return self.text if words.language == "en" else "一个内核"

    def save(self, path: Path, language: str) -> None:
        path.write_text(f"<p lang={language}>one kernel")

    def to_dict(self) -> dict[str, Any]:
        return {"schema": "onepass.explain/1", "kernels": [{"name": "gelu_add"}]}


@pytest.fixture
def explained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Stand in for `onepass.api`, whose own tests are elsewhere; gives the calls that were made."""
    calls: list[tuple[Any, ...]] = []

    def explain(function: Callable[..., Any], *inputs: Any, run: bool = False) -> Report:
        calls.append((function(*inputs), run))
        return Report()

    api = types.ModuleType("onepass.api")
    api.explain = explain  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "onepass.api", api)
    monkeypatch.setattr("onepass.api", api, raising=False)
    return calls


def write(folder: Path, text: str, name: str = "user.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("no-such-verb",),
        ("explain",),
        ("explain", "--no-such-option", "a.py:f"),
        ("demo", "--passes", "0"),
    ],
    ids=" ".join,
)
def test_misuse_exits_2_with_usage_on_standard_error(invoke: Invoke, arguments: tuple[str, ...]) -> None:
    outcome = invoke(*arguments)
    assert outcome.code == 2
    assert "Usage: onepass" in outcome.err + outcome.out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_json(invoke: Invoke, verb: str) -> None:
    outcome = invoke(*verb.split(), "--help")
    assert outcome.code == 0
    assert "--json" in outcome.out


def test_version(invoke: Invoke) -> None:
    outcome = invoke("--version")
    assert outcome.code == 0
    assert outcome.out.startswith("onepass ")


@pytest.mark.parametrize(
    ("text", "spec", "told"),
    [
        (GOOD_FILE, "{file}", "FILE.py:NAME"),
        (GOOD_FILE, "{file}:", "FILE.py:NAME"),
        (GOOD_FILE, "{file}:not a name", "FILE.py:NAME"),
        (GOOD_FILE, "{folder}/absent.py:double", "no such file"),
        (GOOD_FILE, "{folder}:double", "is a directory"),
        (GOOD_FILE, "{file}:triple", "It defines double, example_inputs."),
        ("double = 3", "{file}:double", "which can't be called"),
        ("def double(x): return x", "{file}:double", "def example_inputs()"),
        ("def double(x: return x", "{file}:double", "SyntaxError"),
        ("import no_such_module", "{file}:double", "No module named 'no_such_module'"),
        ("raise SystemExit(0)", "{file}:double", "SystemExit"),
        ("double = print\ndef example_inputs(): return 1 / 0", "{file}:double", "ZeroDivisionError"),
    ],
)
def test_a_bad_file_exits_2_and_is_told_what_is_wrong(
    invoke: Invoke, tmp_path: Path, text: str, spec: str, told: str
) -> None:
    file = write(tmp_path, text)
    outcome = invoke("explain", spec.format(file=file, folder=tmp_path))
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert told in outcome.err


def test_a_text_file_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("explain", write(tmp_path, "text", "notes.txt") + ":double")
    assert outcome.code == 2
    assert "is not a Python file" in outcome.err


def test_an_error_shows_the_users_lines_and_not_ours(invoke: Invoke, tmp_path: Path) -> None:
    file = write(tmp_path, "def inner():\n    raise ValueError('out of cheese')\ninner()\n")
    outcome = invoke("explain", f"{file}:double")
    assert 'user.py", line 3' in outcome.err
    assert 'user.py", line 2' in outcome.err
    assert "out of cheese" in outcome.err
    assert "target.py" not in outcome.err


def test_a_function_that_fails_by_itself_is_the_users_to_correct(
    invoke: Invoke, tmp_path: Path, explained: list[tuple[Any, ...]]
) -> None:
    file = write(tmp_path, "def double(x):\n    return x['no']\ndef example_inputs():\n    return (21,)\n")
    outcome = invoke("explain", f"{file}:double")
    assert outcome.code == 2
    assert "Correct `double` or example_inputs()." in outcome.err
    assert "fault of onepass" not in outcome.err


def test_a_fault_of_ours_is_shown_whole(
    invoke: Invoke, tmp_path: Path, explained: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Report:
        raise KeyError("a hole in the table")

    monkeypatch.setattr("onepass.api.explain", broken)
    outcome = invoke("explain", write(tmp_path, GOOD_FILE) + ":double")
    assert outcome.code == 2
    assert "Traceback" in outcome.err
    assert "a hole in the table" in outcome.err
    assert "fault of onepass" in outcome.err


@pytest.mark.parametrize("wrapped_by", ["cause", "inner_exception"])
def test_our_own_error_is_told_plainly_even_when_wrapped(
    invoke: Invoke,
    tmp_path: Path,
    explained: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    wrapped_by: str,
) -> None:
    class Wrapper(Exception):
        inner_exception: Exception

    def broken(*_: Any, **__: Any) -> Report:
        ours, wrapper = NoCompiler(("g++", "clang++")), Wrapper("the back end failed")
        if wrapped_by == "cause":
            raise wrapper from ours
        wrapper.inner_exception = ours
        raise wrapper

    monkeypatch.setattr("onepass.api.explain", broken)
    outcome = invoke("explain", write(tmp_path, GOOD_FILE) + ":double")
    assert outcome.code == 2
    assert outcome.err.rpartition("error: ")[2].startswith("no C++ compiler found; looked for g++, clang++")
    assert "Traceback" not in outcome.err


def test_explain_keeps_a_page(invoke: Invoke, tmp_path: Path, explained: list[tuple[Any, ...]]) -> None:
    page = tmp_path / "report.html"
    outcome = invoke("explain", write(tmp_path, GOOD_FILE) + ":double", "--html", str(page), "--json")
    assert outcome.code == 0
    assert page.read_text() == "<p lang=en>one kernel"
    assert str(page) in outcome.err
    assert json.loads(outcome.out)["schema"] == "onepass.explain/1"


def test_explain_speaks_chinese(invoke: Invoke, tmp_path: Path, explained: list[tuple[Any, ...]]) -> None:
    page = tmp_path / "report.html"
    outcome = invoke("explain", write(tmp_path, GOOD_FILE) + ":double", "--html", str(page), "--lang", "zh")
    assert outcome.code == 0
    assert "一个内核" in outcome.out.splitlines() and f"已保存\uff1a{page}" in outcome.out
    assert page.read_text() == "<p lang=zh>one kernel"


@pytest.mark.parametrize("verb", ["explain", "profile", "ladder", "demo"])
def test_a_language_that_is_not_there_names_those_that_are(invoke: Invoke, tmp_path: Path, verb: str) -> None:
    target = {"ladder": ["softmax"], "demo": ["--out", str(tmp_path / "out")]}.get(verb, ["nowhere.py:f"])
    outcome = invoke(verb, *target, "--lang", "zhh")
    assert outcome.code == 2
    assert "'zhh'" in outcome.err and "--lang zh" in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["profile", "ladder"])
def test_other_verbs_refuse_a_page_of_another_name_at_once(invoke: Invoke, verb: str) -> None:
    outcome = invoke(verb, "softmax" if verb == "ladder" else "hf:bert", "--html", "page.pdf")
    assert outcome.code == 2
    assert "page.pdf" in outcome.err and ".html" in outcome.err


def test_all_ladders_are_not_one_page(invoke: Invoke) -> None:
    outcome = invoke("ladder", "all", "--html", "all.html")
    assert outcome.code == 2
    assert "one ladder" in outcome.err


def test_a_page_of_another_name_is_refused_before_anything_is_compiled(
    invoke: Invoke, tmp_path: Path, explained: list[tuple[Any, ...]]
) -> None:
    outcome = invoke("explain", write(tmp_path, GOOD_FILE) + ":double", "--html", "report.pdf")
    assert outcome.code == 2
    assert "report.pdf" in outcome.err and ".html" in outcome.err
    assert not explained


def test_explain_prints_the_report(invoke: Invoke, tmp_path: Path, explained: list[tuple[Any, ...]]) -> None:
    outcome = invoke("explain", write(tmp_path, GOOD_FILE) + ":double")
    assert outcome.code == 0
    assert Report.text in outcome.out
    assert "the source of gelu_add" not in outcome.out
    assert explained == [(42, False)]


def test_explain_can_run_and_show_sources(
    invoke: Invoke, tmp_path: Path, explained: list[tuple[Any, ...]]
) -> None:
    outcome = invoke("explain", write(tmp_path, GOOD_FILE) + ":double", "--source", "--run")
    assert "the source of gelu_add" in outcome.out
    assert explained == [(42, True)]


def test_json_is_the_only_thing_on_standard_output(
    invoke: Invoke, tmp_path: Path, explained: list[tuple[Any, ...]]
) -> None:
    outcome = invoke("explain", write(tmp_path, GOOD_FILE) + ":double", "--json", "--source")
    document = json.loads(outcome.out)
    assert document["schema"] == "onepass.explain/1"
    assert document["kernels"][0]["source"] == Report.kernels[0].source
    assert "a print of the user's" in outcome.err
    assert Report.text in outcome.err


def test_a_file_may_import_its_neighbours_and_give_one_input(
    invoke: Invoke, tmp_path: Path, explained: list[tuple[Any, ...]]
) -> None:
    write(tmp_path, "FACTOR = 3", "neighbour_of_user.py")
    text = (
        "from neighbour_of_user import FACTOR\ndef f(x): return FACTOR * x\ndef example_inputs(): return 5\n"
    )
    before = list(sys.path)
    assert invoke("explain", write(tmp_path, text) + ":f").code == 0
    assert explained == [(15, False)]
    assert sys.path == before


def test_the_command_does_not_import_torch_for_help_or_misuse() -> None:
    script = (
        "import sys; sys.argv = ['onepass', 'explain', 'absent.py:f']\n"
        "from onepass.cli import main\n"
        "code = main()\n"
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=_environment(), check=True
    )
    assert done.stdout.split() == ["2", "False"]


@pytest.mark.parametrize(
    ("redirected", "codes", "says"),  # the doctor's 1: something is missing here
    [
        (">&-", (0, 1), ""),
        (">/dev/full", (2,), "can't be written: No space left"),
        ("| head -c 1 >/dev/null", (0,), ""),
    ],
)
def test_output_that_nobody_takes(redirected: str, codes: tuple[int, ...], says: str) -> None:
    command = f"{sys.executable} -m onepass doctor {redirected}"
    done = subprocess.run(command, shell=True, env=_environment(), capture_output=True, text=True)
    assert done.returncode in codes
    assert says in done.stderr and "fault of onepass" not in done.stderr


def test_signs_that_an_encoding_lacks_are_replaced() -> None:
    environment = {**_environment(), "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-m", "onepass", "doctor"], env=environment, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr and "onepass" in done.stdout


def _environment() -> dict[str, str]:
    import os

    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}


@pytest.mark.parametrize("verb", ["devices --json", "--help", "doctor --json"])
def test_a_reader_that_leaves_ends_a_verb_quietly_and_not_as_worse(verb: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "onepass", *verb.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout and child.stderr
    child.stdout.close()
    said = child.stderr.read().decode()
    assert child.wait() == 141
    assert not re.search("Traceback|Exception|Broken pipe", said), said
