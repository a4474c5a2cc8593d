"""The ladders as files: all there, complete, compiled for every architecture, and what is known of them without running."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from onepass.errors import BadLadder, NoNvrtc, NoSuchRung, UnknownGpu
from onepass.ladder.compiled import Compiled, compile_step
from onepass.ladder.expression import evaluate
from onepass.ladder.machine import named, occupied
from onepass.ladder.report import languages
from onepass.ladder.rungs import HERE, Ladder, Rung, known, load
from onepass.ladder.steps import specialised, steps_of
from onepass.runtime import nvrtc

# By name: the ladders must not lose a rung.
FILES = {
    "layer_norm": {
        "v1_thread_per_row.cu",
        "v2_shared_memory_tree.cu",
        "v3_warp_shuffle.cu",
        "v4_float4.cu",
        "v5_row_in_registers.cu",
        "v6_fused_gelu_add.cu",
        "wrong_divergent_shuffle.cu",
    },
    "fusion": {
        "f1_three_kernels.cu",
        "f2_gelu_add_then_layer_norm.cu",
        "f3_all_in_one.cu",
        "f4_through_global_memory.cu",
        "f5_register_pressure.cu",
        "f6_launch_bounds.cu",
    },
    "softmax": {
        "s1_three_passes.cu",
        "s2_online.cu",
        "s3_vectorised.cu",
        "s4_fused_scale_and_mask.cu",
    },
}
LADDERS = {name: load(HERE / name) for name in FILES}
RUNGS = [(ladder, rung) for ladder in LADDERS.values() for rung in ladder.rungs]
WRITTEN = [(ladder, rung) for ladder, rung in RUNGS if rung.file]
# Volta to Blackwell; sm_70 needs the NVRTC of CUDA 12.
ARCHITECTURES = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


def of(pair: tuple[Ladder, Rung]) -> str:
    return f"{pair[0].name}-{pair[1].name}"


@pytest.mark.parametrize("name", FILES)
def test_no_rung_is_missing_and_none_is_outside_the_list(name: str) -> None:
    folder = HERE / name
    assert {p.name for p in folder.glob("*.cu")} == FILES[name]
    assert {r.file for r in LADDERS[name].rungs if r.file} == FILES[name]
    assert (folder / "README.md").is_file() and (folder / "reference.py").is_file()
    assert any(r.generated for r in LADDERS[name].rungs)
    assert name in known()


def test_a_missing_file_would_be_seen(tmp_path: Path) -> None:
    folder = tmp_path / "layer_norm"
    shutil.copytree(HERE / "layer_norm", folder)
    load(folder)
    (folder / "v3_warp_shuffle.cu").unlink()
    with pytest.raises(BadLadder, match=r"no file v3_warp_shuffle\.cu"):
        load(folder)


@pytest.mark.parametrize("pair", RUNGS, ids=of)
def test_rungs_are_complete(pair: tuple[Ladder, Rung]) -> None:
    ladder, rung = pair
    assert rung.changed and rung.changed_zh and rung.because and rung.because_zh and rung.claims
    assert bool(rung.correction) == bool(rung.correction_zh)
    assert all(re.fullmatch(r"[AB]\d+", c) for c in rung.claims)
    assert {d.name for d in ladder.data} >= set(rung.fails)
    if rung.below and not rung.wrong:
        assert set(rung.predicted) == {"256", "1024", "4096"}
        assert all(0 < p < 100 for p in rung.predicted.values())
    else:
        assert not rung.predicted
    assert callable(ladder.function(rung.operator)) and callable(ladder.function(f"{rung.operator}_allowed"))


@pytest.mark.parametrize("pair", WRITTEN, ids=of)
def test_headers_say_what_a_reader_needs(pair: tuple[Ladder, Rung]) -> None:
    text = pair[0].text(pair[1])
    header = text[: text.index("\n\n")]
    for line in ("Difference from", "Bytes a row:", "Limit expected to bind:", "Requires:", "Fails:"):
        assert f"// {line}" in header, line
    assert "// onepass-check: " in header and "ref=reference.py:check_" in header
    assert ("mean is large" in header or "as v1" in header) == (pair[1].fails == ("large_mean",))


def test_those_that_break_say_so() -> None:
    fails = {r.name: r.fails for r in LADDERS["layer_norm"].rungs}
    assert [n for n, f in fails.items() if f == ("large_mean",)] == ["v1", "v2", "v3", "v4"]
    assert fails["v5"] == fails["v6"] == fails["generated"] == ()
    assert [r.name for _, r in RUNGS if r.wrong] == ["wrong_divergent_shuffle"]


def test_both_languages_say_the_same_things() -> None:
    english, chinese = languages()["en"], languages()["zh"]
    assert english.keys() == chinese.keys()
    for name, text in english.items():
        assert set(re.findall(r"{(\w+)", text)) == set(re.findall(r"{(\w+)", chinese[name])), name


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_rung_compiles_and_none_spills(arch: str) -> None:
    try:
        nvrtc.library(arch)
    except NoNvrtc:
        pytest.skip(f"no NVRTC here that compiles for {arch}")
    for ladder, rung in WRITTEN:
        text = specialised(ladder.text(rung), 1024)
        code, log = nvrtc.compile_text(text, "k", arch)
        assert code and nvrtc.read_resources(log).spill_bytes == 0, f"{rung.name} {arch}"
        for launch in rung.launches:
            assert f"entry function '{launch.kernel}'" in log


def compiled(ladder: str, rung: str, cols: int, device: str) -> Compiled:
    found, machine = LADDERS[ladder], named(device)
    steps = steps_of(found, found.rung(rung), 65536, cols, machine.device)
    return compile_step(steps.steps[-1], machine)


def test_occupancy_on_v100_is_stated_both_ways() -> None:
    """SPEC A3, A4, A8: a block of one thread fills 32 of 2048 thread slots and 32 of 64 warps."""
    v1 = compiled("layer_norm", "v1", 1024, "V100").occupied
    assert (v1.blocks, v1.thread, v1.warp) == (32, 32 / 2048, 0.5)
    for name in ("v2", "v3", "v4"):
        found = compiled("layer_norm", name, 1024, "V100").occupied
        assert (found.blocks, found.thread, found.warp) == (8, 1.0, 1.0)


def test_registers_press_and_bounds_cure() -> None:
    """SPEC B6, at every row length of the results."""
    for cols in (256, 1024, 4096):
        pressed, cured = (compiled("fusion", name, cols, "H200") for name in ("f5", "f6"))
        assert pressed.registers > 96 and pressed.occupied.warp == 0.25
        assert cured.registers <= 72 and cured.occupied.warp > 0.4
        assert pressed.spill_bytes == cured.spill_bytes == 0


def test_the_nearest_architecture_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    only_13 = {13: object()}
    monkeypatch.setattr(nvrtc, "libraries", lambda: only_13)
    with pytest.raises(NoNvrtc):
        nvrtc.library("sm_70")
    monkeypatch.undo()
    real = nvrtc.libraries()
    if 13 not in real:
        pytest.skip("no NVRTC 13 here")
    monkeypatch.setattr(nvrtc, "libraries", lambda: {13: real[13]})
    nvrtc.version.cache_clear()
    try:
        assert compiled("layer_norm", "v2", 1024, "V100").arch == "sm_75"
    finally:
        monkeypatch.undo()
        nvrtc.version.cache_clear()


def test_intensity_and_ridge() -> None:
    """SPEC A1: 7 FLOPs and 8 bytes an element, AI 0.87; V100 SXM2 900 GB/s and 15.7 TFLOP/s, ridge 17.4."""
    operator = LADDERS["layer_norm"].operators["layer_norm"]
    ai = operator.count_flops(65536, 1024) / operator.ideal_bytes(65536, 1024)
    assert ai == pytest.approx(0.875, abs=0.001)
    assert named("V100").ridge == pytest.approx(17.44, abs=0.01)
    assert operator.ideal_bytes(65536, 1024) == 8 * 65536 * 1024 + 2 * 4 * 1024
    fused = LADDERS["fusion"].operators["gelu_add_layer_norm"]
    names = {"rows": 65536, "cols": 1024}
    unfused = evaluate(fused.unfused_bytes, names)
    assert unfused / (12 * 65536 * 1024) == pytest.approx(28 / 12)
    assert fused.ideal_bytes(65536, 1024) == 12 * 65536 * 1024 + 2 * 4 * 1024


def test_occupancy_counts_blocks() -> None:
    assert occupied(named("V100"), 32, 1, 0).blocks == 32
    assert occupied(named("V100"), 128, 256, 0).warp == 0.25


@pytest.mark.parametrize(
    ("text", "value"),
    [("cdiv(cols, 256) + 8", 12), ("pow2(5)", 8), ("pow2(8)", 8), ("max(1, 2) if cols > 3 else 7", 2)],
)
def test_expressions(text: str, value: int) -> None:
    assert evaluate(text, {"cols": 1000}) == value


@pytest.mark.parametrize("text", ["__import__('os')", "cols.real", "rows", "1 +", "[1]"])
def test_expressions_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"expression|understood"):
        evaluate(text, {"cols": 1})


def test_unknown_names_have_neighbours() -> None:
    with pytest.raises(NoSuchRung) as rung:
        LADDERS["layer_norm"].rung("v7")
    assert "v6" in str(rung.value)
    with pytest.raises(UnknownGpu) as gpu:
        named("H300")
    assert "H200" in str(gpu.value)


def tables() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "ladder_tables.py"
    spec = importlib.util.spec_from_file_location("ladder_tables", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tutorials_are_what_the_results_say() -> None:
    found = tables().documents()
    assert {p.name for p in found} == {"tutorial.md", "tutorial.zh-CN.md"}
    for path, text in found.items():
        assert path.read_text() == text, "run python tools/ladder_tables.py"
        assert re.findall(r"<!-- table (\w+) -->", text) == list(FILES)


def test_a_table_is_made_of_measured_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tables()
    measured = {
        "us": {"median": 131.2},
        "gbps": 4096.0,
        "of_datasheet": 0.853,
        "of_roof": 0.955,
        "void": None,
    }
    result = {
        "rung": "v5",
        "cols": 1024,
        "measured": measured,
        "below": "v4",
        "stated_relative": 1.1,
        "relative": 1.31,
    }
    below = {**result, "rung": "v4", "below": "v3", "relative": None}
    unmeasured = {**result, "rung": "v1", "measured": None}
    void = {**result, "rung": "v4", "measured": {**measured, "void": "the result is wrong"}}
    run = {"rounds": 25, "date": "2026-12-01"}
    document = {"device": {"name": "a GPU"}, "rows": 8, "run": run, "results": [unmeasured, below, result]}
    (tmp_path / "ladder-fusion.json").write_text(json.dumps(document))
    (tmp_path / "ladder-layer_norm.json").write_text(json.dumps({**document, "results": [void, result]}))
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    text = module.table("fusion", "en")
    assert "| v5 | 1024 | 131.2 | 4096 | 85% | 95.5% | 1.10 × | 1.31 × | faster |" in text
    assert "| v1 |" not in text and "a GPU, rows = 8" in text
    # A rung is not compared with one whose time does not count.
    text = module.table("layer_norm", "en")
    assert "| v4 |" not in text and "| v5 | 1024 | 131.2 | 4096 | 85% | 95.5% | 1.10 × | – | – |" in text
    assert module.table("softmax", "zh") == "尚未测量。"


@pytest.mark.parametrize(
    ("before", "after"), [('grid = "', 'grid = "cdiv(rows + '), ('flops = "', 'flops = "colz * ')]
)
def test_an_expression_that_nobody_understands_is_refused_when_the_ladder_is_read(
    before: str, after: str, tmp_path: Path
) -> None:
    shutil.copytree(HERE / "softmax", tmp_path / "own")
    path = tmp_path / "own" / "rungs.toml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(BadLadder, match=r"is no expression|is not understood"):
        load(tmp_path / "own")
