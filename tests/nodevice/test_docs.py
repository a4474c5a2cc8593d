"""Generated documents are what the tables say."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from onepass.ops.composite import COMPOSITES
from onepass.ops.elementwise import ELEMENTWISE
from onepass.ops.table import BY_ATEN, COMPUTE_BOUND, LEFT, VIEWS
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
    for row in (*ELEMENTWISE, *COMPOSITES):
        assert f"| `{row.name}` |" in ops
    for setting in SETTINGS:
        assert f"| `{setting.name}` |" in settings


def test_an_op_is_in_one_table_only() -> None:
    tables = [set(BY_ATEN), VIEWS, COMPUTE_BOUND, set(LEFT)]
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))
