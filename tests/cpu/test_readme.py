"""What the documents show is run: Python blocks whole, commands by name, links to files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def blocks(language: str) -> list[tuple[str, str]]:
    """Fenced blocks of a language in all documents, each with where it stands."""
    found = []
    for document in DOCUMENTS:
        for match in re.finditer(
            rf"^```{language}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL
        ):
            line = document.read_text()[: match.start()].count("\n") + 1
            found.append((f"{document.relative_to(ROOT)}:{line}", match[1]))
    return found


def programs() -> list[tuple[str, str]]:
    """Python blocks, each text once: a translation holds the same ones."""
    return [
        (where, text) for text, where in {text: where for where, text in reversed(blocks("python"))}.items()
    ]


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_the_readme_has_examples(readme: str) -> None:
    shown = {text for where, text in blocks("python") if where.startswith(f"{readme}:")}
    assert len(shown) >= 2
    assert shown <= {text for _, text in programs()}


@pytest.mark.parametrize(("where", "text"), programs(), ids=lambda value: value if ":" in value[:80] else "")
def test_python_block_runs(where: str, text: str) -> None:
    done = run([sys.executable, "-c", text])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_example_runs(example: Path) -> None:
    done = run([sys.executable, str(example)])
    assert done.returncode == 0, done.stderr
    difference = float(done.stdout.rpartition(":")[2])
    # Values of about 1 in fp32; the sums of a row are at most 4096 long.
    assert 0 <= difference < 1e-4


def commands(program: str) -> set[str]:
    """First words after a program's name in the shell blocks."""
    text = "\n".join(text for _, text in blocks("sh"))
    return set(re.findall(rf"^{program} ([a-z-]+)", text, re.MULTILINE))


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert commands("make")
    assert commands("make") <= targets


def test_verbs_exist() -> None:
    assert commands("onepass")
    for verb in commands("onepass"):
        assert run([sys.executable, "-m", "onepass", verb, "--help"]).returncode == 0, verb


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target
