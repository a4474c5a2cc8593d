"""The house rules that a program can check: which way imports go, that tables are explicit, where ops may be named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import onepass
from onepass.codegen.cpu_prelude import cpu_library, cpu_prelude
from onepass.codegen.cuda_prelude import cuda_prelude
from onepass.ops.opdef import CompositeDef, OpDef, ReductionDef
from onepass.ops.table import BY_ATEN, COMPOSITES, COMPUTE_BOUND, OPS, REDUCE, VIEWS

SOURCE = Path(onepass.__file__).parent
FILES = sorted(p.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*.py"))

# Lowest first; modules of one line may import each other.
LAYERS = (
    "errors settings dtypes device",
    "ops",
    "ir",
    "analysis",
    "plan",
    "codegen",
    "runtime emulate",
    "build",
    "capture",
    "api functional nn",
    "insight ladder",
    "cli",
)
LAYER = {name: i for i, names in enumerate(LAYERS) for name in names.split()}
OUTSIDE = {"__init__", "__main__"}  # the package's face: what it offers, and how it is run


@cache
def parsed(file: str) -> ast.Module:
    return ast.parse((SOURCE / file).read_text(), file)


def part(file: str) -> str:
    return file.split("/")[0].removesuffix(".py")


def imports(file: str) -> Iterator[tuple[str, int]]:
    """The parts of onepass that a file imports, anywhere in it, and the lines."""
    package = ("onepass", *file.split("/")[:-1])
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            names = [base] if base.count(".") else [f"{base}.{a.name}" for a in node.names]
        else:
            continue
        yield from ((n.split(".")[1], node.lineno) for n in names if n.startswith("onepass."))


def test_every_part_has_a_layer() -> None:
    assert {part(f) for f in FILES} - OUTSIDE <= set(LAYER)


@pytest.mark.parametrize("file", [f for f in FILES if part(f) not in OUTSIDE])
def test_imports_go_one_way(file: str) -> None:
    upward = [
        f"line {line}: {name}"
        for name, line in imports(file)
        if name not in OUTSIDE and LAYER.get(name, -1) > LAYER[part(file)]
    ]
    assert not upward


def test_an_upward_import_would_be_seen() -> None:
    tree = "from onepass.codegen.emit import emit\nfrom ..runtime import cache\nimport onepass.cli\n"
    assert names_in(tree, "plan/choose.py") == ["codegen", "runtime", "cli"]


@pytest.mark.parametrize("file", FILES)
def test_imports_are_written_in_full_and_of_no_test_library(file: str) -> None:
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}"
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert not [n for n in names if n.split(".")[0] in ("unittest", "pytest", "hypothesis")], (
                node.lineno
            )


def names_in(text: str, file: str) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.parsed", lambda file: ast.parse(text))
        return [name for name, _ in imports(file)]


# Tables

REGISTERS = re.compile(r"regist|\.add$|\.append$|\.update$|\.setdefault$")
# PyTorch keeps its own table of ops, which a library can only join by registering.
REGISTERED = {"capture/attention_op.py"}


@pytest.mark.parametrize("file", [f for f in FILES if f not in REGISTERED])
def test_nothing_registers_itself(file: str) -> None:
    """No statement of a module changes an object, and no decorator puts a function into a table."""
    for node in parsed(file).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            assert not [d for d in node.decorator_list if REGISTERS.search(ast.unparse(d).split("(")[0])], (
                node.lineno
            )
        if isinstance(node, ast.Expr):
            documented = isinstance(node.value, ast.Constant)
            assert documented or file == "__main__.py", f"line {node.lineno} runs at import"
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assert all(isinstance(t, (ast.Name, ast.Tuple)) for t in targets), (
                f"line {node.lineno} changes an object"
            )


def test_tables_hold_each_row_once() -> None:
    names = [*OPS, *REDUCE]
    assert len(names) == len(set(names))
    assert len({c.name for c in COMPOSITES}) == len(COMPOSITES)
    aten = [a for row in (*OPS.values(), *COMPOSITES) for a in row.aten]
    assert len(aten) == len(set(aten)) == len(BY_ATEN)
    assert not set(aten) & (VIEWS | COMPUTE_BOUND)


# Ops are named in ops/ alone. The line is drawn here: capture follows *views* by their ATen names (they are addresses, not
# rows, and an address is no thing of ops/); the proofs about masks read PyTorch's graph before there is one of ours.
MAY_NAME: dict[str, frozenset[str]] = {
    "capture/views.py": VIEWS,
    "capture/grids.py": frozenset(BY_ATEN) | frozenset(OPS) | {c.name for c in COMPOSITES},
    "capture/cells.py": frozenset(OPS) | {c.name for c in COMPOSITES},
    "capture/mask_edit.py": frozenset(OPS) | {c.name for c in COMPOSITES},
}
NAMES = {*OPS, *REDUCE, *(c.name for c in COMPOSITES), *BY_ATEN, *VIEWS, *COMPUTE_BOUND}
ASKED = {"op", "name", "target", "aten", "origin", "__name__"}


def branches(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Comparisons of something called op, name or target with the name of a row, and cases of a match on it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            asked = any(getattr(s, "attr", getattr(s, "id", "")) in ASKED for s in sides)
            found = [c.value for s in sides for c in ast.walk(s) if isinstance(c, ast.Constant)]
        elif isinstance(node, ast.Match):
            asked = getattr(node.subject, "attr", getattr(node.subject, "id", "")) in ASKED
            found = [
                c.value for case in node.cases for c in ast.walk(case.pattern) if isinstance(c, ast.Constant)
            ]
        else:
            continue
        if asked:
            yield from ((node.lineno, f) for f in found if f in NAMES)


@pytest.mark.parametrize("file", [f for f in FILES if part(f) != "ops"])
def test_no_branch_on_an_op_outside_ops(file: str) -> None:
    allowed = MAY_NAME.get(file, frozenset())
    assert not [f"line {line}: {name}" for line, name in branches(parsed(file)) if name not in allowed]


@pytest.mark.parametrize(
    "text", ['if s.op == "gelu_erf": pass', 'x = name in ("sum", "max")', 'y = "exp" != node.op']
)
def test_a_branch_on_an_op_would_be_seen(text: str) -> None:
    assert list(branches(ast.parse(text)))


# Rows

CPU, CUDA = cpu_prelude() + cpu_library(), cuda_prelude()


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_elementwise_rows_are_complete(op: OpDef) -> None:
    assert op.doc and op.source and callable(op.reference)
    assert op.args and op.flops >= 0 and op.cost >= 0 and op.special >= 0
    low, high = op.domain
    assert low < high
    for text in filter(None, (op.expr, op.expr_half)):
        assert {int(i) for i in re.findall(r"\{(\d)\}", text)} == set(range(len(op.args)))
        for function in functions(text):
            assert re.search(rf"\b{function}\s*\(|\b{function}\s*,", CPU), (
                f"{function} is not in the CPU prelude"
            )
            assert re.search(rf"\b{function}\s*\(|\b{function}\s*,", CUDA), f"{function} is not in CUDA's"


@pytest.mark.parametrize("op", REDUCE.values(), ids=lambda op: op.name)
def test_reductions_are_complete(op: ReductionDef) -> None:
    assert op.doc and op.source and callable(op.reference) and op.identity
    assert "{0}" in op.combine and "{1}" in op.combine
    assert re.search(rf"\bh{op.name}\s*\(", CPU)
    assert re.search(rf"\b{op.group}\s*\(", CUDA)
    for function in functions(op.combine):
        assert function in CPU and function in CUDA


@pytest.mark.parametrize("op", COMPOSITES, ids=lambda op: op.name)
def test_composites_are_complete(op: CompositeDef) -> None:
    assert op.doc and op.source and op.aten and callable(op.expand)


def functions(text: str) -> list[str]:
    return re.findall(r"\b([a-z_]\w*)\(", text)
