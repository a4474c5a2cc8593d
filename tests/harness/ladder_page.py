"""The ladder that docs/ladder/new.md writes out."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "ladder" / "new.md"


def written(folder: Path) -> Path:
    """The ladder that the page writes out, as files."""
    blocks = re.findall(r"`scale/([\w.]+)`:\n\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for name, text in blocks:
        (folder / name).write_text(text)
    assert [name for name, _ in blocks] == ["rungs.toml", "reference.py", "a1.cu", "a2.cu"]
    return folder
