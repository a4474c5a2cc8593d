"""When a figure does not count, and whether those that do hold what was asked."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from measure import ROOF, Measured
from onepass.analysis.roofline import MOST_OF_ROOF


@cache
def anchors() -> dict[str, Any]:
    """What earlier runs reached, by device."""
    return tomllib.loads((Path(__file__).parent / "anchors.toml").read_text())


def voids(measured: Measured, device_name: str) -> dict[str, str]:
    """Contender → why its row does not count; every row of a point whose run was disturbed."""
    disturbed = _disturbed(measured, anchors().get(device_name, {}))
    if disturbed:
        return dict.fromkeys(measured.us, disturbed)
    found = {}
    for name in measured.us:
        attained = measured.gbps(name) / measured.roof_gbps
        # Warm, or bound by its launch, a kernel is not held by the memory that the roof measures.
        if name != ROOF and measured.protocol != "graph-warm" and attained > MOST_OF_ROOF:
            found[name] = f"{attained:.1%} of the measured roof"
    return found


def _disturbed(measured: Measured, known: Mapping[str, Any]) -> str:
    if not known or measured.protocol != "cold":
        return ""
    reads, writes, _ = measured.point.streams
    least = known["roof"].get(f"{reads}-{writes}", 0)
    if measured.roof_gbps < least:
        return f"roof {measured.roof_gbps:.0f} GB/s, at least {least} is known"
    for name, gbps in _expected(measured, known).items():
        names = measured.others if name == "best" else [name] if name in measured.us else []
        best = max((measured.gbps(n) for n in names), default=math.inf)
        if best < gbps * (1 - known["slack"]):
            return f"{name} {best:.0f} GB/s, {gbps} is known"
    return ""


def _expected(measured: Measured, known: Mapping[str, Any]) -> dict[str, float]:
    point = measured.point
    entry = known["forward"].get(point.case.name, {}).get(point.dtype, {})
    if point.cols not in entry.get("cols", ()):
        return {}
    at = entry["cols"].index(point.cols)
    return {name: values[at] for name, values in entry.items() if name != "cols"}


@dataclass(frozen=True)
class Verdict:
    """One thing asked of onepass at a point or over a group: what was found beside what was asked."""

    subject: str
    asked: str
    wanted: float
    found: float

    @property
    def holds(self) -> bool:
        return self.found >= self.wanted

    def __str__(self) -> str:
        sign = "≥" if self.holds else "<"
        return f"{self.subject}: {self.asked} {self.found:.3f} {sign} {self.wanted}"


def verdicts(all_measured: Sequence[Measured]) -> list[Verdict]:
    """What was asked of onepass, point by point and for the means of groups."""
    found = [v for m in all_measured for v in _of_point(m)]
    groups: dict[tuple[str, int], list[Measured]] = {}
    for m in all_measured:
        groups.setdefault((m.point.case.name, m.point.group), []).append(m)
    for (name, _), members in groups.items():
        found += mean_verdicts(name, members, members[0].point.targets.mean_of)
    return found


def mean_verdicts(subject: str, members: Sequence[Measured], mean_of: Mapping[str, float]) -> list[Verdict]:
    """What was asked of the geometric mean over points."""
    found = []
    for other, wanted in mean_of.items():
        ratios = [m.ratio("onepass", other) for m in members if {"onepass", other} <= m.us.keys()]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            found.append(Verdict(f"{subject}, geometric mean", f"× {other}", wanted, mean))
    return found


def _of_point(m: Measured) -> list[Verdict]:
    targets = m.point.targets
    asked = any((targets.attained, targets.of_peers, targets.of, targets.mean_of))
    if "onepass" not in m.us:
        why = m.faults.get("onepass") or m.absent.get("onepass") or "void"
        return [Verdict(str(m.point), f"no figure ({why})", 1.0, 0.0)] if asked else []
    found = []
    if targets.attained is not None:
        attained = m.gbps("onepass") / m.roof_gbps
        found.append(Verdict(str(m.point), "share of the roof", targets.attained, attained))
    if targets.of_peers is not None and m.others:
        best = min(m.others, key=lambda name: m.spread(name).median)
        found.append(
            Verdict(str(m.point), f"× {best}, the best other", targets.of_peers, m.ratio("onepass", best))
        )
    for other, wanted in targets.of.items():
        if other in m.us:
            found.append(Verdict(str(m.point), f"× {other}", wanted, m.ratio("onepass", other)))
    return found
