"""Both READMEs' figures are those of the committed rows."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

import record
import report

ROW = record.Row(
    case="softmax",
    direction="forward",
    dtype="bf16",
    rows=1 << 18,
    cols=1024,
    contender="onepass",
    median_us=100.0,
    iqr_us=1.0,
    ideal_bytes=1 << 30,
    gbps=4000.0,
    roof_gbps=4200.0,
    attained=0.952,
    protocol="cold",
    device="GPU X",
    versions={"torch": "2"},
    commit="abc",
    date="2026-01-02T00:00:00Z",
)
STEP = {
    "case": "bert_base",
    "dtype": "bf16",
    "rows": 32,
    "cols": 512,
    "device": "GPU X",
    "versions": {"torch": "2"},
    "commit": "abc",
    "date": "2026-01-02T00:00:00Z",
}


LANGUAGES = list(report.READMES)


def test_the_readmes_hold_what_the_rows_say() -> None:
    assert report.main(["--check"]) == 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_changed_row_or_a_figure_by_hand_shows(
    language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "changed.md"
    text = report.READMES[language].read_text()
    changed.write_text(text.replace(report.END, f"1.99 × everything\n{report.END}"))
    copies = {name: tmp_path / path.name for name, path in report.READMES.items()}
    for name, path in report.READMES.items():
        copies[name].write_text(path.read_text())
    monkeypatch.setattr(report, "READMES", copies | {language: changed})
    assert report.main(["--check"]) == 1
    assert "changed.md" in capsys.readouterr().out
    assert report.main([]) == 0
    assert report.main(["--check"]) == 0
    assert changed.read_text() == text


def test_both_languages_have_the_same_words_and_figures() -> None:
    english, chinese = report.WORDS["en"], report.WORDS["zh"]
    assert english.keys() == chinese.keys()
    for name, text in english.items():
        assert set(re.findall(r"{\w+}", text)) == set(re.findall(r"{\w+}", chinese[name])), name
    tables = [_cells(report.section(report.RESULTS, report.WORDS[language])) for language in LANGUAGES]
    assert tables[0] == tables[1]
    assert len([cell for row in tables[0] for cell in row if cell]) > 100


def _cells(text: str) -> list[list[str]]:
    """What stands in the tables' columns after the first, where it has a number and no words of a heading."""
    rows = [line.split(" | ")[1:] for line in text.splitlines() if line.startswith("| ")]
    return [[cell for cell in row if re.fullmatch(r"[\d.()/× |–]+", cell)] for row in rows]


def test_forward_rows_become_shares_and_ratios(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia-x"
    folder.mkdir()
    peer = {**asdict(ROW), "contender": "eager", "median_us": 150.0}
    record.write_lines(folder / "h200-forward.jsonl", [asdict(ROW), peer])
    text = report.section(tmp_path, report.WORDS["en"])
    assert "**GPU X**" in text and "| softmax | bf16 | 0.952 | 1.50 (1.50) |" in text
    assert "torch 2; commit abc; 2026-01-02" in text


def test_models_become_steps_ratios_and_where_time_goes(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia-x"
    folder.mkdir()
    found = [
        {
            **STEP,
            "contender": name,
            "median_us": us,
            "alone_us": us + 500,
            "first_s": first,
            "where_us": {"matmul": us / 2},
        }
        for name, us, first in (("eager", 3000.0, None), ("aot_eager", 3300.0, 2.0), ("onepass", 2000.0, 2.5))
    ]
    (folder / "models.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    text = report.section(tmp_path, report.WORDS["en"])
    assert "| BERT-base | 32 × 512 | 3.00 | 3.30 | 2.00 | 1.50 | 1.65 | 3.50 / 2.50 | 2.0 / 2.5 |" in text
    assert "| BERT-base | onepass | 1.00 |" in text


def test_a_chinese_section_has_chinese_captions_and_headings(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia-x"
    folder.mkdir()
    record.write_lines(folder / "h200-forward.jsonl", [asdict(ROW) | {"device": "CPU Y, 2 threads"}])
    text = report.section(tmp_path, report.WORDS["zh"])
    assert "**CPU Y，2 线程**，前向，每个张量 512 MiB" in text and "| softmax | bf16 | 0.952 |" in text
    assert "torch 2；提交 abc；2026-01-02。" in text
