"""Prove what an attention mask made of index arithmetic lets through, at every size of its graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import sympy
import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from onepass.capture.grids import Grid, Size, name_of, size_of
from onepass.capture.proof import (
    TRUE,
    Formula,
    Linear,
    all_of,
    any_of,
    at_least,
    inequalities,
    is_valid,
    negation,
)


@dataclass(frozen=True)
class Proof:
    """What a mask lets through: everything, the lower triangle, or something to be kept as it is."""

    lets_through: Literal["all", "causal", "unproven"]
    reason: str


def prove(node: Node, grids: Mapping[Node, Grid], queries: Size, keys: Size) -> Proof:
    """What the mask lets through in attention of so many queries to so many keys."""
    grid = grids.get(node)
    if grid is None:
        return Proof("unproven", _why_unread(node, grids))
    formula, rest_is_shut_out = _lets_through(grid)
    known = _known(grid, (formula, rest_is_shut_out), queries, keys, node)
    if not is_valid(rest_is_shut_out, known):
        return Proof("unproven", "it adds values other than 0 and -inf")
    if is_valid(formula, known):
        return Proof("all", "every key is let through at every size")
    if not _equivalent(formula, at_least(Linear.index(-2), Linear.index(-1)), known):
        return Proof("unproven", f"it lets through what satisfies {_described(formula, known)}")
    if size_of(queries) != size_of(keys):
        return Proof("unproven", "it is causal, but there may be more keys than queries")
    return Proof("causal", "it lets through key index <= query index, at every size")


def ancestors(node: Node) -> list[Node]:
    """The node and all it is computed from, in graph order."""
    found: set[Node] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current not in found:
            found.add(current)
            stack.extend(current.all_input_nodes)
    return sorted(found)


def _why_unread(node: Node, grids: Mapping[Node, Grid]) -> str:
    for ancestor in ancestors(node):
        if ancestor in grids or not isinstance(ancestor.meta.get("example_value"), torch.Tensor):
            continue
        if ancestor.op in ("placeholder", "get_attr"):
            return f"it depends on the data of {ancestor.name}"
        return f"{ancestor.name} ({name_of(ancestor)}) is not index arithmetic that can be followed"
    return "it was not traced"


def _lets_through(grid: Grid) -> tuple[Formula, Formula]:
    """What is let through, and the condition that the rest is shut out altogether."""
    if not isinstance(grid.cell, tuple):
        return grid.cell, TRUE
    kept = any_of(*(guard for guard, value in grid.cell if value == 0.0))
    shut_out = any_of(*(guard for guard, value in grid.cell if value == float("-inf")))
    return kept, any_of(kept, shut_out)


def _known(
    grid: Grid, formulas: Iterable[Formula], queries: Size, keys: Size, node: Node
) -> tuple[Linear, ...]:
    """Linear forms never negative: 0 <= index < size, and each symbol in the range that Dynamo guards."""
    sizes = {dim - len(grid.sizes): size for dim, size in enumerate(grid.sizes)}
    sizes |= {-2: size_of(queries), -1: size_of(keys)}
    known = []
    for dim, size in sizes.items():
        known.append(Linear.index(dim))
        length = Linear.size(size)
        if length is not None:
            known.append(length - Linear.index(dim) - 1)
    shape_env = node.meta["example_value"].fake_mode.shape_env
    atoms = {variable for line in (*known, *inequalities(formulas)) for variable, _ in line.terms}
    for atom in atoms:
        if isinstance(atom, sympy.Expr) and shape_env is not None:
            known.extend(_range(atom, shape_env))
    return tuple(known)


def _range(atom: sympy.Expr, shape_env: ShapeEnv) -> Iterator[Linear]:
    bounds, variable = shape_env.bound_sympy(atom), Linear(0, ((atom, 1),))
    if isinstance(bounds.lower, sympy.Integer):
        yield variable - int(bounds.lower)
    if isinstance(bounds.upper, sympy.Integer):
        yield Linear(int(bounds.upper)) - variable


def _equivalent(one: Formula, other: Formula, known: tuple[Linear, ...]) -> bool:
    return is_valid(any_of(negation(one), other), known) and is_valid(any_of(one, negation(other)), known)


def _described(formula: Formula, known: tuple[Linear, ...]) -> str:
    """The formula as a plain conjunction if it is one, else as it was read."""
    lines = dict.fromkeys(at_least(line, 0) for line in inequalities((formula,)))
    needed = [line for line in lines if not is_valid(line, known)]
    implied = [line for line in needed if is_valid(any_of(negation(formula), line), known)]
    conjunction = all_of(*implied)
    text = str(conjunction if _equivalent(formula, conjunction, known) else formula)
    return text if len(text) <= 160 else text[:157] + "..."
