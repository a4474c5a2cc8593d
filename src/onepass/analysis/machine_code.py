"""Machine code as `nvdisasm -json` gives it, or PTX where no disassembler reads it: what a kernel's text holds.

All counts are static: how often an instruction stands in the text, not how often it is executed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["load", "store", "atomic", "copy"]

# Opcode → where it goes and what it does. LDC and LDCU read constants and parameters, which no kernel is measured by.
MEMORY: dict[str, tuple[str, Kind]] = {
    "LDG": ("global", "load"),
    "STG": ("global", "store"),
    "LDS": ("shared", "load"),
    "LDSM": ("shared", "load"),
    "STS": ("shared", "store"),
    "STSM": ("shared", "store"),
    "LDL": ("local", "load"),
    "STL": ("local", "store"),
    "LD": ("generic", "load"),
    "ST": ("generic", "store"),
    "ATOMG": ("global", "atomic"),
    "REDG": ("global", "atomic"),
    "RED": ("global", "atomic"),
    "ATOMS": ("shared", "atomic"),
    "ATOM": ("generic", "atomic"),
    "LDGSTS": ("global to shared", "copy"),
    "UBLKCP": ("global to shared", "copy"),
    "UTMALDG": ("global to shared", "copy"),
    "UTMASTG": ("shared to global", "copy"),
}
# Copies of a whole block, whose bytes no modifier tells.
_BULK = ("UBLKCP", "UTMALDG", "UTMASTG")
_WIDTH = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}

_PTX_SPECIAL = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh")
_PTX_KIND: dict[str, Kind] = {"ld": "load", "st": "store", "atom": "atomic", "red": "atomic"}


@dataclass(frozen=True)
class Access:
    """A memory instruction's space, what it does, and its width a thread; 0 bits where the text does not tell."""

    space: str
    kind: Kind
    bits: int


@dataclass(frozen=True)
class Instruction:
    """One instruction; ``line`` is the source's, 0 where none is known."""

    opcode: str
    operands: str
    access: Access | None = None
    predicate: str = ""
    file: str = ""
    line: int = 0

    @property
    def name(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]


@dataclass(frozen=True)
class MachineCode:
    """The instructions of one kernel, from its machine code or from PTX."""

    name: str
    origin: Literal["machine code", "PTX"]
    instructions: tuple[Instruction, ...]

    @property
    def total(self) -> int:
        return len(self.instructions)

    @property
    def special(self) -> int:
        """Instructions of the special-function unit: exp2, log2, reciprocals and roots, sine, tanh."""
        if self.origin == "PTX":
            return sum(
                i.name in _PTX_SPECIAL and (".approx" in i.opcode or ".rn" not in i.opcode)
                for i in self.instructions
            )
        return sum(i.name == "MUFU" for i in self.instructions)

    @property
    def barriers(self) -> int:
        """Instructions that wait for a block or a cluster."""
        if self.origin == "PTX":
            return sum(
                i.name == "bar" or (i.name == "barrier" and ".arrive" not in i.opcode)
                for i in self.instructions
            )
        return sum(i.name in ("BAR", "UCGABAR_WAIT") for i in self.instructions)

    @property
    def shuffles(self) -> int:
        return sum(i.name in ("SHFL", "shfl") for i in self.instructions)

    @property
    def memory(self) -> dict[Access, int]:
        """How often each kind of access stands in the text, the widest of a space first."""
        found = Counter(i.access for i in self.instructions if i.access)
        return dict(sorted(found.items(), key=lambda item: (item[0].space, item[0].kind, -item[0].bits)))

    def count(self, space: str, kind: Kind, bits: int | None = None) -> int:
        """Accesses of a space and kind, of one width or of all."""
        return sum(
            n for a, n in self.memory.items() if (a.space, a.kind) == (space, kind) and bits in (None, a.bits)
        )

    @property
    def lines(self) -> dict[tuple[str, int], tuple[Instruction, ...]]:
        """Source line → its instructions, in the order of the lines; empty without line information."""
        found: dict[tuple[str, int], list[Instruction]] = {}
        for i in self.instructions:
            if i.line:
                found.setdefault((i.file, i.line), []).append(i)
        return {place: tuple(found[place]) for place in sorted(found)}

    @property
    def bytes_in_flight(self) -> int | None:
        """Most bytes a thread has under way from global memory; None for PTX, whose order the assembler changes.

        The rule: walk the text once from top to bottom, a loop's body once. A load is under way until an instruction
        names one of the registers it fills, a copy to shared memory until the next wait. What stands after an exit or
        a jump that is always taken starts anew.
        """
        return None if self.origin == "PTX" else _most_in_flight(self.instructions)


def _most_in_flight(code: Iterable[Instruction]) -> int:
    loads: list[tuple[frozenset[int], int]] = []
    copied = most = 0
    for i in code:
        named = _registers(i)
        loads = [(filled, size) for filled, size in loads if not filled & named]
        if i.name in ("BAR", "DEPBAR", "LDGDEPBAR"):
            copied = 0 if i.name != "LDGDEPBAR" else copied
        elif i.access and i.access.space.startswith("global"):
            size = i.access.bits // 8
            if i.access.kind == "load":
                loads.append((_span(_first_register(i.operands), i.access.bits), size))
            elif i.access.kind == "copy":
                copied += size
        elif i.name in ("EXIT", "BRA", "RET") and not i.predicate:
            loads, copied = [], 0
        most = max(most, copied + sum(size for _, size in loads))
    return most


def _registers(i: Instruction) -> frozenset[int]:
    """Numbers of the registers an instruction names; of a store's value all it fills."""
    found = {int(n) for n in re.findall(r"\bR(\d+)", i.operands)}
    for n in re.findall(r"\bR(\d+)\.64", i.operands):
        found.add(int(n) + 1)
    if i.access:
        value = re.search(r"(?:,|^)R(\d+)\b(?!\.64)[^,]*$", i.operands) if i.access.kind == "store" else None
        if value:
            found |= _span(int(value[1]), i.access.bits)
    return frozenset(found)


def _first_register(operands: str) -> int:
    found = re.match(r"(?:U?P\w+,)?R(\d+)", operands)
    return int(found[1]) if found else -1


def _span(first: int, bits: int) -> frozenset[int]:
    return frozenset(range(first, first + max(1, bits // 32))) if first >= 0 else frozenset()


def read_machine_code(document: Sequence[Any]) -> dict[str, MachineCode]:
    """Every function of what `nvdisasm -json` or `nvdisasm -json -g` prints, by name.

    Padding is left out: NOP, and the jump to itself that ends a function. Source: schema 13.5 of nvdisasm.
    """
    parts = {type(p): p for p in document[1:]}
    files = _files(parts.get(dict, {}))
    return {f["function-name"]: _function(f, files) for f in parts.get(list, ())}


def _files(table: Mapping[str, Any]) -> list[str]:
    # The folder is where the compiler ran: it says nothing of a text that came from memory.
    return [str(entry["file"]) for entry in table.get("files", ())]


def _function(function: Mapping[str, Any], files: Sequence[str]) -> MachineCode:
    code, file, line = [], "", 0
    for at, raw in enumerate(function["sass-instructions"]):
        if "source-file-id" in raw:
            number = raw["source-file-id"]
            file = files[number] if number < len(files) else ""
        line = raw.get("source-line", line)
        opcode, operands = raw["opcode"], raw.get("operands", "")
        itself = hex(function.get("start", 0) + 16 * at)
        if opcode == "NOP" or (opcode == "BRA" and operands == itself and "predicate" not in raw):
            continue
        code.append(Instruction(opcode, operands, _access(opcode), raw.get("predicate", ""), file, line))
    return MachineCode(function["function-name"], "machine code", tuple(code))


def _access(opcode: str) -> Access | None:
    name, *modifiers = opcode.split(".")
    if name not in MEMORY:
        return None
    space, kind = MEMORY[name]
    if name in _BULK:
        return Access(space, kind, 0)
    if name in ("LDSM", "STSM"):  # a warp moves 1, 2 or 4 matrices of 128 bytes: 32 bits a lane each
        return Access(space, kind, 32 * next((int(m) for m in reversed(modifiers) if m in ("2", "4")), 1))
    return Access(space, kind, next((_WIDTH[m] for m in reversed(modifiers) if m in _WIDTH), 32))


def read_ptx(text: str) -> dict[str, MachineCode]:
    """Every entry of a PTX text, by name. The assembler still merges, drops and adds instructions."""
    text = re.sub(r"//[^\n]*", "", text)
    files = {int(n): path.rpartition("/")[2] for n, path in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', text)}
    found = {}
    for match in re.finditer(r"\.entry\s+([\w$]+)", text):
        body = _body(text, match.end())
        found[match[1]] = MachineCode(match[1], "PTX", tuple(_ptx_instructions(body, files)))
    return found


def _body(text: str, start: int) -> str:
    """What stands between the braces that open next; nested ones belong to it."""
    begin = depth = 0
    for at in range(start, len(text)):
        if text[at] == "{":
            begin, depth = (begin or at + 1), depth + 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return text[begin:at]
    return text[begin:]


def _ptx_instructions(body: str, files: Mapping[int, str]) -> Iterable[Instruction]:
    file, line = "", 0
    # Braces around a line of assembly are scopes, those inside an instruction hold a vector's registers.
    for raw in re.split(r";|\n", body):
        place = re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", raw)
        if place:
            file, line = files.get(int(place[1]), ""), int(place[2])
        found = re.match(r"[\s{]*(?:[\w$]+:)?\s*(@!?%?\w+)?\s*([a-z][\w.:]*)(?:\s+(.*))?$", raw)
        if found:
            predicate, opcode, operands = found[1] or "", found[2], (found[3] or "").strip()
            yield Instruction(opcode, operands, _ptx_access(opcode), predicate, file, line)


def _ptx_access(opcode: str) -> Access | None:
    name, *modifiers = opcode.split(".")
    if name == "cp" and "async" in modifiers:
        return Access("global to shared", "copy", 0)
    if name not in _PTX_KIND or "param" in modifiers or "const" in modifiers:
        return None
    spaces = (m.partition("::")[0] for m in modifiers)
    space = next((m for m in spaces if m in ("global", "shared", "local")), "generic")
    count = next((int(m[1:]) for m in modifiers if re.fullmatch(r"v[248]", m)), 1)
    return Access(space, _PTX_KIND[name], count * _ptx_bits(modifiers))


def _ptx_bits(modifiers: Sequence[str]) -> int:
    for m in reversed(modifiers):
        found = re.fullmatch(r"(?:[usb]|b?f)(\d+)(x2)?", m)
        if found:
            return int(found[1]) * (2 if found[2] else 1)
    return 32


def ptx_threads(text: str) -> dict[str, int]:
    """The most threads a block may have, by entry, where the text says so (``__launch_bounds__``, Triton's warps)."""
    found = {}
    for match in re.finditer(r"\.entry\s+([\w$]+)(.*?)\{", text, re.DOTALL):
        bound = re.search(r"\.(?:maxntid|reqntid)\s+([\d,\s]+)", match[2])
        if bound:
            found[match[1]] = math.prod(int(n) for n in bound[1].replace(",", " ").split())
    return found
