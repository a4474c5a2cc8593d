"""Gates: rules such as `spill_bytes==0, attained>=0.9` that a record of numbers keeps or breaks."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onepass.errors import BadGate, did_you_mean

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}

# What rules may be about. A record has those of its verb; a rule about another's is refused, never passed over.
INSPECT = (
    "registers",
    "spill_bytes",
    "spill_store_bytes",
    "spill_load_bytes",
    "stack_bytes",
    "shared_bytes",
    "barriers",
    "occupancy",
    "instructions",
    "special_instructions",
    "barrier_instructions",
    "shuffle_instructions",
    "local_accesses",
    "widest_load_bits",
    "widest_store_bits",
    "bytes_in_flight",
)
BENCH = ("median_us", "iqr_us", "gbps", "roof_gbps", "attained", "ideal_bytes")
QUANTITIES = (*INSPECT, *BENCH)


@dataclass(frozen=True)
class Rule:
    """One rule of a gate."""

    quantity: str
    compare: str
    value: float

    def holds(self, found: float) -> bool:
        return _COMPARE[self.compare](found, self.value)

    def __str__(self) -> str:
        return f"{self.quantity}{self.compare}{self.value:g}"


def read_gate(text: str) -> tuple[Rule, ...]:
    """The rules of a gate, at least one.

    Raises: BadGate for a gate without a rule, a rule that can't be read, an unknown quantity.
    """
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts:
        raise BadGate(text, "it has no rule", 'Write one, for example "spill_bytes==0, registers<=64".')
    return tuple(_rule(text, part) for part in parts)


def _rule(text: str, part: str) -> Rule:
    found = re.fullmatch(r"(\w+)\s*(==|!=|<=|>=|<|>)\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)", part)
    try:
        value = float(found[3]) if found else None
    except ValueError:
        value = None
    if found is None or value is None:
        raise BadGate(
            text, f"{part!r} is no rule", f"Write QUANTITY, one of {' '.join(_COMPARE)}, and a number."
        )
    if found[1] not in QUANTITIES:
        near = did_you_mean(found[1], QUANTITIES)
        raise BadGate(text, f"unknown quantity {found[1]!r}", f"{near}Known are {', '.join(QUANTITIES)}.")
    return Rule(found[1], found[2], value)


def broken(rules: Sequence[Rule], records: Mapping[str, Mapping[str, Any]], gate: str) -> list[str]:
    """Which rules which records break, in words; ``records`` by what to call them.

    Raises: BadGate where a record lacks a quantity: what is not known is not passed.
    """
    said = []
    for name, record in records.items():
        for rule in rules:
            found = record.get(rule.quantity)
            if found is None:
                raise BadGate(gate, f"{name} has no {rule.quantity}", _why_not(rule.quantity, record))
            if not rule.holds(float(found)):
                said.append(f"{name}: {rule.quantity} is {found:g}, asked {rule}")
    return said


def _why_not(quantity: str, record: Mapping[str, Any]) -> str:
    missing = " ".join(record.get("missing", ()))
    has = [q for q in QUANTITIES if record.get(q) is not None]
    return f"{missing} It has {', '.join(has) or 'none that a gate can ask for'}.".strip()
