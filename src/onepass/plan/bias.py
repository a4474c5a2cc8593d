"""A bias that a matmul would copy into its result first: added by the one kernel that reads the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from onepass.ir.address import compose
from onepass.ir.cluster import Addend, Call, Cluster, Item, Load, Map, Node, Program
from onepass.ops.table import WITHOUT_BIAS
from onepass.plan.spaces import rename


def hand_over(items: Sequence[Item], program: Program, fit: Callable[[Cluster], str]) -> tuple[Item, ...]:
    """The planned items, each addend with the only reader of its result where that is a kernel that can take it.

    It comes after merging: which kernel reads a result is known only then, and a reader that can't take the addend
    leaves the call as it was.
    """
    made = list(items)
    readers: dict[str, list[int]] = {tensor: [-1] for tensor in program.outputs}
    for i, item in enumerate(items):
        for tensor in item.reads:
            readers.setdefault(tensor, []).append(i)
    mutated = {tensor for item in items for tensor in getattr(item, "mutates", ())}
    for i, call in enumerate(items):
        if not isinstance(call, Call) or call.addend is None or call.addend.tensor in mutated:
            continue
        (result,) = call.writes
        reader, *others = readers.get(result, [-1])
        cluster = made[reader]
        if reader < 0 or others or not isinstance(cluster, Cluster):
            continue
        taken = with_addend(cluster, result, call.addend, program)
        if taken is not None and not fit(taken):
            made[reader] = taken
            made[i] = replace(call, target=WITHOUT_BIAS[call.target], bare=True)
    return tuple(made)


def with_addend(cluster: Cluster, result: str, addend: Addend, program: Program) -> Cluster | None:
    """The cluster with the addend added to each value it reads of a result; None where an address can't be followed."""
    nodes: list[Node] = []
    sums: dict[str, str] = {}
    for node in cluster.nodes:
        nodes.append(rename(node, sums))
        if not isinstance(node, Load) or node.tensor != result:
            continue
        view = compose(addend.view, node.view)
        if view is None or node.window is not None or node.index is not None:
            return None
        bias = Load(f"{node.name}.bias", node.level, addend.tensor, view, node.kind)
        total = Map(f"{node.name}.biased", node.level, "add", (node.name, bias.name), node.kind)
        nodes += [bias, total]
        sums[node.name] = total.name
    return replace(
        cluster,
        nodes=tuple(nodes),
        stores=tuple(replace(s, value=sums.get(s.value, s.value)) for s in cluster.stores),
        origins=("bias", *cluster.origins),
        tensors={**cluster.tensors, addend.tensor: program.tensors[addend.tensor]},
    )
