"""What every cluster and kernel must hold, checked between stages: a fault of the planner is named where it was made."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from onepass.dtypes import Class
from onepass.errors import BadCluster
from onepass.ir.address import View
from onepass.ir.cluster import Cluster, Iota, Level, Load, Map, Node, Reduce, Scan, Select, Store, operands
from onepass.ir.kernel import (
    Access,
    Accumulate,
    Choose,
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
from onepass.ir.printer import text
from onepass.ir.symbol import Size, product, quotient
from onepass.ops.opdef import OpDef
from onepass.ops.table import OPS, REDUCE

# The classes that an op restricted to one kind of operands takes, all of the same.
TAKES: dict[str, tuple[Class, ...]] = {"float": ("float", "double"), "int": ("int",), "bool": ("bool",)}

# Along a row: one value, one a block, one an index.
FINENESS: dict[Level, int] = {"row": 0, "block": 1, "full": 2}


def verify_cluster(cluster: Cluster) -> None:
    """Raises: BadCluster for the first rule that is broken."""
    _Cluster(cluster).check()


def verify_kernel(kernel: Kernel) -> None:
    """Raises: BadCluster for the first rule that is broken."""
    _Kernel(kernel).check()


class _Cluster:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.nodes: dict[str, Node] = {}

    def fail(self, name: str, problem: str) -> None:
        raise BadCluster(name, problem, text(self.cluster))

    def check(self) -> None:
        space = self.cluster.space
        if (
            space.reduced is not None
            and product((space.outer or 1, space.reduced, space.inner)) != space.numel
        ):
            self.fail(self.cluster.name, f"has {space.numel} indices in {space}")
        if space.block and (
            space.inner != 1 or space.reduced is None or quotient(space.reduced, space.block) is None
        ):
            self.fail(self.cluster.name, f"has blocks of {space.block} in {space}")
        for tensor in set(self.cluster.reads) & set(self.cluster.writes):
            self.fail(tensor, "is read from memory in the cluster that writes it")
        for node in self.cluster.nodes:
            self.node(node)
            self.nodes[node.name] = node
        for store in self.cluster.stores:
            self.store(store)

    def node(self, node: Node) -> None:
        if node.name in self.nodes:
            self.fail(node.name, "is defined twice")
        for name in operands(node):
            if name not in self.nodes:
                self.fail(node.name, f"uses {name} before it is defined")
        if node.level == "row" and self.cluster.space.reduced is None:
            self.fail(node.name, "is a value of a row where nothing reduces")
        if node.level == "block" and not self.cluster.space.block:
            self.fail(node.name, "is a value of a block where nothing is reduced block by block")
        if isinstance(node, Load):
            self.load(node)
        elif isinstance(node, Iota):
            self.iota(node)
        elif isinstance(node, Map):
            self.map(node)
        elif isinstance(node, Select):
            self.select(node)
        else:
            self.reduce(node)

    def count(self, level: Level) -> Size:
        return self.cluster.space.count(level)

    def load(self, node: Load) -> None:
        tensor = self.cluster.tensors.get(node.tensor)
        if tensor is None:
            self.fail(node.name, f"reads {node.tensor}, which the cluster does not list")
        elif tensor.dtype.kind != node.kind:
            self.fail(node.name, f"is {node.kind}, and {node.tensor} holds {tensor.dtype}")
        elif node.view.numel != self.count(node.level):
            self.fail(node.name, f"walks {node.view.numel} elements over {self.count(node.level)} indices")
        if (node.index is None) != (node.table is None):
            self.fail(node.name, "has an index without a table, or a table without an index")
        if node.index is not None and self.nodes[node.index].kind != "int":
            self.fail(node.name, f"is indexed by {node.index}, which is no integer")
        if node.window is not None:
            lo, hi = node.window
            wide = node.view.dims[-1][0] if node.view.dims else 1
            if not 0 <= lo < hi or (isinstance(wide, int) and hi > wide):
                self.fail(node.name, f"is limited to columns {lo} to {hi} of {wide}")
        elif tensor is not None and node.index is None:
            self.inside(node.name, node.view, tensor.numel)

    def inside(self, name: str, view: View, numel: Size) -> None:
        """Where every number is known: no index leaves the tensor."""
        numbers = [numel, view.offset, *(n for dim in view.dims for n in dim)]
        known = [n for n in numbers if isinstance(n, int)]
        if len(known) != len(numbers) or view.numel == 0:
            return
        count, offset, *dims = known
        reach = [(size - 1) * stride for size, stride in zip(dims[::2], dims[1::2], strict=True)]
        low, high = offset + sum(min(r, 0) for r in reach), offset + sum(max(r, 0) for r in reach)
        if low < 0 or high >= count:
            self.fail(name, f"walks from {low} to {high} in {numel} elements")

    def iota(self, node: Iota) -> None:
        if node.view.numel != self.count(node.level):
            self.fail(node.name, f"counts {node.view.numel} numbers over {self.count(node.level)} indices")

    def map(self, node: Map) -> None:
        op = OPS.get(node.op)
        if op is None:
            self.fail(node.name, f"is {node.op}, which no row of the vocabulary describes")
            return
        if len(op.args) != len(node.operands):
            self.fail(node.name, f"gives {node.op} {len(node.operands)} operands")
        kinds = [self.nodes[o].kind if isinstance(o, str) else None for o in node.operands]
        if problem := _kinds(op, kinds, node.kind):
            self.fail(node.name, problem)
        for o in operands(node):
            if FINENESS[self.nodes[o].level] > FINENESS[node.level]:
                self.fail(node.name, f"is a value of a {node.level} and uses {o}, which differs along it")

    def select(self, node: Select) -> None:
        if problem := _bounds(node.bounds, len(node.operands)):
            self.fail(node.name, problem)
        for o in operands(node):
            if self.nodes[o].kind != node.kind:
                self.fail(node.name, f"is {node.kind} and chooses {o}, which is {self.nodes[o].kind}")

    def reduce(self, node: Reduce | Scan) -> None:
        if isinstance(node, Scan) and (node.level != "full" or self.cluster.space.block):
            self.fail(node.name, f"is a scan of a {node.level}, or beside blocks")
        if node.op not in REDUCE:
            self.fail(node.name, f"is {node.op}, which no row of the vocabulary describes")
        if self.cluster.space.reduced is None:
            self.fail(node.name, "reduces in a space without a reduced dimension")
        if self.nodes[node.operand].kind != node.kind:
            self.fail(node.name, f"is {node.kind} and reduces {self.nodes[node.operand].kind}")

    def store(self, store: Store) -> None:
        tensor, value = self.cluster.tensors.get(store.tensor), self.nodes.get(store.value)
        if tensor is None or value is None:
            self.fail(store.tensor, f"is stored from {store.value}: one of them is not in the cluster")
            return
        if tensor.dtype.kind != value.kind:
            self.fail(store.tensor, f"holds {tensor.dtype} and gets {value.kind}")
        if store.view.numel != self.count(store.level):
            self.fail(
                store.tensor, f"is written {store.view.numel} times over {self.count(store.level)} indices"
            )
        if FINENESS[value.level] > FINENESS[store.level]:
            self.fail(
                store.tensor, f"is written once a {store.level} from {store.value}, which differs along it"
            )
        self.inside(store.tensor, store.view, tensor.numel)


class _Kernel:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.accesses = {a.name: a for a in kernel.accesses}
        self.rows: dict[str, Class] = {}  # values of the row so far
        self.columns: dict[str, Class] = {}  # of the loop that is open
        self.agreed: set[str] = set()  # of these, what all columns of a block agree on
        self.held: dict[str, Class] = {}
        self.open: dict[str, str] = {}  # accumulated and not yet reduced: name → op

    def fail(self, name: str, problem: str) -> None:
        raise BadCluster(name, problem, text(self.kernel))

    def check(self) -> None:
        kernel = self.kernel
        if len(self.accesses) != len(kernel.accesses):
            self.fail(kernel.name, "has two accesses of one name")
        for a in kernel.accesses:
            self.access(a)
        if kernel.blocks and product(kernel.blocks) * kernel.run != kernel.cols:
            self.fail(kernel.name, f"has {kernel.cols} columns in blocks of {kernel.run}")
        for stage in kernel.stages:
            self.stage(stage)
        if self.open:
            self.fail(", ".join(self.open), "is accumulated and never reduced across the row")
        if set(kernel.kept) != set(self.held):
            self.fail(kernel.name, f"says it keeps {kernel.kept} and keeps {tuple(self.held)}")
        if list(kernel.bounds) != sorted(set(kernel.bounds)):
            self.fail(kernel.name, f"has bounds out of order: {kernel.bounds}")
        if kernel.block and (
            kernel.axis == "inner" or kernel.blocks or quotient(kernel.cols, kernel.block) is None
        ):
            self.fail(kernel.name, f"has blocks of {kernel.block} in {kernel.cols} columns")
        stored = (StoreValue, StoreBlock)
        written = {self.accesses[s.access].tensor for s in self.statements() if isinstance(s, stored)}
        for s in self.statements():
            if isinstance(s, LoadValue) and self.accesses[s.access].tensor in written:
                self.fail(self.accesses[s.access].tensor, "is read from memory in the kernel that writes it")

    def statements(self) -> Iterable[Statement]:
        return (
            s for stage in self.kernel.stages if isinstance(stage, (RowBlock, ColumnLoop)) for s in stage.body
        )

    def access(self, a: Access) -> None:
        if len(a.outer) != len(self.kernel.outer):
            self.fail(a.name, f"has {len(a.outer)} row strides for {len(self.kernel.outer)} row dimensions")
        moves = "zero" if a.step == 0 else "unit" if a.step == 1 else "strided"
        if a.column != moves:
            self.fail(a.name, f"is called {a.column} and moves by {a.step}")
        if (a.index is None) != (a.table is None):
            self.fail(a.name, "has an index without a table, or a table without an index")
        if a.blocks and len(a.blocks) != len(self.kernel.blocks):
            self.fail(
                a.name, f"has {len(a.blocks)} strides for {len(self.kernel.blocks)} dimensions of the columns"
            )
        if self.kernel.axis == "inner" and (a.window or a.index):
            self.fail(a.name, "has a window or an index where vectors run along the inner dimension")
        if a.window and (a.column == "zero" or not 0 <= a.window[0] < a.window[1]):
            self.fail(
                a.name,
                f"has the window {a.window} and stands still"
                if a.column == "zero"
                else f"has the window {a.window}",
            )

    def stage(self, stage: Stage) -> None:
        if isinstance(stage, ReduceRow):
            if self.open.pop(stage.name, None) != stage.op:
                self.fail(stage.name, f"is reduced by {stage.op} without a loop that accumulates it so")
            self.define(self.rows, stage.name, stage.kind)
            return
        self.columns, self.agreed = {}, set()
        for s in stage.body:
            self.statement(
                s, self.columns if isinstance(stage, ColumnLoop) else self.rows, isinstance(stage, ColumnLoop)
            )

    def define(self, scope: dict[str, Class], name: str, kind: Class) -> None:
        if name in self.rows or name in self.columns:
            self.fail(name, "is defined twice")
        scope[name] = kind

    def kind(self, user: str, name: object) -> Class | None:
        if not isinstance(name, str):
            return None
        found = self.columns.get(name) or self.rows.get(name)
        if found is None:
            self.fail(user, f"uses {name} where it is not defined")
        return found

    def statement(self, s: Statement, scope: dict[str, Class], loop: bool) -> None:
        if isinstance(s, (Keep, Kept, Accumulate, Choose, ReduceBlock, StoreBlock, ScanValue)) and not loop:
            self.fail(
                getattr(s, "name", getattr(s, "value", "")), f"is a {type(s).__name__} outside a column loop"
            )
        if isinstance(s, LoadValue):
            self.load(s)
        elif isinstance(s, Compute):
            op = OPS[s.op]
            if problem := _kinds(op, [self.kind(s.name, o) for o in s.operands], s.kind):
                self.fail(s.name, problem)
        elif isinstance(s, Choose):
            self.choose(s)
        elif isinstance(s, Kept):
            if self.held.get(s.name) != s.kind:
                self.fail(s.name, "is taken from what was kept, and was not")
        elif isinstance(s, Keep):
            kind = self.kind(s.value, s.value)
            if kind != "float":
                self.fail(s.value, f"is kept for a later phase and is {kind}: rows are kept as floats")
            self.held[s.value] = "float"
        elif isinstance(s, Accumulate):
            if self.kind(s.name, s.value) not in (s.kind, None) or s.name in self.open:
                self.fail(s.name, f"accumulates what is no {s.kind}, or twice")
            self.open[s.name] = s.op
        elif isinstance(s, (StoreValue, StoreBlock)):
            self.store(s)
        elif isinstance(s, ReduceBlock):
            self.reduce_block(s)
        elif isinstance(s, ScanValue) and (s.value not in self.columns or self.columns[s.value] != s.kind):
            self.fail(s.name, f"scans what is no {s.kind} of each column")
        if isinstance(s, (LoadValue, IotaValue, Compute, Choose, Kept, ReduceBlock, ScanValue)):
            self.define(scope, s.name, s.kind)
        if isinstance(s, ReduceBlock) or (isinstance(s, Compute) and s.per_block):
            self.agreed.add(s.name)
        if isinstance(s, Compute) and s.per_block and not all(map(self.agrees, s.operands)):
            self.fail(s.name, "is computed once a block from what differs inside it")

    def reduce_block(self, s: ReduceBlock) -> None:
        if not self.kernel.block or self.kind(s.name, s.value) != s.kind or s.op not in REDUCE:
            self.fail(s.name, f"reduces what is no {s.kind}, or in a kernel without blocks")

    def agrees(self, operand: object) -> bool:
        """Whether an operand is the same for all columns of a block."""
        return not isinstance(operand, str) or operand in self.agreed or operand in self.rows

    def load(self, s: LoadValue) -> None:
        a = self.accesses.get(s.access)
        if a is None:
            self.fail(s.name, f"loads through {s.access}, which the kernel does not have")
        elif a.dtype.kind != s.kind:
            self.fail(s.name, f"is {s.kind}, and {a.tensor} holds {a.dtype}")
        elif a.index is not None and self.kind(s.name, a.index) != "int":
            self.fail(s.name, f"is indexed by {a.index}, which is no integer")

    def choose(self, s: Choose) -> None:
        if problem := _bounds(s.bounds, len(s.operands)):
            self.fail(s.name, problem)
        if self.kernel.axis == "inner" or s.bounds[-1] != self.kernel.cols:
            self.fail(s.name, f"chooses between columns up to {s.bounds[-1]} of {self.kernel.cols}")
        for o in s.operands:
            if self.kind(s.name, o) not in (s.kind, None):
                self.fail(s.name, f"is {s.kind} and chooses {o}, which is not")

    def store(self, s: StoreValue | StoreBlock) -> None:
        a = self.accesses.get(s.access)
        if isinstance(s, StoreBlock) and not self.agrees(s.value):
            self.fail(s.value, "is stored once a block and differs inside it")
        if a is not None and (a.per_block != 0) != isinstance(s, StoreBlock):
            self.fail(a.tensor, f"moves by {a.per_block} a block and is stored by a {type(s).__name__}")
        if a is None:
            self.fail(s.value, f"is stored through {s.access}, which the kernel does not have")
        elif self.kind(s.access, s.value) != a.dtype.kind:
            self.fail(a.tensor, f"holds {a.dtype} and gets {self.kind(s.access, s.value)}")


def _kinds(op: OpDef, operands: list[Class | None], result: Class) -> str:
    """What is wrong with the classes of an op's operands and result; None stands for a number."""
    given = [k for k in operands if k is not None]
    if not given:
        return f"gives {op.name} only numbers"
    if op.operands in TAKES:
        if len(set(given)) > 1 or given[0] not in TAKES[op.operands]:
            return f"gives {op.name} {given}, which takes {op.operands}"
    elif op.operands == "condition":
        if operands[0] not in ("bool", None) or any(k not in (result, None) for k in operands[1:]):
            return f"gives {op.name} {operands} for a {result}"
    elif len(set(given)) > 1:
        return f"gives {op.name} operands of several classes: {given}"
    expected = op.result if op.result != "same" else result if op.operands == "condition" else given[0]
    return "" if result == expected else f"is {result}, and {op.name} of {given} is {expected}"


def _bounds(bounds: tuple[int, ...], count: int) -> str:
    if len(bounds) != count or not bounds or bounds[0] <= 0 or any(a >= b for a, b in pairwise(bounds)):
        return f"chooses between {count} values at {bounds}"
    return ""
