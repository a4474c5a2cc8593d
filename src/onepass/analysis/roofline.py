"""The roofline: what bounds a kernel on a device, and by how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from onepass.analysis.traffic import Traffic
from onepass.device import Card, Device, limits_of

Bound = Literal["memory", "instructions", "special functions", "launch"]


def intensity(flops: int, nbytes: int) -> float:
    """Arithmetic intensity. Units: FLOPs a byte."""
    return flops / nbytes if nbytes else 0.0


ISSUED_LANES = 128  # four schedulers of 32 lanes


def peak_gflops(device: Device) -> float:
    """fp32 multiply-adds of a device, two operations each. Units: 1e9 operations a second."""
    lanes = limits_of(device.arch).fp32_lanes if device.kind == "cuda" else ISSUED_LANES
    return 2 * device.issue_giops * lanes / ISSUED_LANES


def limits_us(work: Traffic, device: Device) -> dict[Bound, float]:
    """The time each resource alone would need. Units: µs."""
    return {
        "memory": work.bytes / device.bandwidth_gbps / 1000,
        "instructions": work.instructions / device.issue_giops / 1000,
        "special functions": work.special / device.special_giops / 1000,
        "launch": device.launch_us,
    }


def bound(work: Traffic, device: Device) -> Bound:
    """The resource that takes longest."""
    limits = limits_us(work, device)
    return max(limits, key=lambda name: limits[name])


# Roofs, and kernels under them: what `onepass roofline` says of a function on a device

# Closer than this to the ridge, as a factor, neither resource alone explains a kernel's time.
NEAR = 1.25
# More of a measured roof than this, and what was measured is not what was meant: a cache, or miscounted bytes.
MOST_OF_ROOF = 1.02

RoofKind = Literal["time model", "datasheet", "measured"]  # the one to believe last
Verdict = Literal["memory-bound", "near the ridge", "compute-bound"]


@dataclass(frozen=True)
class Roof:
    """Two limits of a device.

    Units: ``bandwidth_gbps`` in 1e9 bytes a second, ``peak_gflops`` in 1e9 fp32 operations a second, a multiply-add counted
    as two; None where that is not known; ``mixes`` are the bandwidths of kernels by the share of reads in what they move,
    ``bandwidth_gbps`` the best of them. ``source`` says where they come from.
    """

    kind: RoofKind
    bandwidth_gbps: float
    peak_gflops: float | None
    source: str
    mixes: tuple[tuple[float, float], ...] = ()
    launch_us: float = 0.0  # what an empty kernel takes; 0 where that is not known

    @property
    def ridge(self) -> float | None:
        """The arithmetic intensity where the two meet. Units: FLOPs a byte."""
        return None if self.peak_gflops is None else self.peak_gflops / self.bandwidth_gbps

    def attainable_gflops(self, ai: float) -> float:
        """The most a kernel of this arithmetic intensity reaches."""
        return min(ai * self.bandwidth_gbps, self.peak_gflops or float("inf"))

    def mix_gbps(self, read_share: float) -> float:
        """The bandwidth of the measured mix that is nearest to this share of reads, 0 … 1."""
        return min(self.mixes, key=lambda m: abs(m[0] - read_share), default=(0.0, self.bandwidth_gbps))[1]

    def bound_us(self, flops: int, nbytes: int, read_share: float) -> float:
        """The shortest time this much work takes."""
        arithmetic = flops / self.peak_gflops if self.peak_gflops else 0.0
        return max(nbytes / self.mix_gbps(read_share), arithmetic) / 1000

    def verdict(self, ai: float) -> Verdict:
        """On which side of the ridge; where the arithmetic limit is not known, memory is the only one there is."""
        if self.ridge is None or ai * NEAR < self.ridge:
            return "memory-bound"
        return "compute-bound" if ai > self.ridge * NEAR else "near the ridge"

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "bandwidth_gbps": self.bandwidth_gbps,
            "peak_gflops": self.peak_gflops,
            "ridge_flops_per_byte": self.ridge,
            "launch_us": self.launch_us or None,
            "bandwidth_gbps_by_read_share": [list(mix) for mix in self.mixes],
            "source": self.source,
        }


@dataclass(frozen=True)
class Point:
    """One kernel, or several alike, on the roofline. Units: of one of them; bytes; µs, None where nothing was timed."""

    name: str
    count: int
    flops: int
    read_bytes: int
    written_bytes: int
    eager_bytes: int
    measured_us: float | None = None

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes

    @property
    def ai(self) -> float:
        """Arithmetic intensity. Units: FLOPs a byte."""
        return intensity(self.flops, self.bytes)

    @property
    def eager_ai(self) -> float:
        """The same where each op runs by itself."""
        return intensity(self.flops, self.eager_bytes)

    @property
    def read_share(self) -> float:
        """Of the bytes it moves, 0 … 1."""
        return self.read_bytes / self.bytes if self.bytes else 0.0

    def bound_us(self, roof: Roof) -> float:
        """The shortest time it takes under a roof."""
        return roof.bound_us(self.flops, self.bytes, self.read_share)

    def eager_us(self, roof: Roof) -> float:
        """The same where each op runs by itself, at the bandwidth of the kernel's own mix."""
        return roof.bound_us(self.flops, self.eager_bytes, self.read_share)

    def gflops(self, roof: Roof) -> float:
        """Where it stands: as measured, or else at the most that the roof allows."""
        us = self.measured_us or self.bound_us(roof)
        return self.flops / us / 1000 if us else 0.0

    def share(self, roof: Roof) -> float | None:
        """Time bound ÷ time measured, 0 … 1; None where nothing was timed."""
        return self.bound_us(roof) / self.measured_us if self.measured_us else None


@dataclass(frozen=True)
class Roofline:
    """A function's kernels under a device's roofs."""

    device: str
    roofs: tuple[Roof, ...]
    points: tuple[Point, ...]
    notes: tuple[str, ...] = ()

    @property
    def roof(self) -> Roof:
        """The one that counts: measured, or else the datasheet's."""
        return max(self.roofs, key=lambda roof: get_args(RoofKind).index(roof.kind))

    @property
    def contradictions(self) -> tuple[Point, ...]:
        """Kernels above a measured roof: L2 held their data, or their bytes are counted wrong. None is a winner."""
        if self.roof.kind != "measured":
            return ()
        return tuple(p for p in self.points if (p.share(self.roof) or 0) > MOST_OF_ROOF)

    @property
    def text(self) -> str:
        """The verdict in a sentence or two."""
        if not self.points:
            return f"No kernel of onepass in here: nothing to place under the roofs of {self.device}."
        roof, one = self.roof, sum(p.count for p in self.points) == 1
        rates = dict.fromkeys(
            f"{end(roof.mix_gbps(p.read_share) for p in self.points):.0f}" for end in (min, max)
        )
        spans = dict.fromkeys(f"{ai(p.ai for p in self.points):.2f}" for ai in (min, max))
        ridge = "an unknown ridge" if roof.ridge is None else f"a ridge of {roof.ridge:.1f}"
        return (
            f"{self._sides} on {self.device}: {' to '.join(spans)} FLOPs a byte, against {ridge}.\n"
            f"At the {roof.kind} roof of {' to '.join(rates)} GB/s {'it takes' if one else 'they take'} at least "
            f"{self.bound_us:.1f} µs fused, {self.eager_us:.1f} µs op by op.{self._short}{self._doubt}"
        )

    @property
    def _sides(self) -> str:
        """On which side of the ridge the kernels are."""
        kinds: dict[Verdict, int] = {}
        for p in self.points:
            kind = self.roof.verdict(p.ai)
            kinds[kind] = kinds.get(kind, 0) + p.count
        total = sum(kinds.values())
        if len(kinds) == 1:
            (kind,) = kinds
            return kind.capitalize() if total == 1 else f"All {total} kernels are {kind}"
        return f"Of {total} kernels " + ", ".join(f"{n} are {kind}" for kind, n in kinds.items())

    @property
    def _short(self) -> str:
        n = sum(p.count for p in self.points if p.bound_us(self.roof) < self.roof.launch_us)
        return (
            f"\nLaunch-bound, shorter than an empty kernel's {self.roof.launch_us:.1f} µs: {n}." if n else ""
        )

    @property
    def _doubt(self) -> str:
        names = ", ".join(p.name for p in self.contradictions)
        return (
            f"\nNot to be believed as measured: {names}, above the measured roof. Data was in a cache, or bytes are "
            "counted wrong."
            if names
            else ""
        )

    @property
    def bound_us(self) -> float:
        """All kernels, at the roof."""
        return sum(p.count * p.bound_us(self.roof) for p in self.points)

    @property
    def eager_us(self) -> float:
        """The same ops one by one, at the roof."""
        return sum(p.count * p.eager_us(self.roof) for p in self.points)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": "onepass.roofline/1",
            "device": self.device,
            "verdict": self.text,
            "roofs": [roof.to_dict() for roof in self.roofs],
            "kernels": [self._kernel(point) for point in self.points],
            "bound_us": self.bound_us,
            "eager_bound_us": self.eager_us,
            "notes": list(self.notes),
        }

    def _kernel(self, p: Point) -> dict[str, Any]:
        return {
            "name": p.name,
            "count": p.count,
            "flops": p.flops,
            "bytes_read": p.read_bytes,
            "bytes_written": p.written_bytes,
            "eager_bytes": p.eager_bytes,
            "arithmetic_intensity": p.ai,
            "eager_arithmetic_intensity": p.eager_ai,
            "verdict": self.roof.verdict(p.ai),
            "launch_bound": p.bound_us(self.roof) < self.roof.launch_us if self.roof.launch_us else None,
            "bound_us": {roof.kind: p.bound_us(roof) for roof in self.roofs},
            "eager_bound_us": {roof.kind: p.eager_us(roof) for roof in self.roofs},
            "measured_us": p.measured_us,
            "share": {roof.kind: p.share(roof) for roof in self.roofs},
        }


def datasheet_roof(card: Card) -> Roof | None:
    """The roof that a card's documents give, or None where they give no bandwidth."""
    if card.bandwidth_gbps is None:
        return None
    sources = dict.fromkeys(
        f"{s.document}, {s.date}" for k, s in card.sources.items() if k in ("bandwidth_gbps", "fp32_tflops")
    )
    gflops = None if card.fp32_tflops is None else 1000 * card.fp32_tflops
    return Roof("datasheet", card.bandwidth_gbps, gflops, "; ".join(sources))
