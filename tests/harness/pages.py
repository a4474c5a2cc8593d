"""Reports to make pages of, and a reader of pages that shares nothing with what writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from harness.oracle import capture
from onepass.analysis.flow import Box, Cut, Edge, Flow, Op
from onepass.analysis.report import DecisionRow, KernelRow, LeftRow, Report, Totals
from onepass.analysis.roofline import Roof
from onepass.api import report
from onepass.build import Plan, build, fit

EVIL = "<script>document.title='taken'</script>\"'&"
VOID = {"meta", "br", "hr", "img", "link"}


def planned(function: Callable[..., Any], inputs: Sequence[Tensor]) -> tuple[Plan, Report]:
    """A function's plan and report; nothing is compiled or run."""
    plan = build(capture(function, inputs, fit).program, {}, run=False)
    return plan, report([plan], [[]], [])


class Layer(nn.Module):
    """A layer of a transformer encoder, norms last."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        x = self.first(x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.second(x + self.down(F.gelu(self.up(x))))


def encoder(layers: int) -> tuple[Plan, Report]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(32, 2) for _ in range(layers)), nn.Linear(32, 8), nn.Tanh()).eval()
    names, weights = zip(*model.named_parameters(), strict=True)

    def run(x: Tensor, *given: Tensor) -> Tensor:
        result: Tensor = functional_call(model, dict(zip(names, given, strict=True)), (x,))
        return result

    return planned(run, (torch.randn(2, 16, 32), *(w.detach() for w in weights)))


def kernel(name: str, **given: Any) -> KernelRow:
    """A kernel as a GPU's report has it."""
    row = KernelRow(
        name=name,
        ops=("gelu.default", "add.Tensor"),
        rows=4096,
        cols=1024,
        dtypes=("fp32",),
        schedule="row-block",
        launch="a block of 256 threads a row",
        bytes_read=33_554_432,
        bytes_written=16_777_216,
        eager_bytes=83_886_080,
        flops=62_914_560,
        registers=40,
        spill_bytes=0,
        occupancy=0.75,
        predicted_us=14.5,
        measured_us=16.25,
        bound="memory",
        source="__global__ void f() {}\n",
    )
    return replace(row, **given)


def hostile() -> Report:
    """Every text that comes from outside tries to become markup."""
    boxes = (
        Box("in", "input", "input", EVIL),
        Box(
            "a",
            "kernel",
            EVIL,
            ops=(Op("g", EVIL), Op("h", "add", True)),
            inside=(Edge("g", "h", 4096),),
            kernel=0,
        ),
        Box("b", "call", EVIL, EVIL),
        Box("out", "output", "result", "fp32 8 × 8"),
    )
    edges = (
        Edge("in", "a", 1 << 20),
        Edge("a", "b", 1 << 20, cut=Cut("opaque", EVIL, 2 << 20, 1.5)),
        Edge("b", "out", 64),
    )
    return Report(
        device=EVIL,
        kernels=(
            kernel(EVIL, ops=(EVIL,), dtypes=(EVIL,), schedule=EVIL, launch=EVIL, bound=EVIL, source=EVIL),
        ),
        decisions=(DecisionRow(EVIL, EVIL, "kept", "opaque", EVIL, 2 << 20, 1.5),),
        left=(LeftRow(EVIL, "memory", EVIL, 64),),
        totals=Totals(100, 50, 2, 1, 1, 10),
        notes=(EVIL,),
        reasons={"opaque": EVIL},
        flows=(Flow(boxes, edges),),
        roofs=(Roof("datasheet", 900, 15700, EVIL), Roof("measured", 790, 14000, EVIL)),
    )


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""
    parents: tuple[Element, ...] = ()

    def inside(self, attribute: str, value: str) -> bool:
        return any(p.attributes.get(attribute) == value for p in self.parents)


@dataclass
class Read(HTMLParser):
    """A page as a list of elements with their text, their descendants' included; what does not nest is in ``faults``."""

    elements: list[Element] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    open: list[Element] = field(default_factory=list)

    @classmethod
    def page(cls, text: str) -> Read:
        reader = cls()
        HTMLParser.__init__(reader)
        reader.feed(text)
        reader.close()
        reader.faults += [f"<{e.tag}> is never closed" for e in reader.open]
        return reader

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {k: v or "" for k, v in attributes}, parents=tuple(self.open))
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {k: v or "" for k, v in attributes}, parents=tuple(self.open)))

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1].tag == tag:
            self.open.pop()
        else:
            self.faults.append(f"</{tag}> at {self.getpos()} closes nothing")

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        return [
            e
            for e in self.elements
            if e.tag == tag and all(v in e.attributes.get(k, "").split() for k, v in attributes.items())
        ]
