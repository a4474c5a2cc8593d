"""Write docs/ops.md and docs/settings.md from the tables they describe.

python tools/gen_docs.py            writes them
python tools/gen_docs.py --check    exits 1 if they are not as the tables say
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from onepass.capture.options import KEYS, MODES
from onepass.dtypes import DTYPES
from onepass.ops.reduce import REDUCTIONS
from onepass.ops.table import COMPOSITES, COMPUTE_BOUND, LEFT, OPS, REPLACED, VIEWS
from onepass.settings import SETTINGS

DOCS = Path(__file__).parents[1] / "docs"
GENERATED = "<!-- Written by tools/gen_docs.py from the tables in src/onepass; change those. -->"


def main() -> int:
    stale = [path for path, text in documents().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path} is not what the tables say; run python tools/gen_docs.py")
        return bool(stale)
    for path in stale:
        path.write_text(documents()[path])
        print(f"wrote {path}")
    return 0


def documents() -> dict[Path, str]:
    """Each generated file and its text."""
    return {DOCS / "ops.md": _ops(), DOCS / "settings.md": _settings()}


def _ops() -> str:
    storage = ", ".join(f"{d.short} ({d.nbytes} B)" for d in DTYPES.values())
    return _page(
        "Ops",
        f"What kernels are made of. Elements are stored as {storage}; kernels compute in fp32, in float64 "
        "where PyTorch does, and in 64-bit integers whose results wrap as the dtype does. Anything else, complex numbers "
        "among it, stays with PyTorch.",
        "## Element-wise\n\nOne statement in a kernel each. FLOPs are those that arithmetic intensity counts.",
        _table(
            ("op", "ATen", "meaning", "FLOPs", "source"),
            ((f"`{op.name}`", _names(op.aten), op.doc, op.flops, op.source) for op in OPS.values()),
        ),
        "## Reductions\n\nAlong neighbouring dimensions, in fp32, float64 or 64-bit integers.",
        _table(
            ("op", "meaning", "identity", "source"),
            ((f"`{op.name}`", op.doc, f"`{op.identity}`", op.source) for op in REDUCTIONS),
        ),
        "## Made of these\n\nExpanded when a graph is captured; eager runs each as an op of its own.",
        _table(
            ("op", "ATen", "meaning", "source"),
            ((f"`{op.name}`", _names(op.aten), op.doc, op.source) for op in COMPOSITES),
        ),
        "## Replaced\n\nBefore a graph is read: "
        + "; ".join(f"`{name}`: {doc}" for name, doc in REPLACED.items())
        + ".",
        "## Addresses\n\nThese move nothing: " + _names(sorted(VIEWS)) + ".",
        "## PyTorch's by design\n\nBound by arithmetic, not by memory: "
        + _names(sorted(COMPUTE_BOUND))
        + ".",
        "## Left to PyTorch\n\nMemory-bound ops that models run and no kernel takes. An op in no table here is left too, "
        "as `unsupported op`. `onepass explain` names each op that a program leaves, and its reason.",
        _table(("ATen", "why"), ((f"`{name}`", why) for name, why in LEFT.items())),
    )


def _settings() -> str:
    return _page(
        "Settings",
        "Environment variables, read when they are needed and never at import.",
        _table(
            ("variable", "takes", "default", "what it does"),
            ((f"`{s.name}`", s.expected, _default(s.default), s.doc) for s in SETTINGS),
        ),
        '## torch.compile\n\n`torch.compile(model, backend="onepass", options={…})` takes, for one model:',
        _table(
            ("key", "takes", "what it does"),
            ((f"`{name}`", key.expected, key.doc) for name, key in KEYS.items()),
        ),
        "`mode=` may be "
        + ", ".join(f"`{mode}`" for mode in MODES)
        + "; all do the same. An unknown mode, key or value is an error that lists what is known.",
    )


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", GENERATED, *parts)) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in lines)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "–"


def _default(value: object) -> str:
    if value in (None, (), ""):
        return "–"
    return str(int(value)) if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.exit(main())
