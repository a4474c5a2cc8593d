"""Pages of ladder and profile: what they say is what the study and the profile say, in both languages."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from harness import verb_pages
from harness.pages import Read
from onepass.analysis.words import Words
from onepass.cli.app import _application
from onepass.ladder.page import ladder_page
from onepass.ladder.report import Report, languages
from onepass.ladder.rungs import HERE, known, load
from onepass.ladder.study import Study

LANGUAGES = ("en", "zh")


@pytest.fixture(scope="module", params=[False, True], ids=["static", "measured"])
def found(request: pytest.FixtureRequest) -> Study:
    return verb_pages.ladder(request.param)


def cells(read: Read, inside: str) -> list[list[str]]:
    """The rows of the table in the element of an id, the head first."""
    rows = [e for e in read.all("tr") if e.inside("id", inside)]
    return [[e.text for e in read.elements if e.tag in ("th", "td") and row in e.parents] for row in rows]


def missing(page: str, study: Study, language: str) -> list[str]:
    """What the brief of a rung asks for that its card does not say."""
    read, report = Read.page(page), Report(study, language)
    cards = {e.attributes["id"]: e.text for e in read.all("article")}
    found = []
    for e in study.entries:
        card = cards.get("rung-" + e.rung.name.replace("_", "-"), "")
        stated, relative = e.rung.prediction(e.cols), study.relative(e)
        expected = [e.rung.says("changed", language), e.rung.says("because", language), report.outcome(e)]
        expected += [
            e.rung.says("correction", language),
            *e.rung.claims,
            *map(report.claim, e.rung.claims),
            *e.rung.fails,
        ]
        expected += [f"{e.us:.1f} µs"] if e.us else []
        expected += [f"{stated:.2f} × {e.rung.below}"] if stated and e.rung.below else []
        expected += [f"{relative:.2f} × {e.rung.below}"] if relative else []
        expected += [f"{e.measured.of_roof:.1%}"] if e.measured and not e.measured.void else []
        expected += [study.ladder.text(e.rung).strip()] if e.rung.file else []
        found += [f"{e.rung.name}: {text}" for text in expected if text and text not in card]
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_rung_says_what_changed_what_was_stated_and_what_was_found(found: Study, language: str) -> None:
    page = ladder_page(Report(found, language), Words(language))
    read = Read.page(page)
    assert not read.faults
    assert missing(page, found, language) == []
    assert read.all("h1")[0].text == Report(found, language).verdict()
    for cols in found.cols:
        report = Report(found, language)
        rows = [report.row(e) for e in found.at(cols)]
        assert cells(read, f"cols-{cols}") == [report.header(), *rows]
    assert len(read.all("circle")) > len(found.entries)  # roofline and steps


def test_a_card_that_says_too_little_would_be_seen(found: Study) -> None:
    page = ladder_page(Report(found, "en"), Words("en"))
    assert missing(page.replace("256 threads a row, partial sums", ""), found, "en")
    assert missing(re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL), found, "en")
    other = replace(found, entries=tuple(replace(e, predicted=None, measured=None) for e in found.entries))
    assert missing(ladder_page(Report(other, "en"), Words("en")), found, "en")


def test_the_widths_of_v3_and_v4_are_read_from_the_machine_code() -> None:
    """SPEC A6: the same static count, other widths."""
    read = Read.page(ladder_page(Report(verb_pages.ladder(False), "en"), Words("en")))
    loads = {}
    for name in ("rung-v3", "rung-v4"):
        inside = [e for e in read.elements if e.inside("id", name)]
        loads[name] = inside[next(i for i, e in enumerate(inside) if e.text == "global loads") + 1].text
    assert "32 bit" in loads["rung-v3"] and "128 bit" not in loads["rung-v3"]
    assert loads["rung-v4"].split(",")[0].endswith("128 bit")


def test_every_claim_of_a_rung_has_its_sentence_in_both_languages() -> None:
    for name in known():
        for rung in load(HERE / name).rungs:
            for claim in rung.claims:
                assert all(languages()[language].get(f"claim_{claim}") for language in LANGUAGES), claim


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_profile_shows_each_group_as_the_profile_has_it(language: str) -> None:
    profile, words = verb_pages.profiled(), Words(language)
    read = Read.page(verb_pages.MADE["profile"](words))
    assert not read.faults
    rows = {row[0]: row for row in cells(read, "groups")[1:]}
    assert rows.keys() == {g.kernel for g in profile.groups}
    for g in profile.groups:
        least, most = g.saving_us
        assert rows[g.kernel][4:6] == [
            f"{least:,.0f} – {most:,.0f}",
            "–" if g.saved_us is None else f"{g.saved_us:,.0f}",
        ]
        assert rows[g.kernel][6] == words.phrase(g.verdict)
    picture = next(e for e in read.all("svg", **{"class": "ranges"}) if e.inside("id", "groups"))
    inside = [e for e in read.elements if picture in e.parents]
    assert sum(e.tag == "rect" for e in inside) == len(profile.groups)
    assert sum(e.tag == "circle" for e in inside) == sum(g.saved_us is not None for g in profile.groups)
    shares = [row for row in read.all("text") if row.inside("id", "shares") and row.text.endswith("%")]
    assert [s.text for s in shares[:1]] or shares
    assert {f"{share:.1%}" for share in profile.shares.values()} <= {s.text for s in shares}


MODEL = """
import torch
def build():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)).eval()
def example_inputs():
    return torch.randn(32, 64)
"""


def test_profile_and_ladder_write_their_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    torch._dynamo.reset()
    for words in (
        ["profile", f"{tmp_path / 'model.py'}:build", "--rounds", "2", "--lang", "zh"],
        ["ladder", "softmax", "--device", "H200", "--cols", "256", "--rows", "1024", "--lang", "zh"],
    ):
        file = tmp_path / f"{words[0]}.html"
        ran = CliRunner().invoke(_application(), [*words, "--html", str(file)])
        assert ran.exit_code == 0, ran.output
        read = Read.page(file.read_text(encoding="utf-8"))
        assert not read.faults and read.all("title")[0].text == f"onepass {words[0]}"
        assert read.all("h1")[0].text in ran.output  # the verdict stands first on both
        assert str(file) in ran.output.replace("\n", "")
        assert not [e for e in read.elements if "src" in e.attributes]
