"""The verifiers find each class of fault, planted one at a time in a cluster and a kernel that are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from onepass.dtypes import FLOAT32, INT64
from onepass.errors import BadCluster
from onepass.ir.address import View, contiguous
from onepass.ir.cluster import Cluster, Load, Map, Reduce, Select, Space, Store, Tensor
from onepass.ir.kernel import (
    Accumulate,
    Choose,
    Compute,
    Keep,
    Kept,
    Kernel,
    LoadValue,
    ReduceBlock,
    ReduceRow,
    RowBlock,
    StoreBlock,
    StoreValue,
)
from onepass.ir.verify import verify_cluster, verify_kernel
from onepass.plan.lower import lower
from onepass.plan.spaces import lay_out

FLOAT, INT = FLOAT32, INT64
WHOLE = contiguous((3, 4))
ROWS = contiguous((3,))


def tensor(name: str, dtype: Any, *shape: int) -> Tensor:
    return Tensor(name, dtype, shape, contiguous(shape))


def right() -> Cluster:
    """A softmax, plus rows of a table, with another value in its last two columns."""
    tensors = [
        tensor("x", FLOAT, 3, 4),
        tensor("ids", INT, 3),
        tensor("table", FLOAT, 5, 4),
        tensor("y", FLOAT, 3, 4),
        tensor("total", FLOAT, 3),
    ]
    nodes = (
        Load("a", "full", "x", WHOLE, "float"),
        Map("e", "full", "exp", ("a",), "float"),
        Load("i", "row", "ids", ROWS, "int"),
        Reduce("s", "sum", "e"),
        Map("d", "full", "div", ("e", "s"), "float"),
        Load("g", "full", "table", View(((3, 0), (4, 1))), "float", None, "i", (5, 4)),
        Map("m", "full", "add", ("d", "g"), "float"),
        Select("c", "full", ("m", "d"), (2, 4), "float"),
    )
    stores = (Store("y", "c", "full", WHOLE), Store("total", "s", "row", ROWS))
    return Cluster("right", Space(12, 3, 4, 1), nodes, stores, ("softmax",), {t.name: t for t in tensors})


def kernel() -> Kernel:
    cluster = right()
    layout = lay_out(cluster)
    assert not isinstance(layout, str)
    made = lower(cluster, layout)
    assert not isinstance(made, str)
    return made


def node(name: str, **change: Any) -> Callable[[Cluster], Cluster]:
    return lambda c: replace(c, nodes=tuple(replace(n, **change) if n.name == name else n for n in c.nodes))


def store(at: int, **change: Any) -> Callable[[Cluster], Cluster]:
    return lambda c: replace(
        c, stores=tuple(replace(s, **change) if i == at else s for i, s in enumerate(c.stores))
    )


def swapped(c: Cluster) -> Cluster:
    first, second, *rest = c.nodes
    return replace(c, nodes=(second, first, *rest))


CLUSTERS: dict[str, tuple[Callable[[Cluster], Cluster], str]] = {
    "a space whose sizes do not multiply": (lambda c: replace(c, space=Space(13, 3, 4, 1)), "has 13 indices"),
    "an operand after its user": (swapped, "uses a before it is defined"),
    "a name twice": (lambda c: replace(c, nodes=(c.nodes[0], *c.nodes)), "is defined twice"),
    "a row where nothing reduces": (lambda c: replace(c, space=Space(12)), "where nothing reduces"),
    "a tensor that is not listed": (node("a", tensor="z"), "does not list"),
    "a load of another class": (node("a", kind="int"), "is int, and x holds"),
    "a load of too few elements": (node("a", view=contiguous((3, 3))), "walks 9 elements over 12"),
    "a load past the end": (node("a", view=View(((3, 4), (4, 1)), 1)), "walks from 1 to 12 in 12"),
    "an index without a table": (node("g", table=None), "an index without a table"),
    "an index that is no integer": (node("g", index="s"), "is indexed by s, which is no integer"),
    "a window that is wider than the row": (node("a", window=(2, 5)), "is limited to columns 2 to 5 of 4"),
    "an empty window": (node("a", window=(2, 2)), "is limited to columns 2 to 2"),
    "an unknown op": (node("e", op="exp3"), "no row of the vocabulary"),
    "too many operands": (node("e", operands=("a", 1.0)), "gives exp 2 operands"),
    "operands of the wrong class": (node("d", operands=("e", "i")), "which takes float"),
    "a result of the wrong class": (node("e", kind="bool"), "is bool, and exp of"),
    "a row of what differs along it": (node("d", level="row"), "which differs along it"),
    "bounds out of order": (node("c", bounds=(4, 2)), "chooses between 2 values at (4, 2)"),
    "a choice of two classes": (node("c", operands=("m", "i")), "chooses i, which is int"),
    "an unknown reduction": (node("s", op="product"), "no row of the vocabulary"),
    "a reduction of another class": (node("s", operand="i"), "is float and reduces int"),
    "a store of what is not there": (store(0, value="z"), "one of them is not in the cluster"),
    "a store of another class": (store(1, value="i"), "holds fp32 and gets int"),
    "a store of too few elements": (store(0, view=contiguous((3, 3))), "is written 9 times over 12"),
    "a store past the end": (store(1, view=View(((3, 1),), 1)), "walks from 1 to 3 in 3"),
    "a row stored of what differs along it": (store(1, value="e"), "is written once a row from e"),
    "a tensor read and written": (store(0, tensor="x"), "is read from memory in the cluster that writes it"),
}


def test_what_is_right_passes() -> None:
    verify_cluster(right())
    verify_kernel(kernel())


@pytest.mark.parametrize("fault", CLUSTERS)
def test_faults_of_clusters(fault: str) -> None:
    change, words = CLUSTERS[fault]
    with pytest.raises(BadCluster) as raised:
        verify_cluster(change(right()))
    assert words in raised.value.what()


def access(which: str, **change: Any) -> Callable[[Kernel], Kernel]:
    return lambda k: replace(
        k, accesses=tuple(replace(a, **change) if a.name == which else a for a in k.accesses)
    )


def statement(which: type, **change: Any) -> Callable[[Kernel], Kernel]:
    """The last statement of a kind, changed; without a change, left out."""

    def made(k: Kernel) -> Kernel:
        at = max(
            (i, j)
            for i, stage in enumerate(k.stages)
            if not isinstance(stage, ReduceRow)
            for j, s in enumerate(stage.body)
            if isinstance(s, which)
        )
        stages = list(k.stages)
        stage: Any = stages[at[0]]
        body = list(stage.body)
        body[at[1] : at[1] + 1] = [replace(body[at[1]], **change)] if change else []
        stages[at[0]] = replace(stage, body=tuple(body))
        return replace(k, stages=tuple(stages))

    return made


def stages(change: Callable[[list[Any]], list[Any]]) -> Callable[[Kernel], Kernel]:
    return lambda k: replace(k, stages=tuple(change(list(k.stages))))


def as_row(stage: Any) -> RowBlock:
    return RowBlock(stage.body)


KERNELS: dict[str, tuple[Callable[[Kernel], Kernel], str]] = {
    "two accesses of one name": (access("x1", name="x0"), "has two accesses of one name"),
    "too many strides": (access("x0", outer=(4, 1)), "has 2 row strides for 1 row dimensions"),
    "a step that is not what it is called": (access("x0", step=2), "is called unit and moves by 2"),
    "strides for columns in no blocks": (
        access("x0", blocks=(4,)),
        "has 1 strides for 0 dimensions of the columns",
    ),
    "blocks that are not all columns": (
        lambda k: replace(k, blocks=(3,), run=2),
        "has 4 columns in blocks of 2",
    ),
    "a table without an index": (access("x2", index=None), "an index without a table"),
    "an empty window": (access("x0", window=(3, 3)), "has the window (3, 3)"),
    "a window that stands still": (access("x1", window=(0, 2)), "stands still"),
    "a window where vectors run along inner": (
        lambda k: access("x0", window=(0, 2))(replace(k, axis="inner")),
        "where vectors run along the inner dimension",
    ),
    "an accumulation that nothing combines": (stages(lambda s: s[:2] + s[3:]), "uses v3 where"),
    "a last accumulation that nothing combines": (stages(lambda s: s[:2]), "never reduced across the row"),
    "a reduction of what nothing accumulates": (statement(Accumulate), "without a loop that accumulates"),
    "a reduction by another op": (stages(lambda s: [*s[:2], ReduceRow("v3", "max"), *s[3:]]), "by max"),
    "an accumulation of integers": (statement(Accumulate, value="v2"), "accumulates what is no float"),
    "an accumulation once a row": (
        stages(lambda s: [s[0], as_row(s[1]), *s[2:]]),
        "outside a column loop",
    ),
    "a value used before its loop": (stages(lambda s: [s[1], s[0], *s[2:]][::-1]), "is taken from what was"),
    "a value of another loop": (statement(Kept), "uses v1 where it is not defined"),
    "a value that was not kept": (statement(Keep), "is taken from what was kept, and was not"),
    "a kept value of another class": (statement(Kept, kind="int"), "is taken from what was kept"),
    "a kept mask": (statement(Keep, value="v2"), "rows are kept as floats"),
    "kept values that are not listed": (lambda k: replace(k, kept=()), "says it keeps ()"),
    "a name twice": (statement(Compute, name="v3"), "is defined twice"),
    "a load through nothing": (statement(LoadValue, access="x9"), "loads through x9"),
    "a load of another class": (statement(LoadValue, kind="int"), "is int, and table holds"),
    "an index that is no integer": (access("x2", index="v3"), "which is no integer"),
    "operands of the wrong class": (statement(Compute, operands=("v4", "v2")), "operands of several classes"),
    "bounds out of order": (statement(Choose, bounds=(3, 2)), "chooses between 2 values at (3, 2)"),
    "bounds short of the row": (statement(Choose, bounds=(2, 3)), "up to 3 of 4"),
    "a choice of two classes": (statement(Choose, operands=("v6", "v2")), "chooses v2, which is not"),
    "a store through nothing": (statement(StoreValue, access="y9"), "is stored through y9"),
    "a store of another class": (statement(StoreValue, value="v2"), "holds fp32 and gets int"),
    "a tensor read and written": (access("y0", tensor="x"), "in the kernel that writes it"),
}


@pytest.mark.parametrize("fault", KERNELS)
def test_faults_of_kernels(fault: str) -> None:
    change, words = KERNELS[fault]
    with pytest.raises(BadCluster) as raised:
        verify_kernel(change(kernel()))
    assert words in raised.value.what()


def test_lowering_verifies_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = node("e", kind="bool")(right())
    layout = lay_out(wrong)
    assert not isinstance(layout, str)
    with pytest.raises(BadCluster):
        lower(wrong, layout)
    monkeypatch.setenv("ONEPASS_VERIFY", "0")
    lower(wrong, layout)


# Blocks inside rows


def blocked() -> Cluster:
    """A softmax of rows of four, divided by the sum of each pair."""
    tensors = [tensor("x", FLOAT, 3, 4), tensor("y", FLOAT, 3, 4), tensor("pairs", FLOAT, 3, 2)]
    nodes = (
        Load("a", "full", "x", WHOLE, "float"),
        Reduce("s", "sum", "a"),
        Map("d", "full", "div", ("a", "s"), "float"),
        Reduce("p", "sum", "d", level="block"),
        Map("q", "block", "add", ("p", 1.0), "float"),
        Map("r", "full", "div", ("d", "q"), "float"),
    )
    stores = (Store("y", "r", "full", WHOLE), Store("pairs", "q", "block", contiguous((3, 2))))
    return Cluster("blocked", Space(12, 3, 4, 1, 2), nodes, stores, ("sum",), {t.name: t for t in tensors})


def blocked_kernel() -> Kernel:
    layout = lay_out(blocked())
    assert not isinstance(layout, str)
    made = lower(blocked(), layout)
    assert not isinstance(made, str)
    return made


def last_loop(change: Callable[[Any], Any]) -> Callable[[Kernel], Kernel]:
    def changed(k: Kernel) -> Kernel:
        *before, loop = k.stages
        return replace(k, stages=(*before, replace(loop, body=tuple(change(s) for s in loop.body))))  # type: ignore[union-attr, call-arg]

    return changed


BLOCKED: dict[str, tuple[Callable[[Cluster], Cluster], str]] = {
    "blocks that do not divide the row": (lambda c: replace(c, space=Space(12, 3, 4, 1, 3)), "blocks of 3"),
    "a block where there are none": (lambda c: replace(c, space=Space(12, 3, 4, 1)), "value of a block"),
    "a block's value of what differs in it": (node("q", operands=("d", 1.0)), "value of a block and uses d"),
    "a row's value of what differs in it": (
        lambda c: node("q", level="row")(replace(c, stores=c.stores[:1])),
        "value of a row and uses p",
    ),
    "a store once a block of what differs in it": (store(1, value="r"), "written once a block from r"),
    "a store of each element once a block": (store(0, level="block"), "written 12 times over 6"),
}
BLOCKED_KERNELS: dict[str, tuple[Callable[[Kernel], Kernel], str]] = {
    "blocks that do not divide the row": (lambda k: replace(k, block=3), "blocks of 3 in 4"),
    "a reduction in a kernel without blocks": (lambda k: replace(k, block=0), "in a kernel without blocks"),
    "a store once a block of what differs in it": (
        last_loop(lambda s: replace(s, value="v5") if isinstance(s, StoreBlock) else s),
        "v5 is stored once a block",
    ),
    "an element stored as a block's value": (
        last_loop(lambda s: StoreBlock(s.access, "v4") if isinstance(s, StoreValue) else s),
        "is stored by a StoreBlock",
    ),
    "a value once a block of what differs in it": (
        last_loop(lambda s: replace(s, operands=("v2", 1.0)) if getattr(s, "per_block", False) else s),
        "from what differs inside it",
    ),
    "a block reduced outside a loop": (
        lambda k: replace(k, stages=(RowBlock((ReduceBlock("z", "sum", "v0"),)), *k.stages)),
        "outside a column loop",
    ),
}


def test_blocks_that_are_right_pass() -> None:
    verify_cluster(blocked())
    verify_kernel(blocked_kernel())


@pytest.mark.parametrize("fault", BLOCKED)
def test_faults_of_clusters_with_blocks(fault: str) -> None:
    change, words = BLOCKED[fault]
    with pytest.raises(BadCluster, match=words):
        verify_cluster(change(blocked()))


@pytest.mark.parametrize("fault", BLOCKED_KERNELS)
def test_faults_of_kernels_with_blocks(fault: str) -> None:
    change, words = BLOCKED_KERNELS[fault]
    with pytest.raises(BadCluster, match=words):
        verify_kernel(change(blocked_kernel()))
