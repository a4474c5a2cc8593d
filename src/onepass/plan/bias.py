"""A bias that a matmul would copy into its result first: added by the one kernel that reads the result."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from onepass.ir.address import compose
from onepass.ir.cluster import Addend, Call, Cluster, Load, Map, Node, Program
from onepass.ops.table import WITHOUT_BIAS
from onepass.plan.decision import Decision
from onepass.plan.merge import Fit, Merged
from onepass.plan.spaces import rename


def hand_over(merged: Merged, program: Program, fit: Fit, fuel: int | None = None) -> Merged:
    """The plan with each addend at the only reader of its result where that is a kernel that can take it.

    It comes after merging: which kernel reads a result is known only then, and a reader that can't take the addend
    leaves the call as it was. ``fuel`` counts what was merged and handed over.
    """
    items, decisions = list(merged.items), list(merged.decisions)
    readers: dict[str, list[int]] = {}
    for i, item in enumerate(items):
        for tensor in item.reads:
            readers.setdefault(tensor, []).append(i)
    kept = {*program.outputs, *(t for item in items for t in getattr(item, "mutates", ()))}
    for i, call in enumerate(items):
        if not isinstance(call, Call) or call.addend is None or kept & {*call.writes, call.addend.tensor}:
            continue
        found = readers.get(call.writes[0], [])
        cluster = items[found[0]] if len(found) == 1 else None
        if not isinstance(cluster, Cluster):
            continue
        taken = with_addend(cluster, call.writes[0], call.addend, program)
        reason = "bias"
        if fuel is not None and sum(d.verdict == "fused" for d in decisions) >= fuel:
            reason = "fuel"
        elif taken is None:
            reason = "space_mismatch"
        elif fit(taken):
            reason = "too_large"
        else:
            bare = replace(call, target=WITHOUT_BIAS[call.target], reads=call.addend.others, bare=True)
            items[found[0]], items[i] = taken, bare
        verdict: Literal["fused", "kept"] = "fused" if reason == "bias" else "kept"
        decisions.append(
            Decision(call.name, cluster.name, verdict, reason, "", 0, 0.0, (call.name, cluster.name))
        )
    return Merged(tuple(items), tuple(decisions))


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
