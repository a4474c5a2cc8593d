"""What a kernel's machine code holds, as facts of a page."""

from __future__ import annotations

from onepass.analysis.html.page import Fact
from onepass.analysis.machine_code import Access, MachineCode
from onepass.analysis.words import Words


def code_facts(code: MachineCode | str | None, words: Words, spill_bytes: int | None = None) -> list[Fact]:
    """Instructions by kind, memory instructions by width and space; ``spill_bytes`` as the compiler counts them.

    Empty where there is no machine code to read, or it could not be read: then ``code`` says why.
    """
    if code is None or isinstance(code, str):
        return []
    facts = [
        Fact(words("code_instructions"), str(code.total)),
        *_accesses(code, words),
        Fact(words("code_special"), str(code.special)),
        Fact(words("code_barriers"), str(code.barriers)),
        Fact(words("code_shuffles"), str(code.shuffles)),
        Fact(words("code_local"), _spills(code, words, spill_bytes)),
    ]
    if code.bytes_in_flight is not None:
        facts.append(Fact(words("code_in_flight"), str(code.bytes_in_flight)))
    return facts


def _accesses(code: MachineCode, words: Words) -> list[Fact]:
    """A fact a space and kind, with how often each width stands there, the widest first."""
    found: dict[tuple[str, str], list[str]] = {}
    for access, n in code.memory.items():
        if access.space != "local":  # told as spills
            found.setdefault((access.space, access.kind), []).append(_width(access, n, words))
    return [
        Fact(words(f"access_{kind}", space=words(f"space_{space.replace(' ', '_')}")), ", ".join(widths))
        for (space, kind), widths in found.items()
    ]


def _width(access: Access, n: int, words: Words) -> str:
    return words("access_width", n=n, bits=access.bits) if access.bits else words("access_block", n=n)


def _spills(code: MachineCode, words: Words, spill_bytes: int | None) -> str:
    if spill_bytes:
        return words("code_spills", n=spill_bytes)
    local = [_width(a, n, words) for a, n in code.memory.items() if a.space == "local"]
    return ", ".join(local) or words("code_no_spills")
