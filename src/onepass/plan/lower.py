"""Cluster → Kernel IR: phases, what is kept between them and what is computed again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from onepass import settings
from onepass.ir.cluster import Cluster, Iota, Load, Map, Node, Reduce, Scan, Select, operands
from onepass.ir.kernel import (
    Access,
    Accumulate,
    Choose,
    Column,
    ColumnLoop,
    Compute,
    IotaValue,
    Keep,
    Kept,
    Kernel,
    LoadValue,
    ReduceBlock,
    ReduceRow,
    RowBlock,
    ScanValue,
    Stage,
    Statement,
    StoreBlock,
    StoreValue,
)
from onepass.ir.symbol import Poly, Size, product, quotient
from onepass.ir.verify import verify_cluster, verify_kernel
from onepass.ops.table import OPS
from onepass.plan.spaces import Layout, Refusal, Strides, table_stride

# A value from an earlier phase is computed again when that costs at most this many instructions an element and one load:
# holding it costs a register an element, or a store and a load of four bytes. exp (8) is held, x - mean is not.
RECOMPUTE_COST = 5


def lower(cluster: Cluster, layout: Layout, hold: bool = True) -> Kernel | Refusal:
    """The kernel of a cluster, or why there is none. Without ``hold`` every phase computes what it needs from loads.

    Raises: with the setting ONEPASS_VERIFY, BadCluster where the cluster or the kernel breaks a rule.
    """
    verify = settings.VERIFY.read()
    if verify:
        verify_cluster(cluster)
    made = _Lowering(cluster, layout, hold).run()
    if verify and isinstance(made, Kernel):
        verify_kernel(made)
    return made


@dataclass
class _Lowering:
    cluster: Cluster
    layout: Layout
    hold: bool
    short: dict[str, str] = field(default_factory=dict)  # node → identifier
    accesses: dict[str, Access] = field(default_factory=dict)
    wide: dict[str, bool] = field(default_factory=dict)  # node → differs from column to column
    phase: dict[str, int] = field(default_factory=dict)  # reductions of the row before a value
    step: dict[str, int] = field(default_factory=dict)  # reductions of a block before it

    def run(self) -> Kernel | Refusal:
        self.nodes = {n.name: n for n in self.cluster.nodes}
        self.inside = self.layout.inner != 1 and self.cluster.reduces
        for i, node in enumerate(self.cluster.nodes):
            self.short[node.name] = f"v{i}"
            self.place(node)
        refused = self.address()
        if refused:
            return refused
        stages = self.stages()
        kept = tuple(
            dict.fromkeys(
                s.value
                for stage in stages
                if isinstance(stage, ColumnLoop)
                for s in stage.body
                if isinstance(s, Keep)
            )
        )
        symbols = sorted(
            {
                name
                for n in self.cluster.nodes
                if isinstance(n, Map)
                for o in n.operands
                for name in (o.names if isinstance(o, Poly) else ())
            }
        )
        loops = [
            {s.access for s in stage.body if isinstance(s, LoadValue)}
            for stage in stages
            if isinstance(stage, ColumnLoop)
        ]
        accesses = tuple(
            replace(a, resident=sum(a.name in loop for loop in loops) > 1) for a in self.accesses.values()
        )
        return Kernel(
            self.cluster.name,
            accesses,
            tuple(stages),
            self.layout.outer,
            self.layout.reduced,
            self.layout.inner,
            "inner" if self.inside else "reduced",
            kept,
            self.cluster.half,
            tuple(symbols),
            self.layout.blocks,
            self.run_length(),
            self.cluster.space.block,
        )

    def run_length(self) -> Size:
        """Columns of the fastest of the columns' dimensions, where they have several."""
        blocks = product(self.layout.blocks)
        whole = quotient(self.layout.reduced, blocks) if self.layout.blocks else 0
        assert whole is not None
        return whole

    def place(self, node: Node) -> None:
        """Where a node's value differs, and the phase it is known in."""
        before = max((self.step[o] for o in operands(node)), default=0)
        self.step[node.name] = (
            before + 1 if self.of_block(node) else 0 if isinstance(node, Reduce) else before
        )
        if isinstance(node, (Load, Iota)):
            strides = self.layout.accesses[node.name]
            self.wide[node.name] = node.level == "full" and any(
                s != 0 for s in (strides.reduced, *strides.blocks)
            )
            self.phase[node.name] = max((self.phase[o] for o in operands(node)), default=0)
        elif self.of_block(node):
            self.wide[node.name] = True
            self.phase[node.name] = max(self.phase[o] for o in operands(node))
        elif isinstance(node, Reduce):
            self.wide[node.name] = False
            self.phase[node.name] = self.phase[node.operand] + 1
        else:
            inputs = list(operands(node))
            self.wide[node.name] = isinstance(node, (Scan, Select)) or any(self.wide[o] for o in inputs)
            self.phase[node.name] = max((self.phase[o] for o in inputs), default=0)

    def of_block(self, node: Node) -> bool:
        return isinstance(node, Reduce) and node.level == "block"

    # Addresses

    def address(self) -> str:
        for node in self.cluster.nodes:
            if isinstance(node, Select) and self.cluster.space.block:
                return "space_mismatch: a concatenation beside a reduction over blocks of columns"
            if isinstance(node, Select) and (self.layout.blocks or not self.along(node)):
                return "space_mismatch: a concatenation along another dimension than the columns"
            if isinstance(node, Scan) and (self.layout.blocks or not self.wide[node.operand]):
                return "space_mismatch: a scan of columns in blocks, or of one value"
            if not isinstance(node, Load):
                continue
            access = self.access(f"x{len(self.accesses)}", node.tensor, self.layout.accesses[node.name])
            if node.index is not None:
                if self.wide[node.index] or self.inside or self.layout.blocks or node.table is None:
                    return "space_mismatch: a gather whose index changes along the row"
                step = table_stride(self.cluster, node)
                if step is None:
                    return "space_mismatch: no address for the table"
                access = replace(access, index=self.short[node.index], table=(node.table[0], step))
            # A load that stands still while the columns pass is inside its tensor at every column.
            self.accesses[node.name] = replace(access, window=node.window if self.wide[node.name] else None)
        for i, store in enumerate(self.cluster.stores):
            key = f"store:{i}"
            self.accesses[key] = self.access(f"y{i}", store.tensor, self.layout.accesses[key])
        return ""

    def along(self, node: Select) -> bool:
        """Whether a choice is between columns of the kernel's row."""
        return node.level == "full" and not self.inside and node.bounds[-1] == self.layout.reduced

    def access(self, name: str, tensor: str, strides: Strides) -> Access:
        step = strides.inner if self.inside else strides.reduced
        column: Column = "zero" if step == 0 else "unit" if step == 1 else "strided"
        return Access(
            name,
            tensor,
            self.cluster.tensors[tensor].dtype,
            strides.outer,
            column,
            step,
            strides.reduced if self.inside else 0,
            strides.offset,
            blocks=strides.blocks,
            per_block=strides.per_block,
        )

    # Stages

    def stages(self) -> list[Stage]:
        last = max([*(self.phase[s.value] for s in self.cluster.stores)], default=0)
        self.keep: dict[str, None] = {}  # in the order found: the text must not depend on hashes
        for p in range(1, last + 1 if self.hold else 1):
            self.needs(p)
        stages: list[Stage] = []
        done: set[str] = set()
        for p in range(last + 1):
            row = self.rows(p, done)
            if row:
                stages.append(RowBlock(tuple(row)))
            loop = self.loop(p)
            if loop:
                stages.append(ColumnLoop(tuple(loop)))
            stages.extend(ReduceRow(self.short[n.name], n.op, n.kind) for n in self.row_reductions(p))
        return stages

    def row_reductions(self, p: int) -> list[Reduce]:
        """Those whose terms a phase gives."""
        return [
            n
            for n in self.cluster.nodes
            if isinstance(n, Reduce) and not self.of_block(n) and self.phase[n.name] == p + 1
        ]

    def goals(self, p: int) -> tuple[list[Reduce], list[tuple[str, str]]]:
        """What the column loop of a phase is for: reductions, and (store, value)."""
        stores = [
            (f"store:{i}", s.value)
            for i, s in enumerate(self.cluster.stores)
            if s.level != "row" and self.phase[s.value] == p
        ]
        return self.row_reductions(p), stores

    def needs(self, p: int) -> None:
        """Decides what earlier phases must hold for this one."""
        reductions, stores = self.goals(p)
        stack = [n.operand for n in reductions] + [v for _, v in stores]
        seen: set[str] = set()
        while stack:
            name = stack.pop()
            if name in seen or not self.wide[name]:
                continue
            seen.add(name)
            node = self.nodes[name]
            known = self.phase[name] < p and not isinstance(node, (Load, Iota))
            # Rows are held as floats: a mask is computed again, from what it compares.
            if known and node.kind == "float" and self.expensive(name):
                self.keep[name] = None
            else:
                stack.extend(operands(node))

    def expensive(self, name: str) -> bool:
        cost = loads = 0
        stack, seen = [name], set[str]()
        while stack:
            current = stack.pop()
            if current in seen or not self.wide[current]:
                continue
            seen.add(current)
            node = self.nodes[current]
            if current != name and current in self.keep:
                loads += 1
                continue
            if isinstance(node, Load):
                loads += any(s != 0 for s in self.layout.accesses[current].outer) or node.window is not None
            elif isinstance(node, Map):
                cost += OPS[node.op].cost
            elif isinstance(node, Scan):
                cost += RECOMPUTE_COST + 1
            stack.extend(operands(node))
        return cost > RECOMPUTE_COST or loads > 1

    def rows(self, p: int, done: set[str]) -> list[Statement]:
        """Row-level values first known in a phase, and row-level stores."""
        body: list[Statement] = []
        for node in self.cluster.nodes:
            ready = self.phase[node.name] == p and not self.wide[node.name] and not isinstance(node, Reduce)
            if ready and node.name not in done:
                body.append(self.statement(node))
                done.add(node.name)
        body.extend(
            StoreValue(self.accesses[f"store:{i}"].name, self.short[s.value])
            for i, s in enumerate(self.cluster.stores)
            if s.level == "row" and self.phase[s.value] == p
        )
        return body

    def loop(self, p: int) -> list[Statement]:
        reductions, stores = self.goals(p)
        body: list[Statement] = []
        done: set[str] = set()

        def need(name: str) -> None:
            if name in done or not self.wide[name]:
                return
            done.add(name)
            node = self.nodes[name]
            if name in self.keep and self.phase[name] < p:
                body.append(Kept(self.short[name], node.kind))
                return
            for operand in operands(node):
                need(operand)
            body.append(self.statement(node))
            if name in self.keep:
                body.append(Keep(self.short[name]))

        for node in reductions:
            need(node.operand)
        for _, value in stores:
            need(value)
        for name in self.keep:
            if self.phase[name] == p:
                need(name)
        body.extend(Accumulate(self.short[n.name], n.op, self.short[n.operand], n.kind) for n in reductions)
        body.extend(self.store(key, value) for key, value in stores)
        return self.by_steps(body) if self.cluster.space.block else body

    def store(self, key: str, value: str) -> StoreValue | StoreBlock:
        level = self.cluster.stores[int(key.removeprefix("store:"))].level
        made = StoreBlock if level == "block" else StoreValue
        return made(self.accesses[key].name, self.short[value])

    def by_steps(self, body: list[Statement]) -> list[Statement]:
        """What a reduction over a block needs before it, then what a block has one of, then what needs that."""
        nodes = {self.short[name]: name for name in self.nodes}

        def order(s: Statement) -> tuple[int, int]:
            name = nodes[s.value if isinstance(s, (StoreValue, StoreBlock, Keep, Accumulate)) else s.name]  # type: ignore[index]
            if isinstance(s, (ReduceBlock, StoreBlock)):
                return self.step[name], 2 * isinstance(s, StoreBlock)
            return self.step[name], 1 if isinstance(s, Compute) and s.per_block else 3

        return sorted(body, key=order)

    def statement(self, node: Node) -> Statement:
        name = self.short[node.name]
        if isinstance(node, Load):
            return LoadValue(name, self.accesses[node.name].name, node.kind)
        if isinstance(node, Iota):
            strides = self.layout.accesses[node.name]
            start = node.start + strides.offset
            if self.inside:
                return IotaValue(
                    name, start, strides.outer, strides.inner, node.kind, strides.reduced, strides.blocks
                )
            return IotaValue(name, start, strides.outer, strides.reduced, node.kind, blocks=strides.blocks)
        if isinstance(node, (Reduce, Scan)):
            made = ScanValue if isinstance(node, Scan) else ReduceBlock
            return made(name, node.op, self.short[node.operand], node.kind)
        names = tuple(self.short[o] if isinstance(o, str) else o for o in node.operands)
        if isinstance(node, Select):
            return Choose(name, names, node.bounds, node.kind)
        return Compute(name, node.op, names, node.kind, node.level == "block" and self.wide[node.name])
