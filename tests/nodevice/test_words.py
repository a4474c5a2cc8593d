"""Reports in two languages: the same words and holes in both, a Chinese one for all that stages write, none left over."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness.pages import Read, encoder, kernel
from onepass.analysis.flow import Box, Cut, Edge, Flow, Op
from onepass.analysis.html.report_page import report_page
from onepass.analysis.report import DecisionRow, LeftRow, Report, Totals
from onepass.analysis.roofline import Roof
from onepass.analysis.words import CHINESE, ENGLISH, LANGUAGES, Words, strings, words_of
from onepass.errors import NoSuchLanguage
from onepass.ladder.report import languages
from onepass.plan.decision import REASONS
from onepass.plan.schedules.cpu import CpuSchedule
from onepass.plan.schedules.flat import FlatSchedule
from onepass.plan.schedules.row import RowSchedule
from onepass.plan.schedules.row_cluster import ClusterSchedule
from onepass.plan.schedules.row_grid import GridSchedule
from onepass.plan.schedules.row_stream import StreamSchedule
from onepass.plan.schedules.row_strided import StridedSchedule
from onepass.plan.schedules.tiled import TiledSchedule

ZH = Words(CHINESE)
HAN = re.compile(r"[\u4e00-\u9fff]")
# What Chinese engineers write as it is: units, names of ops, dtypes, products.
TERMS = re.compile(r"^[\W\d_]*(?:eager|GB/s|µs|ms|AI|onepass|GELU|LayerNorm|Add|[\W\d_])*$", re.IGNORECASE)


def holes(text: str) -> list[tuple[str, str]]:
    return sorted(
        (name, form or "") for _, name, form, _ in string.Formatter().parse(text) if name is not None
    )


def differences(english: Mapping[str, str], chinese: Mapping[str, str]) -> list[str]:
    """Where two tables of words do not match."""
    found = [f"only in one: {name}" for name in english.keys() ^ chinese.keys()]
    found += [
        f"holes of {name}"
        for name in english.keys() & chinese.keys()
        if holes(english[name]) != holes(chinese[name])
    ]
    return [
        *found,
        *(f"not Chinese: {n}" for n, text in chinese.items() if not HAN.search(text) and not neutral(text)),
    ]


def neutral(text: str) -> bool:
    return bool(TERMS.match(re.sub(r"\{[^}]*\}", "", text)))


def tables() -> dict[str, tuple[Mapping[str, str], Mapping[str, str]]]:
    phrases = strings()["phrases"]
    ladder = languages()
    return {
        "pages": (strings()[ENGLISH], strings()[CHINESE]),
        "phrases": ({n: p["en"] for n, p in phrases.items()}, {n: p["zh"] for n, p in phrases.items()}),
        "ladder": (ladder[ENGLISH], ladder[CHINESE]),
    }


@pytest.mark.parametrize("which", ["pages", "phrases", "ladder"])
def test_both_languages_have_the_same_words_with_the_same_holes(which: str) -> None:
    assert differences(*tables()[which]) == []


@pytest.mark.parametrize(
    ("chinese", "fault"),
    [
        ({"a": "{n} 个"}, "only in one: b"),
        ({"a": "{m} 个", "b": "是"}, "holes of a"),
        ({"a": "{n:.2f} 个", "b": "是"}, "holes of a"),
        ({"a": "{n} 个", "b": "yes"}, "not Chinese: b"),
    ],
)
def test_words_that_do_not_match_would_be_seen(chinese: dict[str, str], fault: str) -> None:
    assert fault in differences({"a": "{n} things", "b": "yes"}, chinese)


def test_every_reason_of_the_planner_has_its_chinese() -> None:
    assert strings()["reasons"].keys() == REASONS.keys()
    for code, english in REASONS.items():
        assert HAN.search(ZH.reason(code, english))
        assert Words().reason(code, english) == english
    assert ZH.reason("a new one", "not known yet") == "not known yet"


SCHEDULES = [
    CpuSchedule(4, 8 << 20),
    FlatSchedule(256, 2, 4),
    *(RowSchedule(32, 4, 2, 4, 256, (4,), True, shared_bytes=shared) for shared in (0, 4096)),
    *(ClusterSchedule(4, 512, 8, 4, 65536, (4,), held, shared, 2) for held, shared in ((8, 0), (6, 16384))),
    GridSchedule(13, 20, 512, 8, 4, 212992, (4,), 8, 0, 2),
    GridSchedule(13, 20, 512, 20, 4, 524288, (4,), 8, 98304, 2),
    StreamSchedule(512, 4),
    *(StridedSchedule(8, 32, 1, 4, 4, held, parts=parts) for held in (False, True) for parts in (1, 4)),
    TiledSchedule(0, 64, 32, 4, 8),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.family)
def test_every_schedule_is_told_in_chinese_with_its_figures(schedule: Any) -> None:
    english = schedule.explain()
    told = ZH.phrase(english)
    assert HAN.search(told)
    # L2, fp32 and MiB are the only letters that stay.
    assert set(re.findall(r"[A-Za-z]+\d*", told)) <= {"fp32", "MiB"}
    assert sorted(re.findall(r"\d+", told)) == sorted(re.findall(r"\d+", english))
    assert Words().phrase(english) == english


def test_a_sentence_of_nobody_stays_as_it_was() -> None:
    assert ZH.phrase("something else entirely") == "something else entirely"
    assert ZH.phrase("") == ""


def test_a_language_that_is_not_there_names_those_that_are() -> None:
    assert [words_of(name).language for name in LANGUAGES] == list(LANGUAGES)
    with pytest.raises(NoSuchLanguage, match=r"zh_CN.*zh"):
        words_of("zh_CN")


# Pages


def labels() -> set[str]:
    """English labels that a Chinese page may not show: whole texts of the table that differ in Chinese."""
    english, chinese = strings()[ENGLISH], strings()[CHINESE]
    found = {text for name, text in english.items() if "{" not in text and text != chinese[name]}
    return {text for text in found if len(text) > 3} | {"op", "why"}


def leftovers(page: str) -> list[str]:
    """Texts of a page that stand in the English table, and sentences that hold one of its longer phrases."""
    read = Read.page(page)
    banned = labels()
    shown = [
        e.text.strip()
        for e in read.elements
        if e.tag
        in (
            "h1",
            "h2",
            "h3",
            "h4",
            "p",
            "th",
            "td",
            "dt",
            "dd",
            "summary",
            "text",
            "title",
            "li",
            "span",
            "a",
        )
    ]
    shown += [v for e in read.elements for n, v in e.attributes.items() if n in ("aria-label", "title")]
    sentences = {b for b in banned if b.count(" ") >= 2}
    return [t for t in shown if t in banned or any(s in t for s in sentences)]


def everything() -> Report:
    """A report with each part that a page can have: GPU, CPU, pictures of all kinds of boxes, all reasons."""
    boxes = (
        Box("in", "input", "input", "fp32 8 × 8"),
        Box(
            "a",
            "kernel",
            "row_gelu_fp32",
            ops=(Op("g", "gelu"), Op("h", "add bias", True)),
            inside=(Edge("g", "h", 4096),),
            kernel=0,
        ),
        Box("b", "call", "mm", "bound by arithmetic"),
        Box("out", "output", "result", "fp32 8 × 8"),
    )
    edges = (
        Edge("in", "a", 1 << 20, tensors=2),
        Edge(
            "a",
            "b",
            1 << 20,
            cut=Cut("compute_bound", "spaces of different size", 0, 1.5),
            times=3,
            others=("cycle",),
        ),
        Edge("b", "out", 64),
    )
    launch = FlatSchedule(256, 2, 4).explain()
    return Report(
        device="NVIDIA H200",
        kernels=(
            kernel("row_gelu_fp32", launch=launch, read_code=lambda: "nvdisasm is missing: pip install x"),
            kernel("copies", launch=launch, flops=0, measured_us=None, bound="special functions"),
        ),
        decisions=tuple(
            DecisionRow("gelu", "add", verdict, code, "spaces of different size", 1024, 1.5)
            for verdict in ("fused", "kept")
            for code in REASONS
        ),
        left=(
            LeftRow("mm.default", "compute", "", 64),
            LeftRow("sort.default", "memory", "data-dependent value", 64),
        ),
        totals=Totals(100, 50, 2, 1, 1, 10),
        notes=(
            "a graph stays with PyTorch: data-dependent value",
            "attention set aside, mask proven causal: causal",
        ),
        reasons=REASONS,
        flows=(Flow(boxes, edges), Flow(boxes, edges)),
        roofs=(
            Roof("datasheet", 900, 15700, ""),
            Roof("measured", 790, 14000, ""),
            Roof("time model", 790, 14000, ""),
        ),
    )


def test_a_chinese_page_shows_no_english_label() -> None:
    for report in (everything(), encoder(12)[1]):
        page = report_page(report, ZH)
        assert leftovers(page) == []
        read = Read.page(page)
        assert read.all("html")[0].attributes["lang"] == "zh-CN"
        assert all(HAN.search(e.text) for e in read.all("h1") + read.all("h2"))
        assert len(read.elements) == len(Read.page(report_page(report)).elements)  # nothing is missing either


def test_an_english_label_on_it_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(leftovers(report_page(everything()))) > 50
    chinese = {
        **strings()[CHINESE],
        "in_eager": "in eager",
        "flow_registers": "stays in registers: not moved",
    }
    changed = {**strings(), CHINESE: chinese}
    before = labels()
    monkeypatch.setattr("onepass.analysis.words.strings", lambda: changed)
    monkeypatch.setattr(f"{__name__}.labels", lambda: before)
    found = leftovers(report_page(everything(), ZH))
    assert {"in eager", "stays in registers: not moved"} <= set(found)


def test_the_text_for_a_terminal_is_chinese_and_its_columns_stand_in_line() -> None:
    told = replace(everything(), device="cpu").told(ZH)
    for label in labels():
        if label.count(" ") >= 2:
            assert label not in told, label
    rows = [line for line in encoder(3)[1].told(ZH).splitlines() if " µs" in line and "×" in line]
    ends = {sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in line.rstrip()) for line in rows[:3]}
    assert len(rows) >= 3 and len(ends) == 1
