"""Clusters and kernels as text: for reports, for errors, and for comparing two plans.

Values are numbered in order, ``v0``, ``v1``, …, the same in a cluster and in the kernel made from it.
"""

from __future__ import annotations

from onepass.ir.address import View
from onepass.ir.cluster import Cluster, Iota, Level, Load, Map, Node, Reduce, Scan, Tensor
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
    RowBlock,
    ScanValue,
    Stage,
    Statement,
    StoreBlock,
    StoreValue,
)


def cluster_text(cluster: Cluster) -> str:
    """One line a tensor, a node and a store; walks as size:stride, slowest first."""
    names = {n.name: f"v{i}" for i, n in enumerate(cluster.nodes)}
    space = cluster.space
    extent = (
        f"{space.numel}"
        if space.reduced is None
        else f"{space.outer} x {space.reduced} reduced x {space.inner}"
    ) + (f" in blocks of {space.block}" if space.block else "")
    lines = [f"cluster {cluster.name} over {extent}"]
    lines += [_tensor(t) for t in cluster.tensors.values()]
    lines += [f"  {names[n.name]} = {_node(n, names)}{_level(n.level)}" for n in cluster.nodes]
    lines += [
        f"  {s.tensor} {walk(s.view)} = {names.get(s.value, s.value)}{_level(s.level)}"
        for s in cluster.stores
    ]
    return "\n".join(lines)


def kernel_text(kernel: Kernel) -> str:
    """The walk as a kernel does it: row by row, and along each row."""
    along = (
        "columns"
        if kernel.axis == "reduced"
        else f"{kernel.inner} inner elements, {kernel.cols} reduced each"
    )
    extent = (
        f"{list(kernel.outer)} rows of {kernel.cols}"
        if kernel.axis == "reduced"
        else f"{list(kernel.outer)} rows"
    ) + (f" in blocks of {kernel.block}" if kernel.block else "")
    lines = [f"kernel {kernel.name}: {extent}, vectors along {along}"]
    lines += [f"  {_access(a)}" for a in kernel.accesses]
    for stage in kernel.stages:
        lines += _stage(stage)
    return "\n".join(lines)


def walk(view: View) -> str:
    """``[3:42, 42:1] + 5``: sizes, each with its stride, and the offset."""
    dims = ", ".join(f"{size}:{stride}" for size, stride in view.dims)
    return f"[{dims}]" + (f" + {view.offset}" if view.offset != 0 else "")


def _tensor(t: Tensor) -> str:
    return f"  {t.name}: {t.dtype} {list(t.shape)} in memory {walk(t.memory)}"


def _level(level: Level) -> str:
    return "" if level == "full" else f"  (a {level})"


def _node(node: Node, names: dict[str, str]) -> str:
    if isinstance(node, Load):
        text = f"{node.kind} {node.tensor} {walk(node.view)}"
        if node.index is not None and node.table is not None:
            text += f" + {names.get(node.index, node.index)} of {node.table[0]} rows x {node.table[1]}"
        return text + (f" in columns {node.window[0]} to {node.window[1]}" if node.window else "")
    if isinstance(node, Iota):
        return f"{node.start} + {walk(node.view)}"
    if isinstance(node, Scan):
        return f"running {node.op} of {names.get(node.operand, node.operand)}"
    if isinstance(node, Reduce):
        return f"{node.op} of {names.get(node.operand, node.operand)}"
    operands = [names.get(o, o) if isinstance(o, str) else f"{o}" for o in node.operands]
    if isinstance(node, Map):
        return f"{node.op}({', '.join(operands)})"
    return _choice(operands, node.bounds)


def _choice(operands: list[str], bounds: tuple[int, ...]) -> str:
    return "columns " + ", ".join(f"to {b} {o}" for o, b in zip(operands, bounds, strict=True))


def _access(a: Access) -> str:
    moves = {"zero": "still", "unit": "element by element", "strided": f"by {a.step}"}[a.column]
    text = f"{a.name}: {a.dtype} {a.tensor} + {a.offset}, rows by {list(a.outer)}, {moves}"
    if a.per_block != 0:
        text += f", by {a.per_block} from block to block"
    if a.reduced != 0:
        text += f", reduced by {a.reduced}"
    if a.window:
        text += f", in columns {a.window[0]} to {a.window[1]}"
    if a.index and a.table:
        text += f", row {a.index} of {a.table[0]}, rows {a.table[1]} apart"
    return text + (", needed again" if a.resident else "")


def _stage(stage: Stage) -> list[str]:
    if isinstance(stage, RowBlock):
        return ["  each row:", *(f"    {statement_text(s)}" for s in stage.body)]
    if isinstance(stage, ColumnLoop):
        return ["  each column:", *(f"    {statement_text(s)}" for s in stage.body)]
    return [f"  {stage.name} = {stage.op} across the row"]


def statement_text(s: Statement) -> str:
    """One statement of a kernel."""
    match s:
        case LoadValue():
            return f"{s.name} = {s.kind} {s.access}"
        case IotaValue():
            return f"{s.name} = {s.start} + rows x {list(s.outer)} + column x {s.step}"
        case Compute():
            return f"{s.name} = {s.op}({', '.join(map(str, s.operands))})"
        case Choose():
            return f"{s.name} = {_choice([str(o) for o in s.operands], s.bounds)}"
        case Keep():
            return f"keep {s.value}"
        case Kept():
            return f"{s.name} = {s.kind} kept"
        case Accumulate():
            return f"{s.name} = {s.op} with {s.value}"
        case ScanValue():
            return f"{s.name} = running {s.op} of {s.value}"
        case ReduceBlock():
            return f"{s.name} = {s.op} of {s.value} across the block"
        case StoreBlock():
            return f"{s.access} = {s.value}, once a block"
        case StoreValue():
            return f"{s.access} = {s.value}"


def text(ir: Cluster | Kernel) -> str:
    """Either IR as text."""
    return cluster_text(ir) if isinstance(ir, Cluster) else kernel_text(ir)
