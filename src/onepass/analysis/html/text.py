"""Figures and words as they stand on the page, and how wide text in a picture is."""

from __future__ import annotations

import unicodedata

# The widest of the usual fixed-width fonts (DejaVu Sans Mono, Menlo: 0.602 em; Consolas, Courier New: less).
ADVANCE = 0.605


def text_width(text: str, size: float) -> float:
    """An upper bound of a line's width in the pictures' fixed-width font. Units: px, ``size`` the font's."""
    return columns(text) * ADVANCE * size


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def clipped(text: str, most: int) -> str:
    """At most so many columns; the middle goes, as names differ at both ends."""
    if columns(text) <= most:
        return text
    tail = most // 3
    return f"{_start(text, most - tail - 1)}…{_start(text[::-1], tail)[::-1]}"


def _start(text: str, most: int) -> str:
    """As much of a text's beginning as takes so many columns."""
    while columns(text) > most:
        text = text[: min(most, len(text) - 1)]
    return text


def nbytes(n: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(n) >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n:.0f} B"


def us(time_us: float) -> str:
    return f"{time_us:,.1f} µs" if abs(time_us) < 1e4 else f"{time_us / 1e3:,.1f} ms"


def flops(gflops: float) -> str:
    for unit, size in (("PFLOP/s", 1e6), ("TFLOP/s", 1e3), ("GFLOP/s", 1.0), ("MFLOP/s", 1e-3)):
        if gflops >= size * 0.9995:
            return f"{gflops / size:.3g} {unit}"
    return f"{gflops * 1e6:.3g} kFLOP/s"
