"""The pages of all verbs in headless Chromium, in both languages: silent, whole, nothing over anything."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from harness import verb_pages
from harness.pages import EVIL, encoder, hostile, kernel, planned
from onepass.analysis.html.report_page import report_page
from onepass.analysis.report import Report
from onepass.analysis.words import Words

SCHEMES, WIDTHS = ("light", "dark"), {"wide": 1440, "phone": 390}
SECONDS = 3.0  # until a 24-layer model's page is there

# Texts of one picture over each other, texts outside their picture or their box, boxes over boxes, labels of lines over
# boxes, and parts of the page wider than it. A pixel is allowed: places are rounded to a tenth, glyphs to whole pixels.
TROUBLES = """() => {
  const found = [], slack = 1;
  const box = (e) => e.getBoundingClientRect();
  const over = (a, b) => a.left < b.right - slack && b.left < a.right - slack
    && a.top < b.bottom - slack && b.top < a.bottom - slack;
  const inside = (a, b) => a.left >= b.left - slack && a.right <= b.right + slack
    && a.top >= b.top - slack && a.bottom <= b.bottom + slack;
  const named = (e) => e.textContent.trim().slice(0, 40) || e.outerHTML.slice(0, 60);
  const pairs = (list, what) => list.forEach((a, i) => list.slice(i + 1).forEach((b) => {
    if (over(box(a), box(b))) found.push(`${what}: ${named(a)} / ${named(b)}`);
  }));
  for (const picture of document.querySelectorAll("svg.picture")) {
    const texts = [...picture.querySelectorAll("text")];
    pairs(texts, "text over text");
    for (const text of texts) if (!inside(box(text), box(picture))) found.push(`cut off: ${named(text)}`);
    for (const mark of picture.querySelectorAll("circle, .forecast")) {
      if (!inside(box(mark), box(picture))) found.push(`cut off: ${named(mark)}`);
      for (const text of texts) if (over(box(mark), box(text))) found.push(`mark over text: ${named(text)}`);
    }
    const rects = [...picture.querySelectorAll(".box > rect")];
    const plates = [...picture.querySelectorAll(":scope > .edge > rect")];
    pairs([...rects, ...plates], "box over box");
    pairs([...picture.querySelectorAll(".chip > rect, .box > .edge > rect")], "op over op");
    for (const part of picture.querySelectorAll(".box, .chip, .edge")) {
      const frame = part.querySelector(":scope > rect");
      for (const text of part.querySelectorAll(":scope > text, :scope > .chip > text"))
        if (!inside(box(text), box(frame))) found.push(`out of its box: ${named(text)}`);
    }
  }
  const root = document.scrollingElement;
  if (root.scrollWidth > root.clientWidth) found.push(`page ${root.scrollWidth} wide`);
  for (const e of document.querySelectorAll("body *")) {
    if (e.closest("svg") || e.closest(".scroll") && !e.matches(".scroll")) continue;
    if (box(e).right > root.clientWidth + slack || box(e).left < -slack) found.push(`sticks out: ${named(e)}`);
    if (getComputedStyle(e).overflowX === "hidden" && e.scrollWidth > e.clientWidth) found.push(`clipped: ${named(e)}`);
  }
  const blocks = [...document.querySelectorAll("main > section > *, main article > *, header > *")];
  pairs(blocks.filter((e) => box(e).height > 0 && !blocks.some((o) => o !== e && e.contains(o))), "part over part");
  return found;
}"""


def block(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(x, approximate="tanh") + residual, x.shape[-1:], weight, bias)


def example() -> Report:
    """One kernel, and as a GPU's report has it one more."""
    report = planned(block, (torch.randn(64, 256), torch.randn(64, 256), torch.ones(256), torch.zeros(256)))[
        1
    ]
    return Report(**{**report.__dict__, "kernels": (*report.kernels, kernel("row_block_gelu_add_fp32"))})


MADE: dict[str, Callable[[], str]] = {
    "example": lambda: report_page(example()),
    "24 layers": lambda: report_page(encoder(24)[1]),
    "24 layers zh": lambda: report_page(encoder(24)[1], Words("zh")),
    "hostile": lambda: report_page(hostile()),
    "hostile zh": lambda: report_page(hostile(), Words("zh")),
} | {
    f"{name} {language}": partial(make, Words(language))
    for language in ("en", "zh")
    for name, make in verb_pages.MADE.items()
}
# Pictures on each: roofline and data flow, and what a verb has of its own.
PICTURES = {"profile": 4, "ladder": 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> dict[str, Path]:
    """Depends on the browser so that nothing is made where there is none."""
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for i, (name, make) in enumerate(MADE.items()):
        found[name] = folder / f"{i}.html"
        found[name].write_text(make(), encoding="utf-8")
    return found


@dataclass
class Opened:
    page: Any
    said: list[str] = field(default_factory=list)  # console messages and errors
    asked: list[str] = field(default_factory=list)  # everything that was fetched


Open = Callable[..., Opened]


@pytest.fixture
def opened(chromium: Any, files: dict[str, Path]) -> Iterator[Open]:
    contexts = []

    def run(file: str | Path, scheme: str = "light", width: str = "wide") -> Opened:
        context = chromium.new_context(color_scheme=scheme, viewport={"width": WIDTHS[width], "height": 800})
        contexts.append(context)
        found = Opened(context.new_page())
        found.page.on("console", lambda message: found.said.append(message.text))
        found.page.on("pageerror", lambda error: found.said.append(str(error)))
        found.page.on("request", lambda request: found.asked.append(request.url))
        found.page.goto((files[file] if isinstance(file, str) else file).as_uri())
        return found

    yield run
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", MADE)
def test_the_page_is_silent_and_whole(opened: Open, name: str, width: str) -> None:
    found = opened(name, "light", width)
    page = found.page
    assert page.evaluate(TROUBLES) == []
    page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    assert page.evaluate(TROUBLES) == []
    pictures = page.query_selector_all("svg.picture")
    assert len(pictures) == PICTURES.get(name.split()[0], 2)
    for picture in pictures:
        picture.scroll_into_view_if_needed()
        assert picture.is_visible() and picture.bounding_box()["height"] > 100
        assert picture.query_selector("text") and picture.query_selector("path, line, rect")
    assert found.said == []
    assert len(found.asked) == 1  # itself
    verb = name.split()[0]
    assert page.title() == f"onepass {verb if verb in ('profile', 'ladder', 'demo') else 'explain'}"
    assert page.evaluate("document.documentElement.lang") == ("zh-CN" if name.endswith("zh") else "en")
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert luminance(page) > 0.8 if scheme == "light" else luminance(page) < 0.1
        assert ink(page) < 0.3 if scheme == "light" else ink(page) > 0.5
    assert page.evaluate(TROUBLES) == []
    assert found.said == []


def ink(page: Any) -> float:
    """How bright the text nearest to its background is: headings, cells, facts, titles in pictures."""
    colours = page.evaluate(
        "[...document.querySelectorAll('h1, td, dd, svg text.title')].map((e) => e.matches('text') ? "
        "getComputedStyle(e).fill : getComputedStyle(e).color)"
    )
    values = {sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 3 / 255 for colour in colours}
    return max(values) if luminance(page) > 0.5 else min(values)


def luminance(page: Any) -> float:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(",")) / 3 / 255


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_picture_is_painted(opened: Open, scheme: str) -> None:
    """Not one colour all over: a picture may be there, and of the right size, and still show nothing."""
    # A picture taller than the window is photographed with what lies below it.
    low = "svg.picture:not(.flow)"
    pictures = opened("example", scheme).page.query_selector_all("svg.picture")
    pictures += opened("profile en", scheme).page.query_selector_all(low)
    pictures += opened("ladder en", scheme).page.query_selector_all(low)
    assert len(pictures) == 7
    for picture in pictures:
        shot = picture.screenshot()
        picture.evaluate("(picture) => picture.replaceChildren()")
        assert len(shot) > 3 * len(picture.screenshot())  # PNG: what is of one colour takes next to nothing


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["24 layers", "24 layers zh", "profile en"])
def test_every_cut_edge_answers_a_click_with_its_row(opened: Open, name: str, width: str) -> None:
    found = opened(name, "dark", width)
    page = found.page
    edges = page.query_selector_all("[data-cut]")
    assert len(edges) >= 5
    for edge in edges:
        edge.query_selector("rect").click()
        number = edge.get_attribute("data-cut")
        cells = page.eval_on_selector_all(f"#cut-{number} td", "cells => cells.map((e) => e.textContent)")
        shown = page.eval_on_selector_all("#why dd", "cells => cells.map((e) => e.textContent)")
        assert shown == cells and len(cells) == 5 and all(cells)
        assert page.eval_on_selector_all(".edge.chosen", "list => list.map((e) => e.dataset.cut)") == [number]
    why = page.query_selector("#why").bounding_box()
    assert why["y"] >= 0 and why["y"] + why["height"] < 801  # where the reader looks, to the pixel
    assert page.evaluate(TROUBLES) == []
    assert found.said == []


@pytest.mark.parametrize("key", ["Enter", " "])
def test_a_cut_edge_answers_the_keyboard(opened: Open, key: str) -> None:
    page = opened("24 layers").page
    edge = page.query_selector_all("[data-cut]")[2]
    edge.focus()
    page.keyboard.press(key)
    assert page.query_selector_all("#why dd")
    assert "chosen" in edge.get_attribute("class")


def test_a_kernel_in_the_picture_leads_to_its_source(opened: Open) -> None:
    page = opened("24 layers").page
    link = page.query_selector("svg.flow a")
    link.query_selector("rect").click()
    source = page.query_selector(f"{link.get_attribute('href')} pre")
    assert source.is_visible()


def test_a_rung_in_a_picture_leads_to_its_card(opened: Open) -> None:
    page = opened("ladder en").page
    link = page.query_selector("svg.ranges a")
    link.query_selector("text").click()
    card = page.query_selector(link.get_attribute("href"))
    assert card.query_selector("h3").text_content() == "v2"
    assert card.bounding_box()["y"] < 100
    assert card.query_selector("pre").is_visible()


def test_hostile_text_stays_text(opened: Open) -> None:
    page = opened("hostile").page
    assert page.title() == "onepass explain"
    page.query_selector("[data-cut] rect").click()
    assert EVIL in page.query_selector("#why").text_content()
    assert page.title() == "onepass explain"
    assert len(page.query_selector_all("script")) == 1


def test_the_page_of_24_layers_opens_in_time(opened: Open) -> None:
    opened("example")  # the browser's own first page is not the page's
    start = time.perf_counter()
    page = opened("24 layers").page
    page.query_selector("[data-cut] rect").click()
    assert time.perf_counter() - start < SECONDS
    assert page.query_selector_all("#why dd")


def test_a_frame_in_a_notebook_works(opened: Open, tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!DOCTYPE html><meta charset=utf-8>{hostile()._repr_html_()}", encoding="utf-8")
    found = opened(notebook)
    frame = found.page.frames[1]
    frame.query_selector("[data-cut] rect").click()
    assert EVIL in frame.query_selector("#why").text_content()
    assert found.said == []


# What is wrong would be seen


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ("document.querySelector('.chip text').textContent += ' and much more'", "out of its box"),
        ("document.querySelector('.box.kernel').setAttribute('transform', 'translate(0 -60)')", "over"),
        (
            "document.querySelector('svg.flow').style.fontSize = '40px'; "
            "document.querySelector('svg.flow .title').style.fontSize = '40px'",
            "out of its box",
        ),
        ("document.querySelector('.box').setAttribute('transform', 'translate(-900 0)')", "cut off"),
        (
            "document.querySelector('svg circle').setAttribute('cx', "
            "document.querySelector('svg text').getAttribute('x')); "
            "document.querySelector('svg circle').setAttribute('cy', "
            "document.querySelector('svg text').getAttribute('y'))",
            "mark over text",
        ),
        ("document.querySelector('h1').style.width = '2000px'", "sticks out"),
        ("document.querySelector('h2').style.marginTop = '-90px'", "part over part"),
    ],
)
def test_a_fault_of_the_picture_would_be_seen(opened: Open, change: str, trouble: str) -> None:
    page = opened("example").page
    page.evaluate(change)
    assert any(trouble in found for found in page.evaluate(TROUBLES))


def test_an_error_of_the_script_and_something_fetched_would_be_seen(
    opened: Open, files: dict[str, Path], tmp_path: Path
) -> None:
    text = files["example"].read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(
        text.replace("<main>", "<main><script>missing()</script><img src='x.png'>"), encoding="utf-8"
    )
    assert opened(broken).said  # the policy refuses both, and says so
    unguarded = text.replace("http-equiv", "data-was")
    broken.write_text(
        unguarded.replace("<main>", "<main><script>missing()</script><img src='x.png'>"), encoding="utf-8"
    )
    found = opened(broken)
    assert any("missing" in line for line in found.said)
    assert len(found.asked) == 2
