"""The project's own files agree with each other."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONSTRAINTS = {
    match[1].lower().replace("_", "-"): match[2]
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if (match := re.match(r"([A-Za-z0-9_.-]+)(.*)", line))
}


def required() -> list[str]:
    """Names of all packages that pyproject.toml asks for."""
    project = PYPROJECT["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return sorted({re.split(r"[^A-Za-z0-9_.-]", entry)[0] for entries in lists for entry in entries})


@pytest.mark.parametrize("package", required())
def test_every_dependency_has_a_known_good_version(package: str) -> None:
    assert package in CONSTRAINTS


def test_torch_is_pinned_to_a_release_and_not_to_a_build() -> None:
    assert re.fullmatch(r"==\d+\.\d+\.\d+", CONSTRAINTS["torch"])


def test_every_pin_is_exact() -> None:
    assert not {name: pin for name, pin in CONSTRAINTS.items() if not re.fullmatch(r"==\d+(\.\d+)*", pin)}


def test_entry_points_name_files_that_exist() -> None:
    project = PYPROJECT["project"]
    targets = [*project["scripts"].values(), *project["entry-points"]["torch_dynamo_backends"].values()]
    for target in targets:
        module = ROOT / "src" / target.partition(":")[0].replace(".", "/")
        assert module.with_suffix(".py").is_file() or (module / "__init__.py").is_file(), target


def test_make_installs_once_for_each_environment_under_the_constraints() -> None:
    makefile = (ROOT / "Makefile").read_text()
    installs = re.findall(r"^\t\$\(INSTALL\).*$", makefile, re.MULTILINE)
    assert len(installs) == 2
    assert "-c constraints.txt" in makefile
    assert makefile.count("pip install") == 1


def test_ci_runs_what_the_readme_says() -> None:
    ci, readme = (ROOT / ".ci" / "run").read_text(), (ROOT / "README.md").read_text()
    assert "make test" in ci
    assert "make check" in ci
    assert re.search(r"^make test$", readme, re.MULTILINE)


# A number of an issue, or a file that is not here, tells a reader nothing.
ELSEWHERE = re.compile(r"\bissue (#?\d|asks)|\bas (DESIGN|SPEC) ", re.IGNORECASE)


def test_texts_refer_to_what_is_in_the_repository() -> None:
    folders = ("src", "tests", "benchmarks", "docs", "examples", "tools")
    files = [
        p
        for f in folders
        for p in (ROOT / f).rglob("*")
        if p.suffix in (".py", ".md", ".toml", ".cuh", ".hpp")
    ]
    assert len(files) > 100
    found = [
        p.name
        for p in (*files, *ROOT.glob("*.md"))
        if p != Path(__file__) and ELSEWHERE.search(p.read_text())
    ]
    assert not found
    assert ELSEWHERE.search("what the issue asks of it") and ELSEWHERE.search("Issue 2, lines 5 and 6")


def test_every_file_that_the_package_reads_is_shipped() -> None:
    folder = ROOT / "src" / "onepass"
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["onepass"]
    shipped = {p for pattern in patterns for p in folder.glob(pattern)}
    held = {p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    assert held <= shipped, sorted(map(str, held - shipped))
