"""The roofline: figures by hand, the picture's axes and marks, and what the verb says without a GPU."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from onepass.analysis.html.report_page import report_page
from onepass.analysis.html.roofline_figure import MOST_LABELS
from onepass.analysis.html.text import text_width
from onepass.analysis.roofline import Point, Roof, Roofline, datasheet_roof
from onepass.api import explain
from onepass.cli import main
from onepass.device import find
from onepass.errors import MissingPackage
from onepass.insight.roofline_picture import figure_of, png, svg
from onepass.runtime.calibration import Calibration, MemoryRoof, cpu_name, keep

# LayerNorm in fp32 of 65536 rows of 1024: seven operations and eight bytes an element.
ELEMENTS = 65536 * 1024
NORM = Point("layer_norm", 1, 7 * ELEMENTS, 4 * ELEMENTS, 4 * ELEMENTS, 8 * ELEMENTS)
SHEET = datasheet_roof(find("V100"))
assert SHEET is not None
MEASURED = Roof("measured", 840.0, 14000.0, "here", ((0.5, 800.0), (0.75, 840.0)))


def test_layer_norm_is_far_left_of_the_ridge() -> None:
    for name, ridge in (("V100", 17.4), ("3080 Ti", 37.4)):
        roof = datasheet_roof(find(name))
        assert roof and roof.ridge == pytest.approx(ridge, abs=0.05)
        assert NORM.ai == 0.875 < roof.ridge / 15
        assert roof.verdict(NORM.ai) == "memory-bound"


def test_bound_times_by_hand() -> None:
    assert NORM.bound_us(SHEET) == pytest.approx(8 * ELEMENTS / 900e9 * 1e6)
    busy = replace(NORM, flops=1000 * ELEMENTS)
    assert busy.bound_us(SHEET) == pytest.approx(1000 * ELEMENTS / 15.7e12 * 1e6)
    assert SHEET.verdict(busy.ai) == "compute-bound"
    assert SHEET.verdict(17.0) == SHEET.verdict(18.0) == "near the ridge"


def test_a_kernel_is_held_to_the_roof_of_its_own_mix() -> None:
    assert NORM.bound_us(MEASURED) == pytest.approx(8 * ELEMENTS / 800e9 * 1e6)
    three_to_one = Point("sum of three", 1, 2, 3 * ELEMENTS, ELEMENTS, 0)
    assert three_to_one.bound_us(MEASURED) == pytest.approx(4 * ELEMENTS / 840e9 * 1e6)


def test_a_roof_without_arithmetic_still_bounds() -> None:
    roof = Roof("datasheet", 4000.0, None, "a sheet without fp32")
    assert roof.ridge is None and roof.verdict(1e9) == "memory-bound"
    assert NORM.bound_us(roof) == pytest.approx(8 * ELEMENTS / 4e12 * 1e6)
    ET.fromstring(svg(Roofline("H800", (roof,), (NORM,))))


def test_above_the_roof_is_a_contradiction_and_no_win() -> None:
    us = NORM.bound_us(MEASURED)
    assert not Roofline("V100", (SHEET, MEASURED), (replace(NORM, measured_us=us / 1.01),)).contradictions
    found = Roofline("V100", (SHEET, MEASURED), (replace(NORM, measured_us=us / 1.03),))
    assert found.contradictions and "Not to be believed as measured: layer_norm" in found.text
    assert not Roofline("V100", (SHEET,), found.points).contradictions


@pytest.mark.parametrize("flops", [1, 7, 10_000])
@pytest.mark.parametrize("roofs", [(SHEET,), (SHEET, MEASURED)])
def test_the_plot_goes_past_all_points_and_ridges(flops: int, roofs: tuple[Roof, ...]) -> None:
    points = (replace(NORM, flops=flops * ELEMENTS), replace(NORM, measured_us=1e6))
    figure = figure_of(Roofline("V100", roofs, points))
    assert len(figure.dots) == len(points)
    for x, y in [*((d.x, d.y) for d in figure.dots), *(roof.corners[1] for roof in figure.roofs)]:
        assert figure.left + 10 < x < figure.right - 10 and figure.top + 10 < y < figure.bottom - 10
    for roof in figure.roofs:
        assert roof.corners[-1][0] == pytest.approx(figure.right)
        assert all(figure.left - 0.1 <= x and y <= figure.bottom + 0.1 for x, y in roof.corners)


def test_the_roof_that_counts_is_the_measured_one_wherever_it_stands() -> None:
    model = Roof("time model", 800.0, 15700.0, "assumed")
    for roofs in ((MEASURED, SHEET, model), (model, SHEET, MEASURED)):
        assert Roofline("V100", roofs, ()).roof is MEASURED
    assert Roofline("V100", (SHEET, model), ()).roof is SHEET


def test_the_sentence_counts_kernels_on_each_side() -> None:
    busy = replace(NORM, name="busy", count=3, flops=1000 * ELEMENTS)
    text = Roofline("V100", (SHEET,), (NORM, busy)).text
    assert text.startswith(
        "Of 4 kernels 1 are memory-bound, 3 are compute-bound on V100: 0.88 to 125.00 FLOPs a byte"
    )
    assert Roofline("V100", (SHEET,), (replace(NORM, count=2),)).text.startswith(
        "All 2 kernels are memory-bound"
    )
    assert "No kernel" in Roofline("V100", (SHEET,), ()).text


def test_what_is_shorter_than_an_empty_kernel_is_launch_bound() -> None:
    small = Point("small", 2, 700, 400, 400, 800)
    found = Roofline("V100", (SHEET, replace(MEASURED, launch_us=2.0)), (NORM, small))
    assert "shorter than an empty kernel's 2.0 µs: 2." in found.text
    assert [k["launch_bound"] for k in found.to_dict()["kernels"]] == [False, True]
    assert "Launch-bound" not in Roofline("V100", (SHEET,), (small,)).text


def drawn(roofline: Roofline) -> ET.Element:
    return ET.fromstring(svg(roofline))


def marks(root: ET.Element, tag: str, kind: str) -> list[ET.Element]:
    return [
        e for e in root.iter(f"{{http://www.w3.org/2000/svg}}{tag}") if kind in (e.get("class") or "").split()
    ]


def words(root: ET.Element) -> str:
    return "\n".join(t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text"))


def test_the_picture_has_its_roofs_and_each_kernel() -> None:
    timed = replace(NORM, name="timed & <named>", measured_us=1000.0)
    root = drawn(Roofline("V100", (SHEET, MEASURED), (NORM, timed, replace(NORM, name="copy", flops=0))))
    assert len(marks(root, "path", "datasheet")) == len(marks(root, "path", "measured")) == 1
    assert len(marks(root, "circle", "predicted")) == len(marks(root, "circle", "measured")) == 1
    said = words(root)
    share = 8 * ELEMENTS / 800e9 * 1e6 / 1000
    assert f"timed & <named>, {share:.0%} of the roof" in said and "ridge 17.4" in said
    assert "without a place here: copy" in said and "Roofline of V100" in said


def test_the_picture_is_readable_without_a_style_of_a_page() -> None:
    """No style, script or link; each mark has its colour and the background its own, so a dark page may show it."""
    text = svg(Roofline("V100", (SHEET, MEASURED), (NORM,)))
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script|<style|style=|<a ", text)
    root = ET.fromstring(text)
    for element in root.iter():
        tag = element.tag.rpartition("}")[2]
        if tag in ("text", "rect"):
            assert element.get("fill", "").startswith("#"), ET.tostring(element)
        if tag in ("line", "path", "circle"):
            assert element.get("stroke", "").startswith("#"), ET.tostring(element)
    (back,) = marks(root, "rect", "back")
    assert (back.get("width"), back.get("height")) == (root.get("width"), root.get("height"))


def test_many_kernels_are_drawn_and_those_without_a_label_are_counted() -> None:
    points = tuple(replace(NORM, name=f"k{i}", flops=(7 + i % 2) * ELEMENTS) for i in range(MOST_LABELS + 8))
    root = drawn(Roofline("V100", (SHEET,), points))
    assert len(marks(root, "circle", "predicted")) == len(points)
    said = words(root)
    assert "8 more points have no label" in said
    assert len(re.findall(r"^\d+ k\d+$", said, re.MULTILINE)) == MOST_LABELS


def test_every_line_of_text_fits_the_picture() -> None:
    longest = replace(NORM, name="w" * 200, count=999, measured_us=1000.0)
    figure = figure_of(Roofline("V" * 200, (SHEET, MEASURED), (longest, replace(longest, flops=0))))
    (dot,) = figure.dots
    assert dot.label.endswith("% of the roof")
    assert figure.right + 18 + text_width(dot.label, 11) < figure.width
    for key in figure.legend:
        assert figure.left + 46 + text_width(key.text, 11) < figure.width and key.y + 8 < figure.height


def test_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    roofline = Roofline("V100", (SHEET, MEASURED), (NORM, replace(NORM, measured_us=900.0)))
    png(roofline, tmp_path / "roofline.png")
    assert (tmp_path / "roofline.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackage, match=r"onepass\[plot\]"):
        png(roofline, tmp_path / "none.png")


# The verb

FILE = """
import torch, torch.nn.functional as F
def norm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b)
def block(x, w, b):
    return F.layer_norm(F.gelu(x) + x, x.shape[-1:], w, b)
def example_inputs():
    return torch.randn(4096, 1024), torch.randn(1024), torch.randn(1024)
"""


V100 = Calibration(
    device="Tesla V100-SXM2-16GB",
    kind="cuda",
    arch="sm_70",
    memory=(MemoryRoof(1, 1, 800.0, 790.0, 810.0, "a"),),
    fp32_gflops=14000.0,
    launch_us=2.0,
    start_us=3.0,
    wait_us=0.5,
    host_us=4.0,
    stream_bytes=1 << 29,
    rounds=15,
    machine="a V100",
    date="2026-11-30",
)
CPU = replace(V100, kind="cpu", arch="", memory=(MemoryRoof(1, 1, 21.0, 20.0, 22.0, "a"),), fp32_gflops=70.0)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    (tmp_path / "user.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "cache"))

    def invoke(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["onepass", "roofline", *arguments])
        try:
            code = main()
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


def test_a_gpu_by_name_without_a_gpu(run: Run, tmp_path: Path) -> None:
    """Seven operations and eight bytes an element; a measured roof counts once it is kept."""
    code, out, err = run("user.py:norm", "--device", "V100", "--svg", "r.svg", "--json")
    assert code == 0, err
    document = json.loads(out)
    (kernel,) = document["kernels"]
    n = 4096 * 1024
    assert document["schema"] == "onepass.roofline/1" and document["device"] == "Tesla V100-SXM2-16GB"
    assert kernel["flops"] / n == pytest.approx(7, rel=0.01)
    assert (kernel["bytes_read"] + kernel["bytes_written"]) / n == pytest.approx(8, rel=0.01)
    assert kernel["arithmetic_intensity"] == pytest.approx(0.87, abs=0.01)
    assert document["roofs"][0]["ridge_flops_per_byte"] == pytest.approx(17.4, abs=0.05)
    assert kernel["verdict"] == "memory-bound" and "row" in kernel["name"]
    ET.parse(tmp_path / "r.svg")

    keep(V100)
    code, out, _ = run("user.py:norm", "--device", "V100", "--json")
    again = json.loads(out)
    assert [roof["kind"] for roof in document["roofs"]] == ["datasheet", "time model"]
    assert [roof["kind"] for roof in again["roofs"]] == ["datasheet", "measured", "time model"]
    assert again["bound_us"] == pytest.approx(document["bound_us"] * 900 / 800)


def test_a_report_and_the_verb_have_the_same_roofs(run: Run, tmp_path: Path) -> None:
    """Of the processor too, under the name that its measured roofs are kept by."""
    keep(replace(CPU, device=cpu_name()))
    code, out, err = run("user.py:norm", "--json")
    assert code == 0, err
    report = explain(torch.relu, torch.randn(8, 32))
    assert [roof.to_dict() for roof in report.roofs] == json.loads(out)["roofs"]
    assert [roof.kind for roof in report.roofs] == ["measured", "time model"]
    page = report_page(report)
    assert "time model: " in page and "measured: 21 GB/s" in page


def test_bytes_op_by_op_and_fused(run: Run) -> None:
    """GELU 2 passes, Add 3, LayerNorm 2; fused 1 read and 1 write, for the residual is the input itself."""
    code, out, _ = run("user.py:block", "--device", "3080 Ti", "--json")
    (kernel,) = json.loads(out)["kernels"]
    n = 4 * 4096 * 1024
    assert code == 0
    assert kernel["eager_bytes"] / n == pytest.approx(7, rel=0.01)
    assert (kernel["bytes_read"] + kernel["bytes_written"]) / n == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("user.py:norm", "--device", "V10O"), "Tesla V100-SXM2-16GB"),
        (("user.py:norm", "--device", "V100", "--run"), "nothing can be timed there"),
        (("user.py:no", "--device", "V100"), "has no `no`"),
        (("user.py:norm", "--device", "V100", "--svg", "no/such/folder.svg"), "can't be written"),
    ],
    ids=["device", "run", "name", "svg"],
)
def test_bad_input_exits_2(run: Run, arguments: tuple[str, ...], told: str) -> None:
    code, _, err = run(*arguments)
    assert code == 2 and told in err and "Traceback" not in err


def test_a_card_that_is_here_is_planned_for_where_the_inputs_are_elsewhere(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs on the CPU and --device of the present GPU: no figure of the CPU's under the GPU's name."""
    from onepass.cli import roofline as verb

    monkeypatch.setattr(verb, "_present", lambda: ["a processor", "NVIDIA H200"])
    code, out, _ = run("user.py:norm", "--device", "H200", "--json")
    document = json.loads(out)
    assert code == 0 and document["device"] == "NVIDIA H200"
    assert {roof["kind"] for roof in document["roofs"]} == {"datasheet", "time model"}
    code, _, err = run("user.py:norm", "--device", "H200", "--run")
    assert code == 2 and "example_inputs() are on a processor" in err


def test_the_sentence_names_the_bandwidth_it_used() -> None:
    """Of the mixes, not the best there is: bytes over it is the time beside it."""
    roof = Roof("measured", 900.0, None, "a test", ((0.5, 800.0), (1.0, 900.0)))
    found = Roofline("a card", (roof,), (Point("copy", 1, 0, 400_000_000, 400_000_000, 0),))
    assert "roof of 800 GB/s it takes at least 1000.0 µs" in found.text
