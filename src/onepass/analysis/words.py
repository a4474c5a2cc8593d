"""The words of reports and pages in English and Chinese.

A label has a name in strings.toml. Sentences that other stages wrote in English, such as a schedule's account of itself,
are known by their pattern, and what no pattern knows stays as it was written.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from onepass.errors import NoSuchLanguage

ENGLISH, CHINESE = "en", "zh"
LANGUAGES = (ENGLISH, CHINESE)
# What HTML calls them.
TAGS = {ENGLISH: "en", CHINESE: "zh-CN"}


@cache
def strings() -> Mapping[str, Any]:
    """The whole file: labels by language, phrases, and the reasons of decisions."""
    return tomllib.loads((Path(__file__).parent / "strings.toml").read_text(encoding="utf-8"))


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Each English phrase as a pattern, with the Chinese one that its holes go into."""
    return tuple((_pattern(phrase["en"]), phrase["zh"]) for phrase in strings()["phrases"].values())


def _pattern(phrase: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", phrase)
    return re.compile("".join(f"(?P<{p}>.+?)" if i % 2 else re.escape(p) for i, p in enumerate(parts)))


@dataclass(frozen=True)
class Words:
    """A language to speak: ``words("kernel")`` is a label, with values for the names in its braces."""

    language: str = ENGLISH

    def __call__(self, name: str, /, **values: Any) -> str:
        return str(strings()[self.language][name]).format(**values)

    def has(self, name: str) -> bool:
        return name in strings()[self.language]

    @property
    def tag(self) -> str:
        """The language as HTML names it."""
        return TAGS[self.language]

    def count(self, name: str, n: int) -> str:
        """So many of something: ``1 kernel``, ``2 kernels``."""
        return self(f"{name}_1" if n == 1 else f"{name}_n", n=n)

    def reason(self, code: str, english: str) -> str:
        """What a decision's reason means."""
        return english if self.language == ENGLISH else str(strings()["reasons"].get(code, english))

    def phrase(self, text: str) -> str:
        """A sentence written in English by another stage."""
        if self.language == ENGLISH:
            return text
        for pattern, chinese in _patterns():
            if found := pattern.fullmatch(text):
                return chinese.format(**{name: self.phrase(part) for name, part in found.groupdict().items()})
        return text


IN_ENGLISH = Words()


def words_of(language: str) -> Words:
    """Raises: NoSuchLanguage with the nearest names."""
    if language not in LANGUAGES:
        raise NoSuchLanguage(
            language, tuple(difflib.get_close_matches(language, LANGUAGES, cutoff=0.4) or LANGUAGES)
        )
    return Words(language)
