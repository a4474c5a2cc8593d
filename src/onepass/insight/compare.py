"""Two results compared, before and after: what became of each measurement, and when two can't be compared at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Two runs of one kernel on an undisturbed machine differ by less than this (H200, 512 MiB tensors: 1 %).
SAME_WITHIN = 0.02
# A run with a wider spread says nothing about a few per cent.
TOO_WIDE = 0.10

# What makes two rows the same measurement.
_KEY = ("case", "direction", "dtype", "rows", "cols", "contender", "protocol", "device")
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Judgement:
    """What became of one measurement. ``speedup`` is old time ÷ new time, the roof's drift taken out."""

    key: tuple[Any, ...]
    verdict: str
    speedup: float
    reason: str


def judge(old: Entry, new: Entry) -> Judgement:
    """Compare two rows of the same measurement."""
    by_time = old["median_us"] / new["median_us"]
    drift = _drift(old, new)
    speedup = by_time / drift
    noise = math.hypot(_relative_spread(old), _relative_spread(new)) / 2
    verdict, reason = _verdict(speedup, by_time, drift, noise)
    return Judgement(key_of(new), verdict, speedup, reason)


def _verdict(speedup: float, by_time: float, drift: float, noise: float) -> tuple[str, str]:
    change = speedup - 1
    if noise > TOO_WIDE:
        return "AMBIGUOUS", f"samples spread by ± {noise:.1%}"
    if abs(drift - 1) > SAME_WITHIN and (by_time - 1) * change < 0:
        return "AMBIGUOUS", f"the time changed by {by_time - 1:+.1%}, the roof by {drift - 1:+.1%}"
    if abs(change) <= SAME_WITHIN:
        return "SAME", f"{change:+.1%}, within {SAME_WITHIN:.0%}"
    if abs(change) <= noise:
        return "AMBIGUOUS", f"{change:+.1%}, samples spread by ± {noise:.1%}"
    return ("FASTER" if change > 0 else "SLOWER"), f"{change:+.1%}, samples spread by ± {noise:.1%}"


def _drift(old: Entry, new: Entry) -> float:
    """How much faster memory was in the new run; 1 where the roof does not bind, and for the roof itself."""
    if old.get("protocol") == "graph-warm" or new["contender"] == "roof":
        return 1.0
    before, after = old.get("roof_gbps"), new.get("roof_gbps")
    return after / before if before and after else 1.0


def _relative_spread(entry: Entry) -> float:
    return float(entry["iqr_us"]) / float(entry["median_us"])


def compare(old: Sequence[Entry], new: Sequence[Entry]) -> list[Judgement]:
    """Judge every measurement that both files have, in the new one's order."""
    before = {key_of(entry): entry for entry in old if entry["median_us"]}
    return [
        judge(before[key_of(entry)], entry) for entry in new if entry["median_us"] and key_of(entry) in before
    ]


def key_of(entry: Entry) -> tuple[Any, ...]:
    """What two rows of the same measurement have in common."""
    return tuple(entry.get(k) for k in _KEY)


# Documents: what `onepass bench` and `onepass inspect` write

SCHEMA = "onepass.diff/1"
COMPARABLE = ("onepass.bench/1", "onepass.inspect/1")
BETTER, WORSE, CANNOT_TELL, NOT_COMPARABLE = "better", "worse", "cannot tell", "not comparable"
_OF_SPEED = {"FASTER": BETTER, "SLOWER": WORSE, "SAME": CANNOT_TELL, "AMBIGUOUS": CANNOT_TELL}

# What must agree before two times say anything about the code.
_CONDITIONS = ("device", "protocol", "tensors")
# Of a kernel, what is better smaller; the rest of a record is neither. Occupancy is an entry ticket: kernels with more
# bytes in flight a thread are as fast with less of it.
_SMALLER = ("spill_bytes", "local_accesses")
_NEITHER = (
    "occupancy",
    "registers",
    "shared_bytes",
    "threads",
    "instructions",
    "special_instructions",
    "barrier_instructions",
    "shuffle_instructions",
    "widest_load_bits",
    "widest_store_bits",
    "bytes_in_flight",
)
# Documents from before these were counted are compared by the rest.
_EXECUTED = ("barriers_per_row", "memory_instructions_per_row", "bytes_per_row")


@dataclass(frozen=True)
class Difference:
    """What became of one thing between two documents."""

    name: str
    verdict: str
    reason: str
    changes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "reason": self.reason,
            "changes": list(self.changes),
        }


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Compare two documents: of `onepass bench` the time, of `onepass inspect` each kernel on each architecture."""
    schemas = [str(d.get("schema")) for d in (old, new)]
    if schemas[0] != schemas[1] or schemas[0] not in COMPARABLE:
        return [
            Difference("the documents", NOT_COMPARABLE, f"one is {schemas[0]}, the other {schemas[1]}")
            if schemas[0] != schemas[1]
            else Difference("the documents", NOT_COMPARABLE, f"{schemas[0]} holds nothing to compare")
        ]
    return _diff_bench(old, new) if schemas[0] == COMPARABLE[0] else _diff_inspect(old, new)


def fault_in(document: Mapping[str, Any]) -> str:
    """What a document lacks of what its schema has, or has wrong; empty where it is whole, or of another schema."""
    if document.get("schema") == COMPARABLE[0]:
        return _fault_in_row(document)
    if document.get("schema") != COMPARABLE[1]:
        return ""
    kernels = document.get("kernels")
    if not isinstance(kernels, list) or not kernels:
        return "it has no kernels"
    return next(filter(None, map(_fault_in_kernel, kernels)), "")


def _fault_in_row(row: Mapping[str, Any]) -> str:
    texts = [k for k in ("target", "void", "device", "protocol") if not isinstance(row.get(k), str)]
    tables = [k for k in ("tensors", "versions") if not isinstance(row.get(k), dict)]
    if texts or tables:
        return f"{', '.join(texts + tables)} missing or wrong"
    if row["void"]:
        return ""
    numbers = [
        k for k in ("median_us", "gbps", "roof_gbps", "attained") if not _number(row.get(k)) or row[k] <= 0
    ]
    numbers += ["iqr_us"] if not _number(row.get("iqr_us")) or row["iqr_us"] < 0 else []
    return f"{', '.join(numbers)} missing or not above 0" if numbers else ""


def _fault_in_kernel(kernel: Any) -> str:
    if not isinstance(kernel, dict):
        return "a kernel is no object"
    texts = [k for k in ("name", "demangled", "arch") if not isinstance(kernel.get(k), str)]
    numbers = [
        k for k in (*_SMALLER, *_NEITHER) if k not in kernel or not (kernel[k] is None or _number(kernel[k]))
    ]
    accesses = kernel.get("memory")
    whole = accesses is None or (isinstance(accesses, list) and all(map(_is_access, accesses)))
    wrong = texts + numbers + ([] if whole and "counted_in" in kernel else ["memory or counted_in"])
    return f"{', '.join(wrong)} of a kernel missing or wrong" if wrong else ""


def _is_access(m: Any) -> bool:
    kinds = (("space", str), ("kind", str), ("bits", int | None), ("count", int))
    return isinstance(m, dict) and all(k in m and isinstance(m[k], kind) for k, kind in kinds)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _diff_bench(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    name = f"{old['target']} → {new['target']}" if old["target"] != new["target"] else str(new["target"])
    void = [f"the {when} row is void: {d['void']}" for when, d in (("old", old), ("new", new)) if d["void"]]
    other = [f"{k}: {old[k]} and {new[k]}" for k in _CONDITIONS if old[k] != new[k]]
    if void or other:
        return [Difference(name, NOT_COMPARABLE, "; ".join(void + other))]
    judged = judge({**old, "contender": "this"}, {**new, "contender": "this"})
    changes = [f"{k} {old[k]:.4g} → {new[k]:.4g}" for k in ("median_us", "gbps", "attained")]
    # No condition: a time on another version measures the upgrade, which the note names.
    before, after = old["versions"], new["versions"]
    changes += [
        f"{k} {before.get(k, 'none')} → {after.get(k, 'none')}"
        for k in dict.fromkeys((*before, *after))
        if before.get(k) != after.get(k)
    ]
    return [Difference(name, _OF_SPEED[judged.verdict], judged.reason, tuple(changes))]


def _diff_inspect(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    before, after = _by_name(old["kernels"]), _by_name(new["kernels"])
    if not before.keys() & after.keys() and len(before) == len(after) == 1:
        # One kernel each, renamed: still a before and an after if the architecture is the same.
        (b,), (a,) = before.values(), after.values()
        if b["arch"] == a["arch"]:
            return [_diff_kernel(b, a)]
    found = [_diff_kernel(before[k], after[k]) for k in after if k in before]
    for only, where in ((before.keys() - after.keys(), "old"), (after.keys() - before.keys(), "new")):
        found += [
            Difference(f"{n} on {arch}", NOT_COMPARABLE, f"only in the {where} document")
            for n, arch, _ in sorted(only)
        ]
    return found


def _by_name(kernels: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, int], Mapping[str, Any]]:
    """By name and architecture, those of the same by their place among them: a library may hold several."""
    found: dict[tuple[str, str, int], Mapping[str, Any]] = {}
    for k in kernels:
        place = sum(1 for n, arch, _ in found if (n, arch) == (k["name"], k["arch"]))
        found[k["name"], k["arch"], place] = k
    return found


def _diff_kernel(old: Mapping[str, Any], new: Mapping[str, Any]) -> Difference:
    name = f"{new['demangled']} on {new['arch']}"
    if old["counted_in"] != new["counted_in"]:
        return Difference(name, NOT_COMPARABLE, f"counted in {old['counted_in']} and {new['counted_in']}")
    changes = [_change(k, old, new) for k in (*_SMALLER, *_NEITHER) if old[k] != new[k]]
    changes += [_change(k, old, new) for k in _EXECUTED if k in old and k in new and old[k] != new[k]]
    changes += _memory_changes(old, new)
    good = [k for k in _SMALLER if _less(new[k], old[k])]
    bad = [k for k in _SMALLER if _less(old[k], new[k])]
    unknown = [k for k in _SMALLER if (old[k] is None) != (new[k] is None)]
    if unknown:
        verdict, reason = NOT_COMPARABLE, f"{', '.join(unknown)} known in one document only"
    elif good and bad:
        verdict, reason = CANNOT_TELL, f"{', '.join(good)} better, {', '.join(bad)} worse: measure it"
    elif good or bad:
        verdict, reason = (BETTER if good else WORSE), f"{', '.join(good or bad)}; time it to be sure"
    elif changes:
        verdict, reason = CANNOT_TELL, "what changed is neither better nor worse by itself: measure it"
    else:
        verdict, reason = CANNOT_TELL, "no quantity differs"
    return Difference(name, verdict, reason, tuple(changes))


def _less(a: Any, b: Any) -> bool:
    return a is not None and b is not None and a < b


def _change(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    def said(value: Any) -> str:
        return "unknown" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    return f"{key} {said(old[key])} → {said(new[key])}"


def _memory_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Accesses by space, kind and width whose number changed."""

    def counted(record: Mapping[str, Any]) -> dict[tuple[str, str, int], int]:
        return {(m["space"], m["kind"], m["bits"] or 0): m["count"] for m in record["memory"] or ()}

    before, after = counted(old), counted(new)
    return [
        f"{space} {kind} {bits} bits {before.get(k, 0)} → {after.get(k, 0)}"
        for k in sorted({*before, *after})
        for space, kind, bits in (k,)
        if before.get(k, 0) != after.get(k, 0)
    ]


def overall(found: Sequence[Difference]) -> str:
    """One verdict for all: worse if one is, else what all are, else that none can be told."""
    verdicts = {d.verdict for d in found}
    if WORSE in verdicts:
        return WORSE
    if len(verdicts) == 1:
        return verdicts.pop()
    return BETTER if BETTER in verdicts and NOT_COMPARABLE not in verdicts else CANNOT_TELL
