"""CUDA: a row of any length in parts, each held in registers while it is reduced; the last walk reads the row again.

Where rows are few, blocks share a row, a launch a walk: each part's results wait in memory for the next (`spread`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onepass.device import Device
from onepass.ir.kernel import (
    Accumulate,
    ColumnLoop,
    Compute,
    Kernel,
    ReduceRow,
    RowBlock,
    Statement,
    StoreValue,
)
from onepass.ir.symbol import Poly, Size
from onepass.ops.opdef import OnlineDef
from onepass.ops.reduce import ONLINE
from onepass.plan.schedules.row import vector_width

# A part leaves 16 to 32 values in a thread's registers, of 64: two blocks of 512 threads are resident.
LANES, STEPS, MIN_BLOCKS = 512, 4, 2


@dataclass(frozen=True)
class StreamSchedule:
    """``lanes`` threads take a part: ``steps`` vectors of ``width`` each. Column c of a part belongs to lane
    (c / width) mod lanes; parts are reduced one by one and combined in their order, whichever block has which."""

    lanes: int
    width: int
    steps: int = STEPS
    min_blocks: int = (
        MIN_BLOCKS  # resident on a multiprocessor: bounds a thread's registers; 0 leaves them open
    )
    depth: int = 2  # vectors in flight where no values are left in registers
    family: str = "row-stream"

    @property
    def threads(self) -> int:
        return self.lanes

    @property
    def part(self) -> int:
        """Columns that a block holds at a time."""
        return self.lanes * self.steps * self.width

    def explain(self) -> str:
        parts = f"parts of {self.part} columns by vectors of {self.width}"
        return f"{self.lanes} lanes a row, {parts}, the row read again to write"


def schedules(kernel: Kernel, device: Device) -> list[StreamSchedule] | str:
    if kernel.axis != "reduced":
        return "the reduction has an inner dimension"
    if any(a.window for a in kernel.accesses):
        return "too_large: a concatenation in a row that does not fit in registers"
    width = vector_width(kernel)
    bounded = MIN_BLOCKS if device.threads >= MIN_BLOCKS * LANES else 0
    found = [
        StreamSchedule(LANES, width, min_blocks=bounded),
        StreamSchedule(LANES, width, min_blocks=bounded, depth=1),
        StreamSchedule(LANES, width, min_blocks=0),
    ]
    # Places in blocks take registers of their own.
    return [*found, replace(found[0], steps=STEPS // 2)] if kernel.blocks else found


def spread(rows: int, parts: int, units: int) -> tuple[int, int]:
    """Blocks that share a row, and the parts of each: two blocks a multiprocessor where rows alone do not give them."""
    wanted = max(1, min(parts, 2 * units // max(1, rows)))
    each = -(-parts // wanted)
    return -(-parts // each), each


# Walks


@dataclass(frozen=True)
class Pair:
    """A second reduction, of what the first leaves in registers: its loop without what the first loop has done."""

    rule: OnlineDef
    value: str  # that both reduce
    shift: str
    loop: tuple[Statement, ...]
    reduce: ReduceRow


@dataclass(frozen=True)
class Walk:
    """One walk over a row: statements of the row before it, what is done for each column, what is reduced.

    ``then`` are the row statements between the two reductions of a pair.
    """

    before: tuple[Statement, ...]
    loop: tuple[Statement, ...]
    reduces: tuple[ReduceRow, ...]
    pair: Pair | None = None
    then: tuple[Statement, ...] = ()


def walks(kernel: Kernel) -> list[Walk]:
    """The kernel's phases, those that one walk can do together joined."""
    phases = _phases(kernel)
    found: list[Walk] = []
    while phases:
        first, *rest = phases
        pair = _pair(kernel, first, rest[0]) if rest else None
        if pair:
            first = Walk(first.before, first.loop, first.reduces, pair, rest[0].before)
            rest = rest[1:]
        found.append(first)
        phases = rest
    return found


def _phases(kernel: Kernel) -> list[Walk]:
    found: list[Walk] = []
    before: list[Statement] = []
    loop: tuple[Statement, ...] = ()
    reduces: list[ReduceRow] = []

    def done() -> None:
        if before or loop or reduces:
            found.append(Walk(tuple(before), loop, tuple(reduces)))

    for stage in kernel.stages:
        if not isinstance(stage, ReduceRow) and (reduces or (isinstance(stage, RowBlock) and loop)):
            done()
            before, loop, reduces = [], (), []
        if isinstance(stage, RowBlock):
            before += stage.body
        elif isinstance(stage, ColumnLoop):
            loop = stage.body
        else:
            reduces.append(stage)
    done()
    return found


def _pair(kernel: Kernel, first: Walk, second: Walk) -> Pair | None:
    """How a phase's one reduction merges with the phase's before, or None."""
    ones = [[s for s in w.loop if isinstance(s, Accumulate)] for w in (first, second)]
    stores = any(isinstance(s, StoreValue) for s in second.loop)
    if stores or any(len(found) != 1 for found in ones) or len(second.reduces) != 1:
        return None
    (a,), (b,) = ones
    for rule in ONLINE:
        chain = _chain(rule, second, b)
        if (a.op, b.op) != (rule.first, rule.second) or chain is None or not isinstance(a.value, str):
            continue
        value, shift = chain[0].operands
        own: tuple[Statement, ...] = (*chain, b)
        if (
            value != a.value
            or not isinstance(shift, str)
            or not set(second.loop) - set(own) <= set(first.loop)
        ):
            continue
        if _shifted_by(kernel, rule, shift, a.name, second.before):
            return Pair(rule, a.value, shift, own, second.reduces[0])
    return None


def _chain(rule: OnlineDef, walk: Walk, last: Accumulate) -> list[Compute] | None:
    """The computations that end in what is accumulated, if they are the rule's steps."""
    made = {s.name: s for s in walk.loop if isinstance(s, Compute)}
    found: list[Compute] = []
    value = last.value
    for step in reversed(rule.steps):
        s = made.get(value) if isinstance(value, str) else None
        if s is None or s.op != step:
            return None
        found.insert(0, s)
        value = s.operands[0]
    return found


def _shifted_by(
    kernel: Kernel, rule: OnlineDef, shift: str, first: str, between: tuple[Statement, ...]
) -> bool:
    if not rule.over:
        return shift == first
    return any(
        isinstance(s, Compute)
        and (s.name, s.op, s.operands[0]) == (shift, rule.over, first)
        and _same(s.operands[1], kernel.cols)
        for s in between
    )


def _same(operand: object, cols: Size) -> bool:
    if isinstance(operand, Poly) or isinstance(cols, Poly):
        return operand == cols
    return isinstance(operand, (int, float)) and operand == cols
