"""The page of a report, read by a parser of its own: complete, self-contained, escaped, and nothing over anything."""

from __future__ import annotations

import math
import os
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from html import unescape
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from harness.pages import EVIL, Read, encoder, hostile, kernel, planned
from onepass.analysis import html
from onepass.analysis.flow import Box, Cut, Edge, Flow
from onepass.analysis.fold import fold
from onepass.analysis.html import page as page_module
from onepass.analysis.html.layout import Layout, lay_out, spread
from onepass.analysis.html.page import Fact, Section, page
from onepass.analysis.html.range_figure import Ranged, RangeFigure, range_figure
from onepass.analysis.html.report_page import report_page
from onepass.analysis.html.roofline_figure import BOTTOM, COLOURS, LABEL, TOP, Dot, roofline_figure
from onepass.analysis.html.text import clipped
from onepass.analysis.machine_code import Access, Instruction, MachineCode
from onepass.analysis.report import Report
from onepass.analysis.roofline import Roof
from onepass.build import Built, Plan
from onepass.errors import BadReportPath, CannotWrite
from onepass.ir.cluster import Cluster

FOLDER = Path(html.__file__).parent
LAYERS = 24


def block(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(x, approximate="tanh") + residual, x.shape[-1:], weight, bias)


@pytest.fixture(scope="module")
def one() -> Report:
    return planned(block, (torch.randn(512, 256), torch.randn(512, 256), torch.ones(256), torch.zeros(256)))[
        1
    ]


@pytest.fixture(scope="module")
def deep() -> tuple[Plan, Report]:
    """A model of 24 layers."""
    return encoder(LAYERS)


# The file


@pytest.mark.parametrize("which", ["one", "deep", "hostile"])
def test_the_page_is_well_formed_and_asks_nothing_of_a_network(
    which: str, one: Report, deep: tuple[Plan, Report]
) -> None:
    text = report_page({"one": one, "deep": deep[1], "hostile": hostile()}[which])
    read = Read.page(text)
    assert not read.faults
    assert not outside(text)
    ids = Counter(e.attributes["id"] for e in read.elements if "id" in e.attributes)
    # A marker of the same name in each picture is the same marker.
    assert [i for i, n in ids.items() if n > 1] == []
    links = {e.attributes["href"] for e in read.all("a")}
    assert links
    assert {link.removeprefix("#") for link in links} <= set(ids)


def outside(text: str) -> list[str]:
    """What a browser would fetch for a page."""
    found = [
        f"{e.tag} {name}={value}"
        for e in Read.page(text).elements
        for name, value in e.attributes.items()
        if name in ("src", "href", "srcset", "data", "action", "poster", "xlink:href")
        and not value.startswith("#")
    ]
    read = Read.page(text)
    code = "".join(e.text for e in read.elements if e.tag in ("style", "script"))
    return found + re.findall(r"@import|url\((?!#)|https?:|fetch\(|XMLHttpRequest|import\(", code)


@pytest.mark.parametrize(
    "given",
    ['<img src="x.png">', '<a href="https://a.b">c</a>', "<style>p { background: url(x.png) }</style>"],
)
def test_something_fetched_would_be_seen(given: str) -> None:
    assert outside(given)


def test_a_tag_that_does_not_nest_would_be_seen() -> None:
    assert Read.page("<p><b>x</p></b>").faults and Read.page("<div>").faults


# What stands on it


def test_the_verdict_comes_first(one: Report) -> None:
    read = Read.page(report_page(one))
    texts = [e for e in read.elements if e.tag in ("h1", "h2", "table", "svg")]
    assert texts[0].tag == "h1"
    assert texts[0].text == one.verdict.splitlines()[0]
    assert [e.text for e in read.all("h2")] == ["Roofline", "Data flow", "Kernels", "Decisions"]


def test_every_kernel_has_its_row_its_source_and_its_figures(deep: tuple[Plan, Report]) -> None:
    report = deep[1]
    read = Read.page(report_page(report))
    sources = [e.text for e in read.all("pre", **{"class": "source"})]
    assert set(sources) == {k.source for k in report.kernels}
    rows = [r for r in read.all("tr") if r.inside("id", "kernels")][1:]
    times = Counter[str]()
    for row in rows:
        cells = [e for e in read.elements if e.tag == "td" and row in e.parents]
        times[cells[0].text] += int(cells[1].text)
    assert times == Counter(k.name for k in report.kernels)
    article = next(e for e in read.all("article") if report.kernels[0].name in e.text)
    assert "predicted" in article.text and report.kernels[0].launch in article.text


def test_registers_spills_and_measured_times_of_a_gpu_are_shown(one: Report) -> None:
    gpu = replace(
        one, kernels=(kernel("first"), kernel("second", registers=None, occupancy=None, spill_bytes=None))
    )
    read = Read.page(report_page(gpu))
    row = next(e for e in read.all("tr") if e.text.startswith("first"))
    assert all(figure in row.text for figure in ("40", "75 %", "14.5 µs", "16.2 µs", "50.3 MB"))
    assert "not timed" not in row.text
    widths = [
        float(e.attributes["width"].rstrip("%")) for e in read.all("rect") if "%" in e.attributes["width"]
    ]
    assert widths[:2] == [round(100 * 14.5 / 16.25, 1), 100.0]


SASS = MachineCode(
    "read",
    "machine code",
    (
        *(Instruction("LDG.E.128", "R4,desc[UR4][R2.64]", Access("global", "load", 128)) for _ in range(4)),
        Instruction("LDG.E", "R9,desc[UR4][R2.64]", Access("global", "load", 32)),
        Instruction("STG.E.128", "desc[UR4][R2.64],R4", Access("global", "store", 128)),
        Instruction("LDS", "R1,[R2]", Access("shared", "load", 32)),
        Instruction("STL", "[R1],R2", Access("local", "store", 32)),
        *(Instruction("MUFU.EX2", "R1,R2") for _ in range(3)),
        Instruction("BAR.SYNC", "0x0"),
    ),
)


def test_what_the_machine_code_holds_is_shown_where_it_was_read(one: Report) -> None:
    asked: list[str] = []

    def read() -> MachineCode:
        asked.append("read")
        return SASS

    kernels = (
        kernel("read", read_code=read),
        kernel("refused", read_code=lambda: "nvdisasm is missing: pip install it"),
        kernel("unread"),
    )
    gpu = replace(one, kernels=kernels)
    assert gpu.text and gpu.to_dict() and not asked  # neither the text nor the document needs it
    page = Read.page(report_page(gpu))
    report_page(gpu)
    assert asked == ["read"]
    cards = {e.text.split()[0]: e for e in page.all("article")}
    facts = [
        (e.text, page.elements[i + 1].text)
        for i, e in enumerate(page.elements)
        if e.tag == "dt"
        and cards["read"] in e.parents
        and any("code" in p.attributes.get("class", "") for p in e.parents)
    ]
    assert facts == [
        ("instructions", "12"),
        ("global loads", "4 × 128 bit, 1 × 32 bit"),
        ("global stores", "1 × 128 bit"),
        ("shared loads", "1 × 32 bit"),
        ("special-function instructions", "3"),
        ("barriers", "1"),
        ("shuffles", "0"),
        ("spills to local memory", "1 × 32 bit"),
        ("bytes in flight a thread", str(SASS.bytes_in_flight)),
    ]
    assert "machine code not read: nvdisasm is missing" in cards["refused"].text
    assert "Machine code" not in cards["unread"].text and "not read" not in cards["unread"].text


def boundary(plan: Plan) -> Counter[tuple[str, str]]:
    """Pairs of items with a tensor between them of which one is a kernel, read off the plan itself."""
    items = [i.cluster if isinstance(i, Built) else i for i in plan.items]
    wrote: dict[str, int] = {}
    pairs: set[tuple[int, int]] = set()
    for n, item in enumerate(items):
        pairs |= {(wrote[t], n) for t in item.reads if t in wrote}
        wrote |= dict.fromkeys(item.writes, n)
    return Counter(
        (items[a].name, items[b].name)
        for a, b in pairs
        if isinstance(items[a], Cluster) or isinstance(items[b], Cluster)
    )


def test_every_cut_edge_is_in_the_picture_and_in_the_list_with_its_reason(deep: tuple[Plan, Report]) -> None:
    plan, report = deep
    expected = boundary(plan)
    (flow,) = report.flows
    assert Counter((e.source, e.target) for e in flow.edges if e.cut) == expected
    read = Read.page(report_page(report))
    drawn = {e.attributes["data-cut"] for e in read.elements if "data-cut" in e.attributes}
    rows = [e for e in read.all("tr") if e.attributes.get("id", "").startswith("cut-")]
    assert drawn == {row.attributes["id"].removeprefix("cut-") for row in rows}
    behind = 0
    for row in rows:
        cells = [e.text for e in read.elements if e.tag == "td" and row in e.parents]
        found = re.search(r"\(× (\d+)\)", cells[1])
        behind += int(found[1]) if found else 1
        assert any(cells[3].startswith(f"{code}: {words}") for code, words in report.reasons.items())
    assert behind == expected.total()


def test_a_cut_edge_says_what_the_planner_said() -> None:
    plan, report = encoder(1)
    for edge in report.flows[0].edges:
        if edge.cut is not None:
            said = [d for d in plan.decisions if d.between == (edge.source, edge.target)]
            assert edge.cut.reason == said[0].reason and edge.cut.detail == said[0].detail
            assert edge.cut.bytes_saved == sum(d.bytes_saved for d in said)
            assert edge.cut.bytes_saved or edge.cut.reason == "cycle"


def test_the_picture_of_the_example_has_its_bytes(one: Report) -> None:
    (flow,) = one.flows
    full = 512 * 256 * 4
    kinds = {box.name: box.kind for box in flow.boxes}
    assert Counter(kinds.values()) == {"input": 2, "kernel": 1, "output": 1}
    assert [(kinds[e.source], kinds[e.target], e.nbytes, e.cut) for e in flow.edges] == [
        ("input", "kernel", full, None),
        ("input", "kernel", full, None),
        ("kernel", "output", full, None),
    ]
    (box,) = (b for b in flow.boxes if b.kind == "kernel")
    assert [op.label for op in box.ops] == ["gelu", "add", "layer_norm"]
    names = [op.name for op in box.ops]
    assert [(e.source, e.target, e.nbytes) for e in box.inside] == [
        (names[0], names[1], full),
        (names[1], names[2], full),
    ]
    assert (box.read_bytes, box.written_bytes) == (one.kernels[0].bytes_read, one.kernels[0].bytes_written)


# Escaping


def taken(text: str) -> bool:
    """Whether a text that tries to become markup has."""
    read = Read.page(text)
    return len(read.all("script")) != 1 or bool(read.faults)


def test_no_text_becomes_markup() -> None:
    text = report_page(hostile())
    assert not taken(text)
    assert "<script>document" not in text
    # It is there, as text, in the verdict, the picture, the tables and the source.
    read = Read.page(text)
    for tag in ("p", "text", "td", "pre", "h3", "li", "dd", "title"):
        assert any(EVIL in e.text for e in read.all(tag)), tag
    # A notebook's frame holds the page as one attribute.
    frame = hostile()._repr_html_()
    (iframe,) = Read.page(frame).elements
    assert unescape(iframe.attributes["srcdoc"]) == unescape(text)


def test_without_escaping_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = page_module._environment()
    page_module._environment.cache_clear()
    monkeypatch.setattr(page_module, "_environment", lambda: environment.overlay(autoescape=False))
    assert taken(report_page(hostile()))


def test_other_verbs_make_pages_of_their_own_sections() -> None:
    text = page(
        "onepass ladder", "v4 <beats> v3.", [Fact("GB/s", "790")], [Section("a", "One & two", "body")]
    )
    read = Read.page(text)
    assert not read.faults
    assert read.all("h1")[0].text == "v4 <beats> v3."
    assert [e.text for e in read.all("h2")] == ["One & two"]


# Light and dark


def test_both_schemes_define_every_colour_that_is_used() -> None:
    style = (FOLDER / "style.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    names = re.findall(r"(--[a-z-]+):", light)
    assert "prefers-color-scheme: dark" in style
    assert sorted(names) == sorted(re.findall(r"(--[a-z-]+):", dark))
    assert set(re.findall(r"var\((--[a-z-]+)\)", style)) == set(names)
    rest = style.replace(light, "").replace(dark, "")
    assert not re.findall(r"#[0-9a-f]{3,8}\b(?! path)", rest)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(scheme: int) -> None:
    """WCAG 2.2 asks for a contrast of 4.5 for text and 3 for lines that carry meaning."""
    block = re.findall(r":root \{(.*?)\}", (FOLDER / "style.css").read_text(), re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    for ink in ("ink", "quiet"):
        for behind in ("page", "panel", "kernel", "call", "outside", "chip"):
            assert contrast(colours[ink], colours[behind]) >= 4.5, (ink, behind)
    for ink in ("cut", "link"):
        assert contrast(colours[ink], colours["page"]) >= 4.5, ink
    for line in ("kernel-line", "call-line", "outside-line", "measured-roof", "datasheet-roof", "model-roof"):
        assert contrast(colours[line], colours["page"]) >= 3, line


def test_a_picture_by_itself_has_the_light_colours_of_a_page() -> None:
    light = re.findall(r":root \{(.*?)\}", (FOLDER / "style.css").read_text(), re.DOTALL)[0]
    page_s = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", light))
    roofs = {"measured": "measured-roof", "datasheet": "datasheet-roof", "time model": "model-roof"}
    assert {name: page_s[roofs.get(name, name)] for name in COLOURS} == COLOURS
    assert contrast(COLOURS["point"], COLOURS["page"]) >= 3


def contrast(a: str, b: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == 21 and contrast("#777777", "#777777") == 1


# Folding


def layered(layers: int, odd: int | None = None) -> Flow:
    """Layers of a kernel, three projections and a call behind them, all equal but the odd one."""
    boxes, edges = [Box("start", "input", "input")], []
    before = "start"
    for i in range(layers):
        reason = "too_large" if i == odd else "compute_bound"
        norm, parts, last = f"norm{i}", [f"{p}{i}" for p in "qkv"], f"out{i}"
        boxes += [
            Box(norm, "kernel", "norm"),
            *(Box(p, "call", "mm") for p in parts),
            Box(last, "call", "mix"),
        ]
        edges.append(Edge(before, norm, 64, cut=Cut("opaque", "", 128, 1.0)))
        edges += [Edge(norm, p, 64, cut=Cut(reason, "", 128, 1.0)) for p in parts]
        edges += [Edge(p, last, 64) for p in parts]
        before = last
    return Flow((*boxes, Box("end", "output", "result")), (*edges, Edge(before, "end", 64)))


@pytest.mark.parametrize("layers", [1, 2, 3, 24])
def test_equal_layers_are_drawn_once_and_every_edge_is_behind_one_drawn(layers: int) -> None:
    flow = layered(layers)
    folded = fold(flow)
    assert sum(e.times for e in folded.edges) == len(flow.edges)
    assert sum(e.times for e in folded.edges if e.cut) == sum(e.cut is not None for e in flow.edges)
    names = [box.name for box in folded.boxes]
    # Edges still go forward, so that the picture has layers.
    assert all(names.index(e.source) < names.index(e.target) for e in folded.edges)
    assert len(folded.boxes) <= 17
    drawn = sum(box.times * (box.kind == "kernel") for box in folded.boxes)
    assert drawn == layers


def test_edges_drawn_as_one_keep_each_reason() -> None:
    """A layer ends with its norm, whose edges into the next layers are cut for three reasons."""
    flow = layered(8)
    names = [box.name for box in flow.boxes]
    skips = [
        Edge(f"norm{i}", f"{target}{i + 1}", 64, cut=Cut(reason, "", 0, 0.0))
        for i in range(7)
        for target, reason in (("norm", "cycle"), ("q", "too_large"))
    ]
    folded = fold(replace(flow, edges=(*flow.edges, *skips)))
    assert len(folded.boxes) < len(names)
    assert sum(e.times for e in folded.edges) == len(flow.edges) + len(skips)
    (mixed,) = (e for e in folded.edges if e.others)
    assert mixed.cut is not None
    assert {mixed.cut.reason, *mixed.others} == {"compute_bound", "cycle", "too_large"}


def test_a_layer_that_is_cut_for_another_reason_is_not_folded_away() -> None:
    folded = fold(layered(24, odd=11))
    assert [e.cut.reason for e in folded.edges if e.cut].count("too_large") == 3
    assert sum(box.kind == "more" for box in folded.boxes) == 2


def test_a_deep_model_takes_no_more_room_than_a_short_one(deep: tuple[Plan, Report]) -> None:
    """Of all but the kernels' sources, whose number does not depend on the layers, but their length is not ours."""
    four = encoder(4)[1]
    assert len(fold(deep[1].flows[0]).boxes) == len(fold(four.flows[0]).boxes) < 30
    assert len(without_sources(deep[1])) < 1.25 * len(without_sources(four))
    assert len(report_page(deep[1])) < 600_000


def without_sources(report: Report) -> str:
    return report_page(replace(report, kernels=tuple(replace(k, source="") for k in report.kernels)))


# Layout


def random_graph(seed: int) -> tuple[dict[str, tuple[float, float]], list[tuple[str, str]]]:
    rng = random.Random(seed)
    many = rng.randint(1, 40)
    sizes = {f"n{i}": (rng.uniform(20, 300), rng.uniform(10, 200)) for i in range(many)}
    edges = {
        (f"n{a}", f"n{b}")
        for b in range(1, many)
        for a in rng.sample(range(b), min(b, rng.choice((0, 1, 1, 2, 3))))
    }
    return sizes, sorted(edges)


def over(placed: Layout, sizes: dict[str, tuple[float, float]]) -> list[str]:
    """Boxes over each other or outside the picture, and lines that cross a box."""

    def sides(name: str) -> tuple[float, float, float, float]:
        (x, y), (w, h) = placed.centres[name], sizes[name]
        return x - w / 2, y - h / 2, x + w / 2, y + h / 2

    slack = 1e-6
    found = []
    for a, b in combinations(sizes, 2):
        (l0, t0, r0, b0), (l1, t1, r1, b1) = sides(a), sides(b)
        if l0 < r1 - slack and l1 < r0 - slack and t0 < b1 - slack and t1 < b0 - slack:
            found.append(f"{a} over {b}")
    for name in sizes:
        left, top, right, bottom = sides(name)
        if left < -slack or top < -slack or right > placed.width + slack or bottom > placed.height + slack:
            found.append(f"{name} outside")
    for edge, points in placed.paths.items():
        for (x0, y0), (x1, y1) in pairwise(points):
            for i in range(1, 20):
                # The curve's control points are above each other: it goes through the heights in order, and sideways
                # by a smooth step. A straight line is the same with no way sideways.
                t = i / 20
                x = x0 + (x1 - x0) * (3 * t * t - 2 * t**3)
                y = y0 + (y1 - y0) * (1.5 * t * (1 - t) + t**3)
                for name in sizes:
                    left, top, right, bottom = sides(name)
                    if left + slack < x < right - slack and top + slack < y < bottom - slack:
                        found.append(f"{edge} through {name}")
    return found


@pytest.mark.parametrize("seed", range(25))
def test_no_box_lies_over_another_and_no_line_crosses_one(seed: int) -> None:
    sizes, edges = random_graph(seed)
    placed = lay_out(sizes, edges)
    assert set(placed.centres) == {*placed.centres, *sizes}
    assert set(placed.paths) == set(edges)
    for (source, target), points in placed.paths.items():
        assert points[0] == pytest.approx(
            (placed.centres[source][0], placed.centres[source][1] + sizes[source][1] / 2)
        )
        assert points[-1] == pytest.approx(
            (placed.centres[target][0], placed.centres[target][1] - sizes[target][1] / 2)
        )
    assert not over(placed, sizes)


def test_the_same_graph_is_placed_alike_in_every_process() -> None:
    """Sets of names are walked in another order by each process."""
    sizes, edges = random_graph(7)
    ask = f"""if True:
        from onepass.analysis.html.layout import lay_out
        print(sorted(lay_out({sizes!r}, {edges!r}).centres.items()), [*{{*{sorted(sizes)!r}}}][0])"""
    said = [
        subprocess.run(
            [sys.executable, "-c", ask],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.rpartition("]")
        for seed in ("1", "2")
    ]
    assert len(sizes) > 3 and len({places for places, _, _ in said}) == 1
    assert len({first for _, _, first in said}) == 2  # the two do walk sets differently


def test_boxes_placed_without_regard_to_their_size_would_be_seen() -> None:
    sizes, edges = random_graph(3)
    assert over(lay_out(dict.fromkeys(sizes, (1.0, 1.0)), edges), sizes)


def test_spread_moves_as_little_as_it_can() -> None:
    """Compared with many other places that keep the distances: none is nearer to those wanted."""
    rng = random.Random(1)
    for _ in range(30):
        many = rng.randint(1, 6)
        wanted = [rng.uniform(0, 10) for _ in range(many)]
        apart = [rng.uniform(0.5, 3) for _ in range(many - 1)]
        found = spread(wanted, apart)
        assert all(b - a >= step - 1e-9 for a, b, step in zip(found, found[1:], apart, strict=False))
        best = sum((f - w) ** 2 for f, w in zip(found, wanted, strict=True))
        for _ in range(200):
            other = [f + rng.gauss(0, 0.3) for f in found]
            for i, step in enumerate(apart):
                other[i + 1] = max(other[i + 1], other[i] + step)
            assert best <= sum((o - w) ** 2 for o, w in zip(other, wanted, strict=True)) + 1e-9


# Roofline


def test_roofs_and_points_stand_where_the_axes_say() -> None:
    roofs = [Roof("datasheet", 900, 15700, ""), Roof("measured", 790, 14000, "")]
    dots = [Dot("low", 0.87, 690.0, True), Dot("same", 0.87, 690.0, False), Dot("far", 40.0, 9000.0, True)]
    figure = roofline_figure(roofs, dots)
    assert figure is not None

    def value(ticks: list[tuple[float, float]], at: float) -> float:
        (p0, v0), (p1, v1) = ticks[0], ticks[-1]
        return float(v0 * (v1 / v0) ** ((at - p0) / (p1 - p0)))

    scale = {"kFLOP/s": 1e-6, "MFLOP/s": 1e-3, "GFLOP/s": 1.0, "TFLOP/s": 1e3, "PFLOP/s": 1e6}
    across = [(t.at, float(t.text)) for t in figure.x_ticks]
    up = [(t.at, float(t.text.split()[0]) * scale[t.text.split()[1]]) for t in figure.y_ticks]
    for dot, drawn in zip(sorted(dots, key=lambda d: -d.gflops), figure.dots, strict=True):
        assert value(across, drawn.x) == pytest.approx(dot.intensity)
        assert value(up, drawn.y) == pytest.approx(dot.gflops)
    for roof, drawn_roof in zip(roofs, figure.roofs, strict=True):
        corners = [tuple(map(float, p.split())) for p in re.split("[ML]", drawn_roof.path) if p]
        (x0, y0), (x1, y1), (x2, _) = corners
        assert value(up, y0) / value(across, x0) == pytest.approx(roof.bandwidth_gbps, rel=0.01)
        assert value(across, x1) == pytest.approx(roof.peak_gflops / roof.bandwidth_gbps, rel=0.01)
        assert value(up, y1) == pytest.approx(roof.peak_gflops, rel=0.01)
        assert x2 > max(d.x for d in figure.dots)  # a roof that ends before the last point bounds nothing


def test_a_roof_whose_arithmetic_is_not_known_is_a_slope_alone() -> None:
    figure = roofline_figure([Roof("measured", 790.0, None, "")], [Dot("a", 0.5, 100.0, True)])
    assert figure is not None
    assert figure.roofs[0].path.count("L") == 1 and "not known" in figure.roofs[0].says


@pytest.mark.parametrize("many", [1, 5, 19, 40])
def test_labels_of_points_in_one_place_stand_apart_and_inside(many: int) -> None:
    dots = [Dot(f"k{i}", 0.5, 100.0, False) for i in range(many - 1)] + [Dot("last", 0.5, 1e-3, False)]
    figure = roofline_figure([Roof("measured", 790, 14000, "")], dots)
    assert figure is not None
    heights = sorted(d.label_y for d in figure.dots if d.label)
    assert all(b - a >= LABEL - 1e-6 for a, b in pairwise(heights))
    assert heights[0] >= TOP and heights[-1] <= BOTTOM
    assert len(heights) + figure.unlabelled == many


def test_kernels_without_arithmetic_are_named_and_not_drawn(one: Report) -> None:
    copies = replace(one, kernels=(kernel("copies", flops=0), kernel("adds")))
    read = Read.page(report_page(copies))
    assert len(read.all("circle")) == 1
    assert any("Without arithmetic" in p.text and "copies" in p.text for p in read.all("p"))
    assert roofline_figure([], [Dot("a", 1.0, 1.0, True)]) is None
    assert math.isfinite(roofline_figure([Roof("measured", 1, 1, "")], []).x_ticks[0].at)  # type: ignore[union-attr]


def test_long_names_keep_both_ends() -> None:
    assert clipped("a" * 10, 10) == "a" * 10
    short = clipped("first_" + "x" * 50 + "_last", 20)
    assert len(short) == 20 and short.startswith("first_") and short.endswith("_last")


# Forecast beside measurement


def shifted(figure: RangeFigure) -> RangeFigure:
    """A figure whose points stand a tenth of the plot too far right."""
    by = (figure.right - figure.left) / 10
    return replace(figure, rows=tuple(replace(r, point=(r.point or 0) + by) for r in figure.rows))


def misplaced(figure: RangeFigure, rows: list[Ranged], logarithmic: bool) -> list[str]:
    """Bars and points that do not stand where the axis says."""
    first, last = figure.ticks[0], figure.ticks[-1]
    low, high = (float(t.text.replace(",", "")) for t in (first, last))

    def value(at: float) -> float:
        share = (at - first.at) / (last.at - first.at)
        return low * (high / low) ** share if logarithmic else low + (high - low) * share

    found = []
    for row, drawn in zip(rows, figure.rows, strict=True):
        for name, given, at in (
            ("low", row.low, drawn.bar and drawn.bar[0]),
            ("high", row.high, drawn.bar and drawn.bar[1]),
            ("point", row.point, drawn.point),
        ):
            if (given is None) != (at is None):
                found.append(f"{row.name} {name} is there or not")
            elif given is not None and at is not None and value(at) != pytest.approx(given, abs=1e-6):
                found.append(f"{row.name} {name}")
    return found


SAVED = [
    Ranged("a", 100.0, 180.0, 150.0, ""),
    Ranged("b", -30.0, -10.0, None, ""),
    Ranged("c", 5.0, 5.0, 700.0, ""),
]
RATIOS = [
    Ranged("v2", 1.0, 6.0, 4.2, ""),
    Ranged("f4", 0.2, 1.0, 0.13, ""),
    Ranged("v9", None, None, 1.0, ""),
]


@pytest.mark.parametrize(("rows", "logarithmic"), [(SAVED, False), (RATIOS, True)], ids=["saved", "ratios"])
def test_forecasts_and_measurements_stand_where_the_axis_says(rows: list[Ranged], logarithmic: bool) -> None:
    figure = range_figure(rows, logarithmic)
    assert figure is not None
    assert misplaced(figure, rows, logarithmic) == []
    assert misplaced(shifted(figure), rows, logarithmic)
    ends = [at for r in figure.rows for at in (*(r.bar or ()), r.point) if at is not None]
    assert figure.left <= min(ends) and max(ends) <= figure.right <= figure.width
    neutral = next(t for t in figure.ticks if t.text == ("1" if logarithmic else "0"))
    assert figure.one == neutral.at


def test_more_rows_than_a_picture_compares_are_counted() -> None:
    rows = [Ranged(f"k{i}", 1.0, 2.0, 1.5, "") for i in range(57)]
    figure = range_figure([*rows, Ranged("nothing", None, None, None, "")])
    assert figure is not None and (len(figure.rows), figure.left_out) == (40, 17)
    assert range_figure([Ranged("nothing", None, None, None, "")]) is None
    assert range_figure([Ranged("zero", 0.0, 0.0, 0.0, "")]) is not None


# Keeping it


def test_a_report_is_kept_as_a_page_and_as_nothing_else(one: Report, tmp_path: Path) -> None:
    one.save(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == report_page(one)
    for name in ("a.pdf", "a"):
        with pytest.raises(BadReportPath, match=r"\.html"):
            one.save(tmp_path / name)
    with pytest.raises(CannotWrite, match="no-such-folder"):
        one.save(tmp_path / "no-such-folder" / "a.html")


def test_a_notebook_without_the_packages_shows_the_text(one: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fast_sugiyama", None)
    shown = one._repr_html_()
    assert shown.startswith("<pre>") and "onepass[html]" in shown
    assert one.verdict.splitlines()[0] in unescape(shown)
