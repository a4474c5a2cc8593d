"""The ladders run on the CPU: right rungs right, wrong ones found, executed counts, learners' kernels, new ladders."""

from __future__ import annotations

import ctypes
import json
import re
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from harness.ladder_page import written
from onepass.cli.app import _application
from onepass.emulate import Buffer
from onepass.errors import BadRung
from onepass.ladder import emulated
from onepass.ladder.compiled import Compiled, compile_step
from onepass.ladder.emulated import Counts, Finding, run
from onepass.ladder.launch import Loaded
from onepass.ladder.machine import named
from onepass.ladder.measure import Bench, Place, measure
from onepass.ladder.report import Report
from onepass.ladder.rungs import HERE, Ladder, Rung, load
from onepass.ladder.steps import Step, learner, steps_of
from onepass.ladder.study import Study, study

LADDERS = {name: load(HERE / name) for name in ("layer_norm", "fusion", "softmax")}
H200 = named("H200").device
# Rows that fill no block of several rows; columns with idle lanes, idle vectors, less than a warp, no multiple of 4.
RAGGED = [(3, 100), (5, 1028), (1, 4), (2, 259)]
# Generated kernels have tests of their own; here one shape that fills its lanes and one that does not.
GENERATED = [(3, 256), (3, 100)]


def cases() -> list[Any]:
    found = []
    for name, ladder in LADDERS.items():
        for rung in ladder.rungs:
            shapes = GENERATED if rung.generated else [] if rung.wrong else RAGGED
            found += [pytest.param(name, rung.name, s, id=f"{name}-{rung.name}-{s[1]}") for s in shapes]
    return found


def emulate(
    ladder: Ladder, rung: Rung, rows: int, cols: int, data: str = "ordinary", order_seed: int = 0
) -> tuple[Finding, Counts | None]:
    steps = steps_of(ladder, rung, rows, cols, H200)
    kind = next(d for d in ladder.data if d.name == data)
    return run(ladder, rung, steps, kind, rows, cols, order_seed)


@pytest.mark.parametrize(("name", "rung", "shape"), cases())
def test_rungs_are_right_where_they_say_so(name: str, rung: str, shape: tuple[int, int]) -> None:
    ladder = LADDERS[name]
    found = ladder.rung(rung)
    try:
        steps_of(ladder, found, *shape, H200)
    except BadRung:
        assert shape[1] % 4, "only row lengths that float4 can't take may be refused"
        return
    for seed, data in enumerate(ladder.data):
        finding, _ = emulate(ladder, found, *shape, data.name, seed)
        assert not finding.fault, finding.fault
        if data.name not in found.fails:
            assert finding.right, f"{data.name}: {finding.error} of what is allowed"


@pytest.mark.parametrize("cols", [256, 1024])
def test_sums_of_squares_break_on_a_large_mean_and_nothing_else(cols: int) -> None:
    """SPEC A14: v1 to v4 fail it, v5, v6 and the generated kernel do not; the error is far outside, not at the edge."""
    ladder = LADDERS["layer_norm"]
    for rung in ladder.rungs:
        if rung.wrong:
            continue
        ordinary, large = (emulate(ladder, rung, 4, cols, d)[0] for d in ("ordinary", "large_mean"))
        assert ordinary.right
        assert large.right == (rung.name in ("v5", "v6", "generated")), (rung.name, large.error)
        if not large.right:
            assert large.error is not None and large.error > 3


def test_the_divergent_shuffle_is_found_by_its_line() -> None:
    ladder = LADDERS["layer_norm"]
    rung = ladder.rung("wrong_divergent_shuffle")
    finding, _ = emulate(ladder, rung, 2, 256)
    assert finding.kind == "missing-lane" and finding.line is not None
    assert "__shfl_down_sync(0xffffffffu" in ladder.text(rung).splitlines()[finding.line - 1]


def test_executed_counts() -> None:
    """SPEC A5, A6: barriers a row v2 9, v3 1; memory instructions a row v3 : v4 = 4."""
    ladder = LADDERS["layer_norm"]
    for cols in (256, 1024):
        counts = {n: emulate(ladder, ladder.rung(n), 4, cols)[1] for n in ("v1", "v2", "v3", "v4", "v5")}
        v1, v2, v3, v4, v5 = (c for c in counts.values() if c is not None)
        assert (v1.barriers, v2.barriers, v3.barriers, v4.barriers) == (0, 9, 1, 1)
        assert v3.memory_instructions == 4 * v4.memory_instructions
        # x twice, weight, bias and y: 5 accesses an element, a warp's 32 at a time; v1's warps have one lane.
        assert v1.memory_instructions == 5 * cols and v3.memory_instructions == 5 * cols / 32
        assert v3.moved_bytes == v4.moved_bytes == 20 * cols
        assert v5.moved_bytes == 16 * cols


def test_fusing_moves_28_20_and_12_bytes_an_element() -> None:
    """SPEC B4; weight and bias, 8 bytes a column, come from a cache again for each row."""
    ladder, cols = LADDERS["fusion"], 1024
    moved = {}
    for name in ("f1", "f2", "f3", "f4"):
        _, counts = emulate(ladder, ladder.rung(name), 16, cols)
        assert counts is not None
        moved[name] = counts.moved_bytes / cols - 8
    assert (moved["f1"], moved["f2"], moved["f3"]) == (28, 20, 12)
    assert moved["f4"] > 12 + 2 * 8  # two atomics of 4 bytes an element, read and written


# Each text is a right rung with one thing broken; the bound must notice.
BROKEN = {
    "a lane's first element is dropped": (
        "layer_norm",
        "v5",
        "sum += (x_r[k].x + x_r[k].y)",
        "sum += (x_r[k].y)",
    ),
    "eps is forgotten and cols is off by one": ("layer_norm", "v3", "sum / cols", "sum / (cols - 1)"),
    "the last of 8 warps is not counted": (
        "layer_norm",
        "v2",
        "offset = THREADS / 2",
        "offset = THREADS / 4",
    ),
    "the input is added to itself": ("fusion", "f3", "gelu(x.x) + r.x", "gelu(x.x) + x.x"),
    "GELU lacks its cubic term": ("fusion", "f3", "0.0713548162726f", "0.0f"),
    "the largest is not taken off": (
        "softmax",
        "s1",
        "sum += __expf(x_g[c] - largest)",
        "sum += __expf(x_g[c])",
    ),
    "a pair is joined without rescaling": (
        "softmax",
        "s2",
        "a.sum * __expf(a.largest - largest)",
        "a.sum",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rung_is_seen(name: str, tmp_path: Path) -> None:
    ladder_name, rung_name, right, wrong = BROKEN[name]
    ladder = LADDERS[ladder_name]
    below = ladder.rung(rung_name)
    text = ladder.text(below)
    assert right in text
    path = tmp_path / "mine.cu"
    path.write_text(text.replace(right, wrong))
    changed, rung = learner(path, ladder, below)
    finding, _ = emulate(changed, rung, 4, 1024)
    assert not finding.right and (finding.error is None or finding.error > 10)


def test_a_barrier_in_a_branch_is_seen(tmp_path: Path) -> None:
    ladder = LADDERS["layer_norm"]
    text = ladder.text(ladder.rung("v3")).replace("  __syncthreads();", "  if (tid < 128) __syncthreads();")
    (tmp_path / "mine.cu").write_text(text)
    changed, rung = learner(tmp_path / "mine.cu", ladder, ladder.rung("v3"))
    # Threads that skip the barrier read what others have yet to write, or wait where the others do not.
    assert emulate(changed, rung, 1, 256)[0].kind in ("barrier-divergence", "shared-race")


# The command


def command(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(_application(), ["ladder", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_the_command_without_a_gpu() -> None:
    """The first line of what the ladder must do, as one document."""
    code, out = command("layer_norm", "--rows", "65536", "--cols", "256,1024", "--device", "V100", "--json")
    document = json.loads(out)
    assert code == 0 and document["schema"] == "onepass.ladder/1" and document["verdict"]
    assert not document["measured"] and "time" in document["not_measured"]
    assert document["device"]["ridge"] == pytest.approx(17.4, abs=0.1)
    for cols in (256, 1024):
        rows = {r["rung"]: r for r in document["results"] if r["cols"] == cols}
        assert list(rows) == [r.name for r in LADDERS["layer_norm"].rungs]
        occupancy = {n: r["kernels"][0] for n, r in rows.items()}
        assert occupancy["v1"]["thread_occupancy"] == pytest.approx(0.0156, abs=1e-4)
        assert occupancy["v1"]["warp_occupancy"] == 0.5
        assert all(occupancy[n]["thread_occupancy"] == 1 for n in ("v2", "v3", "v4"))
        executed = {n: r["executed_a_row"] for n, r in rows.items()}
        assert (executed["v2"]["barriers"], executed["v3"]["barriers"]) == (9, 1)
        assert executed["v3"]["memory_instructions"] == 4 * executed["v4"]["memory_instructions"]
        assert rows["v1"]["intensity"] == pytest.approx(0.87, abs=0.01)
        failed = {n: {f["data"] for f in r["correctness"] if not f["right"]} for n, r in rows.items()}
        assert all(failed[n] == {"large_mean"} for n in ("v1", "v2", "v3", "v4"))
        assert not failed["v5"] and not failed["v6"] and not failed["generated"]
        assert rows["wrong_divergent_shuffle"]["correctness"][0]["fault"] == "missing-lane"
        assert all(r["predicted"]["us"] > 0 for n, r in rows.items() if n != "wrong_divergent_shuffle")
        assert all(r["verdict"] and r["as_stated"] for r in rows.values())


def test_a_learner_is_judged(tmp_path: Path) -> None:
    ladder = LADDERS["layer_norm"]
    right = tmp_path / "mine.cu"
    right.write_text("// launch: grid=rows block=256\n" + ladder.text(ladder.rung("v2")))
    words = ("--device", "H200", "--rows", "65536", "--cols", "256", "--against", "v1")
    code, out = command(str(right), *words, "--predict", "2")
    assert code == 0 and "met" in out.splitlines()[0] and "nothing was measured" in out.splitlines()[0]
    code, out = command(str(right), *words, "--predict", "1000", "--json")
    document = json.loads(out)
    assert code == 1 and document["met"] is False and document["predicted_factor"] == 1000
    wrong = tmp_path / "wrong.cu"
    wrong.write_text(right.read_text().replace("x - mean", "x + mean").replace("- mean)", "+ mean)"))
    code, out = command(str(wrong), *words, "--predict", "2")
    assert code == 1 and "is wrong" in out.splitlines()[0]


def test_a_learner_says_how_it_is_launched(tmp_path: Path) -> None:
    ladder = LADDERS["layer_norm"]
    text = ladder.text(ladder.rung("v2")).replace("THREADS = 256", "THREADS = 128")
    path = tmp_path / "mine.cu"
    path.write_text("// launch: grid=rows block=128\n" + text)
    changed, rung = learner(path, ladder, ladder.rung("v4"))
    assert rung.launches[0].block == "128" and emulate(changed, rung, 3, 99)[0].right
    path.write_text("int x;")
    with pytest.raises(BadRung, match="must hold one kernel, and holds none"):
        learner(path, ladder, ladder.rung("v4"))
    path.write_text(text)
    with pytest.raises(BadRung, match="3 kernels"):
        learner(path, LADDERS["fusion"], LADDERS["fusion"].rung("f1"))


def test_a_rung_that_surprises_is_reported(tmp_path: Path) -> None:
    """A rung stated to be right, and wrong: not as stated, in the verdict and in the exit code."""
    folder = new_ladder(tmp_path, "2.0f")
    code, out = command(str(folder), "--device", "H200", "--rows", "1000", "--cols", "64")
    assert code == 0 and "as its list says" in out.splitlines()[0]
    folder = new_ladder(tmp_path / "other", "2.5f")
    code, out = command(str(folder), "--rows", "1000", "--cols", "64")
    assert torch.cuda.is_available() or "NVIDIA H200 is assumed" in out.splitlines()[1]
    assert code == 1 and "NOT as stated: t1 (64)" in out.splitlines()[0]


def test_the_report_in_chinese() -> None:
    found = study(LADDERS["softmax"], named("H200"), 65536, [256], on_device=False)
    report = Report(found, "zh")
    assert "未使用 GPU" in report.verdict()
    assert all("倍" in report.sentence(e) for e in found.entries if e.rung.below)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("layernorm",), "layer_norm"),
        (("layer_norm", "--device", "H300"), "H200"),
        (("layer_norm", "--cols", "a"), "whole numbers"),
        (("mine.cu",), "--against"),
        (("nothere.cu", "--against", "v4"), "can't be read"),
        (("mine.cu", "--against", "w4"), "v4"),
    ],
)
def test_misuse_names_what_is_near(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(_application(), ["ladder", *words])
    assert result.exit_code != 0 and said in result.output + str(result.exception)


def new_ladder(folder: Path, factor: str) -> Path:
    """A ladder that is files only: twice x, one thread an element."""
    folder.mkdir(exist_ok=True)
    (folder / "t1.cu").write_text(f"""\
extern "C" __global__ void twice(const float* x_g, float* y_g, int rows, int cols) {{
  const long long i = (long long)blockIdx.x * 64 + threadIdx.x;
  if (i < (long long)rows * cols) y_g[i] = {factor} * x_g[i];
}}
""")
    (folder / "reference.py").write_text("""\
def twice(x):
    return 2 * x
def twice_allowed(chain, x):
    return chain * 2.0**-24 * x.abs()
""")
    (folder / "rungs.toml").write_text("""\
title = "Twice"
[predictions]
device = "NVIDIA H200"
rows = 1000
[operators.twice]
inputs = { x = "full" }
outputs = { y = "full" }
flops = "rows * cols"
[[data]]
name = "ordinary"
mean = 0.0
deviation = 1.0
[[rungs]]
name = "t1"
file = "t1.cu"
operator = "twice"
changed = "the start"
because = "it moves 8 bytes an element"
chain = "1"
launches = [{ kernel = "twice", arguments = ["x", "y"], grid = "cdiv(rows * cols, 64)", block = "64" }]
""")
    return folder


def test_the_pages_ladder_is_one(tmp_path: Path) -> None:
    """Followed word by word: compiled and run, each rung right, both at several row lengths."""
    ladder = load(written(tmp_path))
    seen = study(ladder, named("H200"), 65536, [256, 1024], on_device=False)
    assert ladder.title == tmp_path.name and not seen.surprises
    assert [e.rung.name for e in seen.entries if e.fit and e.predicted] == ["a1", "a2", "a1", "a2"]
    assert study(ladder, named("H200"), 64, [6], on_device=False).entries[1].skipped


def test_a_last_block_that_is_not_full_is_run_too(tmp_path: Path) -> None:
    """Without its guard a1 leaves its buffers at 17 rows of 64, and not at 16."""
    path = written(tmp_path) / "a1.cu"
    path.write_text(path.read_text().replace("if (i < (long long)rows * cols) ", ""))
    ladder = load(tmp_path)
    fit = [study(ladder, named("H200"), rows, [64], on_device=False).entries[0].fit for rows in (64, 65)]
    assert fit == [True, False]


# Measuring, with the emulator in the GPU's place


class Emulated:
    def __init__(self, compiled: Compiled) -> None:
        self.step = compiled.step
        self.kernel = emulated.emulated(compiled.step)

    def prepared(self, tensors: Mapping[str, torch.Tensor]) -> Callable[[], None]:
        buffers = [Buffer(n, t.data_ptr(), t.numel() * 4) for n, t in tensors.items()]
        args = self.step.packed({b.name: b.address for b in buffers})
        return lambda: self.kernel.launch(self.step.grid, self.step.block, 0, args, buffers) and None


def streams(bench: Bench) -> dict[str, Callable[[int], Any]]:
    """A roof far above anything emulated."""
    return {"roof": lambda index: None}


HERE_INSTEAD = Place(torch.device("cpu"), lambda compiled: [Emulated(c) for c in compiled], streams)


def test_measuring_judges_times_and_voids(tmp_path: Path) -> None:
    """All but the device: sets in turn, the result checked before and after, shares of datasheet and roof."""
    ladder = LADDERS["layer_norm"]
    (tmp_path / "wrong.cu").write_text(ladder.text(ladder.rung("v5")).replace("* rstd *", "* rstd * 1.01f *"))
    changed, wrong = learner(tmp_path / "wrong.cu", ladder, ladder.rung("v5"))
    machine, rows, cols = named("H200"), 8, 256
    group = {}
    for name, of in (("v5", ladder), ("v6", ladder), ("generated", ladder), (wrong.name, changed)):
        steps = steps_of(of, of.rung(name), rows, cols, machine.device)
        group[name] = (of.rung(name), steps, [compile_step(s, machine) for s in steps.steps])
    found = measure(ladder, group, machine, rows, cols, rounds=3, place=HERE_INSTEAD)
    assert list(found) == ["v5", "generated", "wrong", "v6"]  # one operator after the other
    assert [n for n, m in found.items() if m.void] == ["wrong"] and "wrong" in found["wrong"].void
    for m in (found["v5"], found["v6"]):
        assert m.us.median > 0 and m.of_datasheet == pytest.approx(m.gbps / 4800)
        assert m.of_roof == pytest.approx(m.gbps / m.roof_gbps) and m.error <= 1
    ideal = ladder.operators["layer_norm"].ideal_bytes(rows, cols)
    assert found["v5"].gbps == pytest.approx(ideal / found["v5"].us.median / 1e3)
    # Nothing is quicker than its roof: such a row is a mistake in the measurement.
    assert replace(found["v5"], of_roof=1.1).void == "above the measured roof"
    entry = replace(study(ladder, machine, rows, [cols], on_device=False).at(cols)[4], measured=found["v5"])
    report = Report(Study(ladder, machine, rows, (entry,), True), "en")
    assert "of the roof" in report.sentence(entry) and json.dumps(report.to_dict())


def test_arguments_lie_where_a_launch_finds_them() -> None:
    """Each parameter's pointer leads to its value; a struct has one pointer, and its fields in order."""
    tensors = {"x": torch.zeros(4), "y": torch.zeros(4)}
    seen: list[list[int]] = []
    for block_struct in (False, True):
        kernel = Loaded.__new__(Loaded)
        kernel.step = Step("k", "", 1, 1, ("x", "y", 7, 9), block_struct=block_struct)
        kernel.launch = lambda pointers: seen.append(list(pointers))  # type: ignore[method-assign]
        prepared = kernel.prepared(tensors)
        prepared()
        slots = seen[-1] if not block_struct else [seen[-1][0] + 8 * i for i in range(4)]
        values = [ctypes.c_int64.from_address(p).value for p in slots]
        assert values == [tensors["x"].data_ptr(), tensors["y"].data_ptr(), 7, 9]
        assert ctypes.c_int32.from_address(slots[2]).value == 7  # as an int parameter reads it
    assert len(seen[0]) == 4 and len(seen[1]) == 1
    # The kernel has addresses only: a tensor between two kernels must live as long as what was prepared with it.
    scratch = weakref.ref(tensors["x"])
    del tensors
    assert scratch() is not None and prepared
    del prepared
    assert scratch() is None


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("block=32", "block=2048", "block=2048 is 2048"),
        ("grid=rows", "grid=0", "grid=0 is 0"),
        ("block=32", "block=cols*nope", "'nope' is not understood"),
        ("block=32", "blok=32", "is no launch"),
        ("const float* bias, ", "", "v4 takes x, weight, bias, y, rows, cols"),
    ],
)
def test_a_learners_launch_that_no_device_makes_is_refused(
    before: str, after: str, said: str, tmp_path: Path
) -> None:
    text = (
        "// launch: grid=rows block=32\n"
        'extern "C" __global__ void mine(const float* x, const float* weight, const float* bias, float* y,\n'
        "    int rows, int cols) {}\n"
    )
    path = tmp_path / "mine.cu"
    path.write_text(text.replace(before, after))
    ladder = LADDERS["layer_norm"]

    def judged() -> None:
        changed, rung = learner(path, ladder, ladder.rung("v4"))
        steps_of(changed, rung, 16, 256, named("H200").device)

    with pytest.raises(BadRung, match=re.escape(said)):
        judged()


def test_rows_too_long_for_one_kernel_skip_the_generated_rung_alone() -> None:
    ladder = LADDERS["layer_norm"]
    some = replace(ladder, rungs=(ladder.rung("v3"), ladder.rung("generated")))
    found = study(some, named("V100"), 1, [131073], on_device=False)
    right, skipped = found.entries
    assert right.findings
    assert not right.skipped
    assert "131073 columns" in skipped.skipped


def test_one_column_is_no_surprise() -> None:
    ladder = LADDERS["layer_norm"]
    some = replace(ladder, rungs=(ladder.rung("v1"),))
    assert not study(some, named("H200"), 37, [1], on_device=False).surprises
