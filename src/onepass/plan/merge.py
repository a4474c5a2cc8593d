"""Greedy merging: the pair that saves most time first, while it saves any."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from onepass.device import of
from onepass.ir.cluster import Call, Cluster, Item, Program
from onepass.plan.cost import Hints, number, time_us, traffic
from onepass.plan.decision import Decision
from onepass.plan.spaces import join, lay_out, merge_side_by_side, tidy

MOST_TENSORS = 24  # arguments of one kernel; each costs two or more registers for its address
MOST_NODES = 160

Fit = Callable[[Cluster], str]  # empty when a schedule takes the cluster, else the reason


@dataclass(frozen=True)
class Merged:
    """Items in execution order after merging, and the decision on each pair."""

    items: tuple[Item, ...]
    decisions: tuple[Decision, ...]


def merge(program: Program, hints: Hints, fit: Fit, fuel: int | None = None) -> Merged:
    """Merges clusters of a program. ``fuel`` stops after so many merges."""
    return _Merger(program, hints, fit, fuel).run()


@dataclass
class _Merger:
    program: Program
    hints: Hints
    fit: Fit
    fuel: int | None
    items: dict[int, Item] = field(default_factory=dict)
    after: dict[int, set[int]] = field(default_factory=dict)  # item → items that must run before it
    before: dict[int, set[int]] = field(default_factory=dict)
    heap: list[tuple[float, int, int, str]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    refused: dict[tuple[int, int], Decision] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)

    def run(self) -> Merged:
        read = set(self.program.outputs) | {t for i in self.program.items for t in i.reads}
        self.items = {
            k: tidy(i, read.__contains__) if isinstance(i, Cluster) else i
            for k, i in enumerate(self.program.items)
        }
        self.next = len(self.items)
        self.position = {i: i for i in self.items}
        self.outputs = set(self.program.outputs)
        self.index()
        for i in list(self.items):
            self.consider(i)
        while self.heap:
            self.step()
        return Merged(self.ordered(), (*self.decisions, *self.refused.values(), *self.cut_edges()))

    def index(self) -> None:
        """Who writes, who reads, who must wait for whom."""
        self.writers: dict[str, set[int]] = {}
        self.readers: dict[str, set[int]] = {}
        last_ordered = None
        for i, item in self.items.items():
            self.after.setdefault(i, set())
            for tensor in item.reads:
                self.link(self.writers.get(tensor, ()), i)
                self.readers.setdefault(tensor, set()).add(i)
            for tensor in getattr(item, "mutates", ()):
                self.link(self.readers.get(tensor, set()) - {i}, i)
                self.writers.setdefault(tensor, set()).add(i)
            for tensor in item.writes:
                self.writers.setdefault(tensor, set()).add(i)
            if isinstance(item, Call) and item.order:
                self.link(() if last_ordered is None else (last_ordered,), i)
                last_ordered = i
        for i in self.items:
            self.before.setdefault(i, set())
        for i, sources in self.after.items():
            for source in sources:
                self.before[source].add(i)

    def link(self, sources: Iterable[int], target: int) -> None:
        self.after.setdefault(target, set()).update(s for s in sources if s != target)

    # One pair

    def consider(self, i: int) -> None:
        """Puts the pairs around one cluster on the heap."""
        item = self.items[i]
        if not isinstance(item, Cluster):
            return
        pairs = {(w, i) for t in item.reads for w in self.writers.get(t, ())}
        pairs |= {(i, r) for t in item.writes for r in self.readers.get(t, ())}
        for a, b in pairs:
            if isinstance(self.items.get(a), Cluster) and isinstance(self.items.get(b), Cluster) and a != b:
                heapq.heappush(self.heap, (-self.promise(a, b), a, b, "chain"))
        for tensor in item.reads:
            if number(self.program.tensors[tensor].numel, self.hints) < number(item.space.numel, self.hints):
                continue
            near = [r for r in self.readers.get(tensor, ()) if r != i and isinstance(self.items[r], Cluster)]
            for other in near[:8]:
                a, b = sorted((i, other), key=lambda k: self.position[k])
                heapq.heappush(self.heap, (-self.promise(a, b) / 2, a, b, "side"))

    def promise(self, a: int, b: int) -> float:
        """An optimistic saving that only orders the heap: bytes of the tensors between, and a launch."""
        first, second = self.items[a], self.items[b]
        shared = set(first.writes) & set(second.reads) or set(first.reads) & set(second.reads)
        return 1.0 + sum(
            number(self.program.tensors[t].numel, self.hints) * self.program.tensors[t].dtype.nbytes
            for t in shared
        )

    def step(self) -> None:
        _, a, b, kind = heapq.heappop(self.heap)
        first, second = self.items.get(a), self.items.get(b)
        if not isinstance(first, Cluster) or not isinstance(second, Cluster) or (a, b) in self.refused:
            return
        if kind == "side" and (b in self.before[a] or a in self.before[b]):
            return  # one reads the other: a chain, which has a pair of its own
        made = self.attempt(a, b, first, second, kind)
        if isinstance(made, Decision):
            self.refused[a, b] = made
            return
        merged, drop_first, decision = made
        self.decisions.append(decision)
        self.replace(a, b, merged, drop_first)

    def attempt(
        self, a: int, b: int, first: Cluster, second: Cluster, kind: str
    ) -> tuple[Cluster, bool, Decision] | Decision:
        ends = (first.name, second.name)

        def refuse(reason: str, detail: str = "", saved: int = 0, us: float = 0.0) -> Decision:
            return Decision(_name(first), _name(second), "kept", reason, detail, saved, us, ends)

        if first.device != second.device:
            return refuse("device", f"{first.device} and {second.device}")
        if self.fuel is not None and sum(d.verdict == "fused" for d in self.decisions) >= self.fuel:
            return refuse("fuel")
        joined = join(first, second) if kind == "chain" else merge_side_by_side(first, second)
        if isinstance(joined, str):
            reason, _, detail = joined.partition(": ")
            return refuse(reason, detail)
        absorbs = kind == "side" or joined.name != f"{first.name}>{second.name}"
        joined = self.trim(joined, a, b, absorbs)
        drop_first = absorbs or not self.needed(first, {a, b})
        if self.cycle(a, b, drop_first and absorbs):
            return refuse("cycle")
        before = self.time(a) + self.time(b)
        work = traffic(joined, self.hints)
        after = time_us(work, of(joined.device)) + (0.0 if drop_first else self.time(a))
        saved = (
            (traffic(first, self.hints).bytes if drop_first else 0)
            + traffic(second, self.hints).bytes
            - work.bytes
        )
        if after >= before:
            return refuse("no_gain", "the time model sees none", saved, before - after)
        if len(joined.tensors) > MOST_TENSORS or len(joined.nodes) > MOST_NODES:
            return refuse("too_large", f"{len(joined.tensors)} tensors, {len(joined.nodes)} nodes", saved)
        layout = lay_out(joined)
        if isinstance(layout, str):
            reason, _, detail = layout.partition(": ")
            return refuse(reason, detail, saved)
        if trouble := self.fit(joined):
            return refuse("too_large", trouble, saved)
        reason = "fused" if absorbs else "recomputed"
        return (
            joined,
            drop_first,
            Decision(_name(first), _name(second), "fused", reason, "", saved, before - after, ends),
        )

    def trim(self, joined: Cluster, a: int, b: int, absorbs: bool) -> Cluster:
        """The merged cluster without stores that nothing outside needs."""
        gone = {a, b} if absorbs else {b}
        return tidy(
            joined,
            lambda t: (
                t in self.outputs
                or any(r not in gone for r in self.readers.get(t, ()))
                or len(self.writers.get(t, ())) > 1
            ),
        )

    def needed(self, cluster: Cluster, gone: set[int]) -> bool:
        return any(t in self.outputs or self.readers.get(t, set()) - gone for t in cluster.writes)

    def time(self, i: int) -> float:
        if i not in self.times:
            item = self.items[i]
            assert isinstance(item, Cluster)
            self.times[i] = time_us(traffic(item, self.hints), of(item.device))
        return self.times[i]

    def cycle(self, a: int, b: int, whole: bool) -> bool:
        """Whether a path leaves ``a`` and comes back into ``b`` (or, side by side, the other way)."""
        if not whole:
            # The reader takes over inputs that are ready before what it read, if nothing overwrites them in between.
            return any(b in self.before[m] or self.reaches(m, b) for m in self.overwriters(a))
        return self.reaches(a, b) or self.reaches(b, a)

    def overwriters(self, i: int) -> list[int]:
        """Calls that write to what an item reads, after it has read it."""
        reads = set(self.items[i].reads)
        return [n for n in self.before[i] if reads.intersection(getattr(self.items[n], "mutates", ()))]

    def reaches(self, start: int, goal: int) -> bool:
        """A path from start to goal through at least one other item."""
        seen = set[int]()
        stack = [n for n in self.before[start] if n != goal]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if goal in self.before[node]:
                return True
            stack.extend(self.before[node] - seen)
        return False

    # The graph after a merge

    def replace(self, a: int, b: int, merged: Cluster, drop_first: bool) -> None:
        new = self.next
        self.next += 1
        gone = [b, a] if drop_first else [b]
        self.position[new] = max(self.position[g] for g in gone)
        incoming = {n for g in (a, b) for n in self.after[g]} - {a, *gone}
        outgoing = {n for g in gone for n in self.before[g]} - set(gone) | set(self.overwriters(a))
        if not drop_first and set(self.items[a].writes) & set(merged.reads):
            incoming.add(a)
        for g in gone:
            self.remove(g)
        self.items[new] = merged
        self.after[new], self.before[new] = set(), set()
        for n in incoming:
            self.connect(n, new)
        for n in outgoing:
            self.connect(new, n)
        for tensor in merged.reads:
            self.readers.setdefault(tensor, set()).add(new)
        for tensor in merged.writes:
            self.writers.setdefault(tensor, set()).add(new)
        if not drop_first and not self.needed(self.items[a], set()):  # type: ignore[arg-type]
            self.remove(a)
        self.consider(new)

    def connect(self, source: int, target: int) -> None:
        if source != target:
            self.before[source].add(target)
            self.after[target].add(source)

    def remove(self, i: int) -> None:
        item = self.items.pop(i)
        for n in self.after.pop(i):
            self.before[n].discard(i)
        for n in self.before.pop(i):
            self.after[n].discard(i)
        for tensor in item.reads:
            self.readers[tensor].discard(i)
        for tensor in item.writes:
            self.writers[tensor].discard(i)

    def ordered(self) -> tuple[Item, ...]:
        """Items so that each comes after what it needs, as near to the captured order as that allows."""
        waiting = {i: len(self.after[i]) for i in self.items}
        ready = [(self.position[i], i) for i, n in waiting.items() if n == 0]
        heapq.heapify(ready)
        order: list[Item] = []
        while ready:
            _, i = heapq.heappop(ready)
            order.append(self.items[i])
            for n in self.before[i]:
                waiting[n] -= 1
                if waiting[n] == 0:
                    heapq.heappush(ready, (self.position[n], n))
        assert len(order) == len(self.items), "a merge made a cycle"
        return tuple(order)

    def cut_edges(self) -> list[Decision]:
        """Edges to what stays with PyTorch: what fusing across them would have saved."""
        cuts = []
        for item in self.items.values():
            if not isinstance(item, Cluster):
                continue
            for tensor in item.writes:
                for r in self.readers.get(tensor, ()):
                    if isinstance(call := self.items[r], Call):
                        cuts.append(self.cut(item, call, tensor, forward=True))
            for tensor in item.reads:
                for w in self.writers.get(tensor, ()):
                    if isinstance(call := self.items[w], Call):
                        cuts.append(self.cut(item, call, tensor, forward=False))
        return cuts

    def cut(self, cluster: Cluster, call: Call, tensor: str, forward: bool) -> Decision:
        info = self.program.tensors[tensor]
        moved = 2 * number(info.numel, self.hints) * info.dtype.nbytes
        us = moved / of(cluster.device).bandwidth_gbps / 1000
        reason = "compute_bound" if call.bound == "compute" else "opaque"
        (source, a), (target, b) = [(_name(cluster), cluster.name), (call.target, call.name)][
            :: 1 if forward else -1
        ]
        return Decision(source, target, "kept", reason, call.reason, moved, us, (a, b))


def _name(cluster: Cluster) -> str:
    return "+".join(o.split(".")[0] for o in cluster.origins)
