"""Generated documents are what the tables say; translated ones have what the English ones have."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from typer.main import get_command

from onepass.capture.decompose import PARTS
from onepass.capture.normalize import aten_name
from onepass.cli.app import _application
from onepass.ops.table import BY_ATEN, COMPOSITES, COMPUTE_BOUND, LEFT, OPS, REPLACED, VIEWS
from onepass.settings import SETTINGS

ROOT = Path(__file__).parents[2]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "tools" / "gen_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["ops.md", "settings.md"])
def test_generated_documents_are_current(name: str) -> None:
    path = ROOT / "docs" / name
    assert path.read_text() == generator().documents()[path], "run python tools/gen_docs.py"


def test_every_row_is_there() -> None:
    ops, settings = ((ROOT / "docs" / name).read_text() for name in ("ops.md", "settings.md"))
    for row in (*OPS.values(), *COMPOSITES):
        assert f"| `{row.name}` |" in ops
    for setting in SETTINGS:
        assert f"| `{setting.name}` |" in settings


def test_an_op_is_in_one_table_only() -> None:
    tables = [set(BY_ATEN), VIEWS, COMPUTE_BOUND, set(REPLACED), set(LEFT)]
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))
    assert set(REPLACED) <= {aten_name(op) for op in PARTS} <= {*REPLACED, *BY_ATEN}


# A translation says the same in other words; what isn't words has to be equal.
TRANSLATED = [ROOT / "README.md", ROOT / "docs" / "ladder" / "tutorial.md"]
# Comments after commands, and the option that asks for the language.
SPOKEN = re.compile(r"^(onepass .*?)(?: --lang zh)? +# .*$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```\n", re.MULTILINE | re.DOTALL)


def chinese(path: Path) -> Path:
    return path.with_suffix(".zh-CN.md")


def skeleton(text: str) -> dict[str, list[str]]:
    """Of a document what every language of it shares."""
    prose = FENCED.sub("", text)
    rows = [line for line in prose.splitlines() if line.startswith("|")]
    return {
        "headings": re.findall(r"^#+ ", prose, re.MULTILINE),
        "blocks": [SPOKEN.sub(r"\1", block) for block in FENCED.findall(text)],
        "code": sorted(re.findall(r"`([^`]+)`", prose)),
        "commands": [command for row in rows for command in re.findall(r"`(onepass [^`]+)`", row)],
        "links": [target.replace(".zh-CN", "") for target in re.findall(r"\]\(([^)]+)\)", prose)],
        "table rows": [str(row.count("|")) for row in rows],
    }


@pytest.mark.parametrize("path", TRANSLATED, ids=lambda path: path.stem)
def test_a_translation_has_the_same_blocks_commands_links_and_headings(path: Path) -> None:
    english, translated = (skeleton(p.read_text()) for p in (path, chinese(path)))
    for part in english:
        assert english[part] == translated[part], part


@pytest.mark.parametrize(
    ("before", "after", "part"),
    [
        ("## Limits", "### Limits", "headings"),
        ("make demo\n", "make demos\n", "blocks"),
        ("`ONEPASS_DISABLE=1`", "`ONEPASS_OFF=1`", "code"),
        ("--device V100`", "--device A100`", "commands"),
        ("(docs/settings.md)", "(docs/ops.md)", "links"),
        ("| `examples/` |", "| `examples/` | |", "table rows"),
    ],
)
def test_a_change_to_one_language_only_would_be_seen(before: str, after: str, part: str) -> None:
    text = (ROOT / "README.md").read_text()
    assert before in text
    assert skeleton(text.replace(before, after, 1))[part] != skeleton(text)[part]


@pytest.mark.parametrize("path", TRANSLATED, ids=lambda path: path.stem)
def test_each_language_leads_to_the_other_first(path: Path) -> None:
    for one, other in ((path, chinese(path)), (chinese(path), path)):
        assert re.findall(r"\]\(([^)]+)\)", one.read_text())[0] == other.name


# Half-width punctuation that touches a Chinese character; code and the targets of links are not text.
HALF_WIDTH = re.compile(r"[\u4e00-\u9fff*][,;:!?()]|[,;:!?()][\u4e00-\u9fff*]")


def half_width(text: str) -> list[str]:
    return HALF_WIDTH.findall(re.sub(r"`[^`]*`|\]\([^)]*\)", " ", FENCED.sub("", text)))


CHINESE = [
    *(chinese(path) for path in TRANSLATED),
    *(ROOT / "src" / "onepass" / "ladder").glob("*/rungs.toml"),
]


@pytest.mark.parametrize("path", CHINESE, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_chinese_is_set_in_full_width_punctuation(path: Path) -> None:
    assert not half_width(path.read_text())
    assert half_width("逐块运行,再预测时间") and half_width("方法(见下)")


def unknown(text: str) -> list[str]:
    """Of the commands in a document's running text and tables, those with a verb or an option that isn't there."""
    verbs = get_command(_application()).commands  # type: ignore[attr-defined]
    found = []
    for command in re.findall(r"`(onepass [a-z][^`]*)`", FENCED.sub("", text)):
        words = command.split()[1:]
        verb = verbs.get(words[0])
        options = {o for p in verb.params for o in p.opts} if verb else set()
        if verb is None or not {w for w in words if w.startswith("--")} <= options:
            found.append(command)
    return found


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_commands_of_the_readme_have_the_verbs_and_options_it_names(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not unknown(text)
    assert text.count("`onepass ") >= 10
    assert unknown('`onepass diff A.json B.json --gate "x==0"` or `onepass explode`') == [
        'onepass diff A.json B.json --gate "x==0"',
        "onepass explode",
    ]
