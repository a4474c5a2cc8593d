"""Figures and words as they stand on the page, and how wide text in a picture is."""

from __future__ import annotations

import unicodedata

# The widest of the usual fixed-width fonts (DejaVu Sans Mono, Menlo: 0.602 em; Consolas, Courier New: less).
ADVANCE = 0.605


def text_width(text: str, size: float) -> float:
    """An upper bound of a line's width in the pictures' fixed-width font. Units: px, ``size`` the font's."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text) * ADVANCE * size


def clipped(text: str, most: int) -> str:
    """At most so many characters; the middle goes, as names differ at both ends."""
    if len(text) <= most:
        return text
    tail = most // 3
    return f"{text[: most - tail - 1]}…{text[-tail:]}"


def nbytes(n: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(n) >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n:.0f} B"


def us(time_us: float) -> str:
    return f"{time_us:,.1f} µs" if abs(time_us) < 1e4 else f"{time_us / 1e3:,.1f} ms"


def counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
