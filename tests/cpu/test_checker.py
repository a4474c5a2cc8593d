"""The checker: every planted fault found at its line, no alarm on right kernels, counts as counted by hand."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from onepass.cli import app
from onepass.cli.check import _compared, _reference
from onepass.emulate import compile_handwritten
from onepass.emulate.handwritten import kernels_of, without_comments
from onepass.errors import BadLaunch, CannotCheck, NoSuchKernel, OnepassError
from onepass.insight.check import RACES, CheckReport, check_built, check_kernel, difference
from onepass.insight.launch_line import cases_of, launch_of, pairs_of
from onepass.ladder.rungs import HERE

CORPUS = Path(__file__).parents[1] / "faults"
WRONG, RIGHT = sorted(CORPUS.glob("wrong/*.cu")), sorted(CORPUS.glob("right/*.cu"))
MARK = re.compile(r"// FAULT: ([\w-]+)")
CLASSES = {
    "barrier-divergence",
    "missing-lane",
    "warp-divergence",
    "shared-race",
    "global-race",
    "out-of-bounds",
    "misaligned",
    "unwritten-shared",
    "write-to-read-only",
    "wrong-result",
    "order-dependent",
    "division-by-zero",
    "stack-overflow",
    "endless-loop",
}


def marks(text: str) -> dict[int, str]:
    """The lines that a corpus file calls faulty, and what is wrong there."""
    found = {n: MARK.search(line) for n, line in enumerate(text.splitlines(), 1)}
    return {n: m.group(1) for n, m in found.items() if m}


def checked(path: Path, text: str | None = None, cache_dir: Path | None = None) -> list[CheckReport]:
    """Every case of a file."""
    text = path.read_text() if text is None else text
    cases = cases_of(text, str(path))
    reports = []
    for case in cases:
        built = compile_handwritten(text, case.pairs.get("kernel"), path.name, cache_dir=cache_dir)
        at = launch_of(case, built.parameters, path.name)
        reference = _reference(case, path, False)
        reports.append(
            check_built(
                built,
                at.arguments,
                at.grid,
                at.block,
                shared_bytes=at.shared_bytes,
                reference=reference,
                file=path.name,
                case=case.name,
                rtol=at.rtol,
            )
        )
    return reports


def test_the_corpus_has_every_class() -> None:
    kinds = [kind for p in WRONG for kind in set(marks(p.read_text()).values())]
    assert len(kinds) >= 16
    assert set(kinds) == CLASSES


@pytest.mark.parametrize("path", WRONG, ids=lambda p: p.stem)
def test_a_planted_fault_is_found_at_its_line(path: Path) -> None:
    expected = marks(path.read_text())
    faults = [f for r in checked(path) for f in r.faults]
    assert faults
    for f in faults:
        assert expected.get(f.line) == f.kind, f
        assert not f.other_line or f.other_line in expected or f.kind not in RACES, f
        assert f.text
        assert f.advice
    seen = {n for f in faults for n in (f.line, f.other_line)}
    one_is_enough = {
        "barrier-divergence",
        "warp-divergence",
        "shared-race",
        "global-race",
    }  # marked at both of two places
    assert set(expected) <= seen or set(expected.values()) <= one_is_enough


@pytest.mark.parametrize("path", RIGHT, ids=lambda p: p.stem)
def test_a_right_kernel_raises_no_alarm(path: Path) -> None:
    for report in checked(path):
        assert report.compared
        assert report.clean, report.faults


def test_a_fault_in_a_case_is_of_that_case_alone() -> None:
    ordinary, large = checked(CORPUS / "wrong" / "wrong_large_mean.cu")
    assert ordinary.clean
    assert [(f.kind, f.case) for f in large.faults] == [("wrong-result", "large-mean")]


# Each right kernel with one thing taken out or changed is found, so that silence above means something.
BROKEN = {
    "block_reduce.cu": ("  __syncthreads();\n  for", "  for", "shared-race"),
    "warp_shuffle_layer_norm.cu": ("scratch[32] = v;\n  __syncthreads();", "scratch[32] = v;", "shared-race"),
    "online_softmax.cu": ("others * __expf(other - next)", "others", "wrong-result"),
    "transpose_padded.cu": ("to_row + j < cols && ", "", "unwritten-shared"),
    "histogram.cu": ("atomicAdd(&local[x[i]], 1)", "local[x[i]] += 1", "shared-race"),
    "half_warps.cu": ("lane < 16 ? 0x0000ffffu : 0xffff0000u", "0x0000ffffu", "missing-lane"),
    "unused_lanes_outside_mask.cu": ("offset = 8", "offset = 16", "missing-lane"),
    "block_of_48_threads.cu": ("offset = 8", "offset = 16", "missing-lane"),
    "barrier_after_return.cu": ("  __syncthreads();\n", "", "shared-race"),
    "leaves_while_others_wait.cu": ("    return;\n", "", "missing-lane"),
    "float4_scale.cu": ("n / 4", "n / 4 + 1", "out-of-bounds"),
    "half2_softmax.cu": ("x + blockIdx.x * cols)", "x + blockIdx.x * cols + 1)", "misaligned"),
    "double_buffered.cu": ("    __syncthreads();\n  }\n  if", "  }\n  if", "shared-race"),
    "warp_tree_with_syncwarp.cu": ("s[t] += v;\n    __syncwarp();", "s[t] += v;", "shared-race"),
    "functors_and_state.cu": ("= part[b]", "= part[0]", "wrong-result"),
    "half_arithmetic.cu": ("__float2half(1.0f)))", "__float2half(1.02f)))", "wrong-result"),
    "warp_functions.cu": (
        "atomicAdd(&counts[0], __popc(peers))",
        "counts[0] += __popc(peers)",
        "global-race",
    ),
    "in_place_rows.cu": ("  __syncthreads();\n  x[", "  x[", "global-race"),
    "last_block_finishes.cu": ("== gridDim.x - 1", "== gridDim.x - 2", "wrong-result"),
    "atomic_max_float_by_cas.cu": (
        "  __syncthreads();\n  if (!threadIdx.x)",
        "  if (!threadIdx.x)",
        "shared-race",
    ),
    "device_counter.cu": ("    __threadfence();\n", "", "global-race"),
    "syncwarp_in_two_branches.cu": (
        "x[threadIdx.x];\n    __syncwarp();\n  }\n",
        "x[threadIdx.x];\n  }\n",
        "shared-race",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_right_kernel_broken_in_one_place_is_found(name: str) -> None:
    path = CORPUS / "right" / name
    before, after, kind = BROKEN[name]
    text = path.read_text()
    assert text.count(before) == 1
    kinds = {f.kind for r in checked(path, text.replace(before, after)) for f in r.faults}
    assert kind in kinds, kinds


# Counts


ROWS, COLS = 3, 1024
REDUCTIONS = {
    "tree": """
  __shared__ float s[256], q[256];
  s[t] = sum; q[t] = squares;
  __syncthreads();
  for (int o = 128; o > 0; o /= 2) { if (t < o) { s[t] += s[t + o]; q[t] += q[t + o]; } __syncthreads(); }
  sum = s[0]; squares = q[0];""",
    "shuffle": """
  __shared__ float s[8], q[8];
  for (int o = 16; o > 0; o /= 2) {
    sum += __shfl_down_sync(0xffffffffu, sum, o); squares += __shfl_down_sync(0xffffffffu, squares, o);
  }
  if (t % 32 == 0) { s[t / 32] = sum; q[t / 32] = squares; }
  __syncthreads();
  sum = squares = 0; for (int w = 0; w < 8; ++w) { sum += s[w]; squares += q[w]; }""",
}


def layer_norm(reduction: str, vector: bool) -> str:
    """The text's LayerNorm, by float or by float4."""
    v, n = ("float4", "cols / 4") if vector else ("float", "cols")
    each = ("v.x", "v.y", "v.z", "v.w") if vector else ("v",)
    sums = " ".join(f"sum += {e}; squares += {e} * {e};" for e in each)
    names = [(e, e.replace("v", "g"), e.replace("v", "b")) for e in each]
    normed = " ".join(f"{e} = ({e} - mean) * rstd * {g} + {b};" for e, g, b in names)
    return f"""
extern "C" __global__ void k(const float* x, const float* gamma, const float* beta, float* y, int cols, float eps) {{
  const int t = threadIdx.x;
  const {v}* row = (const {v}*)(x + blockIdx.x * cols);
  float sum = 0, squares = 0;
  for (int i = t; i < {n}; i += 256) {{ const {v} v = row[i]; {sums} }}
  {reduction}
  const float mean = sum / cols, rstd = rsqrtf(squares / cols - mean * mean + eps);
  for (int i = t; i < {n}; i += 256) {{
    {v} v = row[i]; const {v} g = ((const {v}*)gamma)[i], b = ((const {v}*)beta)[i];
    {normed}
    (({v}*)(y + blockIdx.x * cols))[i] = v;
  }}
}}
"""


def counted(text: str) -> CheckReport:
    torch.manual_seed(0)
    x, gamma, beta = torch.randn(ROWS, COLS), torch.rand(COLS), torch.randn(COLS)
    y = torch.full_like(x, float("nan"))
    arguments = {"x": x, "gamma": gamma, "beta": beta, "y": y, "cols": COLS, "eps": 1e-5}
    wanted = torch.nn.functional.layer_norm(x.double(), (COLS,), gamma.double(), beta.double(), 1e-5)
    report = check_kernel(text, arguments, ROWS, 256, expected={"y": wanted})
    assert report.clean, report.faults
    assert y.isnan().all()  # arguments are copied
    return report


def test_executed_barriers_and_memory_instructions_of_the_text() -> None:
    """SPEC A5 and A6: nine barriers a row become one; float4 executes a quarter of the memory instructions."""
    v2, v3, v4 = (
        counted(layer_norm(*a)).counts
        for a in ((REDUCTIONS["tree"], False), (REDUCTIONS["shuffle"], False), (REDUCTIONS["shuffle"], True))
    )
    assert (v2.barriers_per_block, v3.barriers_per_block, v4.barriers_per_block) == (9, 1, 1)
    # A row of 1024 floats and 8 warps: 4 trips; one load, then three loads and a store.
    assert v3.memory_instructions("global") == ROWS * 8 * 4 * 5
    assert v3.memory_instructions("global", "write", 4) == ROWS * 8 * 4
    assert v3.memory_instructions("global") == 4 * v4.memory_instructions("global")
    assert v4.memory_instructions("global", width_bytes=16) == v4.memory_instructions("global")
    # In shared memory: two writes a warp, then every thread reads 16 values.
    assert v3.memory_instructions("shared", "write") == ROWS * 8 * 2
    assert v3.memory_instructions("shared", "read") == ROWS * 8 * 16
    assert v3.exchanges == ROWS * 8 * 10
    for counts in (v2, v3, v4):
        assert counts["x"].read_bytes == 2 * 4 * ROWS * COLS
        assert counts["y"].written_bytes == 4 * ROWS * COLS


def test_a_warp_counts_as_often_as_its_busiest_lane() -> None:
    text = """__global__ void k(const float* x, float* y) {
      float sum = 0;
      for (int i = 0; i <= threadIdx.x % 32; i += 8) sum += x[i];  // 1 to 4 trips
      if (threadIdx.x % 2) atomicAdd(y, sum);
    }"""
    report = check_kernel(text, {"x": np.ones(32, "f4"), "y": np.zeros(1, "f4")}, 5, 64)
    assert report.counts.memory_instructions("global", "read") == 5 * 2 * 4
    assert report.counts.memory_instructions("global", "atomic") == 5 * 2
    accesses = [s.thread_accesses for s in report.counts.sites if s.direction == "read"]
    assert sum(accesses) == 5 * 2 * 8 * (1 + 2 + 3 + 4)


# Outside the subset


REFUSED = {
    "inline PTX": 'asm("mov.u32 %0, %laneid;" : "=r"(lane));',
    "cooperative groups": "auto g = cooperative_groups::this_grid();",
    "tensor cores": "nvcuda::wmma::fill_fragment(f, 0.0f);",
    "libcu++": "cuda::barrier<cuda::thread_scope_block> b;",
    "asynchronous copies": "__pipeline_memcpy_async(a, b, 16);",
    "textures": "y[0] = tex2D<float>(t, 0, 0);",
    "dynamic parallelism": "k<<<1, 1>>>(y);",
    "__activemask": "y[0] = __activemask();",
    "_sync": "y[0] = __shfl_down(y[0], 1);",
    "clocks": "y[0] = clock64();",
    "device-side allocation": "float* p = new float[3];",
    "does not compile": "y[0] = undeclared;",
}


@pytest.mark.parametrize("construct", REFUSED)
def test_what_is_outside_the_subset_is_refused_by_line(construct: str) -> None:
    text = f"// a comment may say asm or cooperative_groups\n__global__ void k(float* y) {{\n  {REFUSED[construct]}\n}}\n"
    with pytest.raises(CannotCheck, match=re.escape(construct)) as caught:
        compile_handwritten(text, file="mine.cu")
    assert caught.value.line == 3
    assert str(caught.value).startswith("mine.cu:3: ")
    assert "compute-sanitizer" in str(caught.value)


def test_an_unknown_header_is_refused_by_line() -> None:
    with pytest.raises(CannotCheck, match=r"mine\.cu:2.*my_math\.cuh"):
        compile_handwritten(
            '#include <math.h>\n#include "my_math.cuh"\n__global__ void k() {}', file="mine.cu"
        )


def test_which_kernel() -> None:
    two = "__global__ void first(float* y) { y[0] = 1; }\n__global__ void second(float* y) { y[0] = 2; }"
    with pytest.raises(NoSuchKernel, match="several kernels: first, second"):
        compile_handwritten(two)
    with pytest.raises(NoSuchKernel, match="--kernel second"):
        compile_handwritten(two, "secnd")
    with pytest.raises(NoSuchKernel, match="defines no __global__ function"):
        compile_handwritten("int x;")
    assert compile_handwritten(two, "second").declared.line == 2
    with pytest.raises(BadLaunch, match="--kernel 'k<256>'"):
        compile_handwritten("template <int N> __global__ void k(float* y) { y[0] = N; }")


SCALE = "__global__ void k(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 2 * x[threadIdx.x]; }"
WRONG_LAUNCHES = {
    "block=2048": ("n=4 x=randn(n) y=out(n) grid=1 block=2048", "1 to 1024 threads"),
    "no block": ("n=4 x=randn(n) y=out(n) grid=1", "no value for block"),
    "too much shared memory": ("n=4 x=randn(n) y=out(n) grid=1 block=4 shared=300000", "232448"),
    "an unknown name": ("n=4 x=randn(m) y=out(n) grid=1 block=4", "m has no value yet"),
    "an unknown fill": ("n=4 x=random(n) y=out(n) grid=1 block=4", "did you mean rand"),
    "a number for a pointer": ("n=4 x=1 y=out(n) grid=1 block=4", "x is a pointer"),
    "a buffer for a number": ("n=randn(4) x=randn(4) y=out(4) grid=1 block=4", "n is a number"),
    "a number that does not fit": (
        "n=2**31 x=randn(4) y=out(4) grid=1 block=4",
        "n is an integer of 4 bytes",
    ),
    "no pair": ("n = 4", "no pair"),
    "code": ("n=().__class__ x=randn(4) y=out(4) grid=1 block=4", "not understood"),
}


@pytest.mark.parametrize("name", WRONG_LAUNCHES)
def test_a_wrong_launch_says_what_and_what_to_do(name: str) -> None:
    line, message = WRONG_LAUNCHES[name]
    with pytest.raises(BadLaunch, match=re.escape(message)):
        _launched(line)


def _launched(line: str) -> CheckReport:
    (case,) = cases_of(f"// onepass-check: {line}\n{SCALE}", "mine.cu")
    built = compile_handwritten(SCALE)
    at = launch_of(case, built.parameters, "mine.cu")
    return check_built(built, at.arguments, at.grid, at.block, shared_bytes=at.shared_bytes)


def test_values_of_a_launch_line() -> None:
    line = "rows=2 cols=3*rows grid=(rows,1) block=32*min(rows,8) x=full(rows,cols,value=7) n=rows*cols y=out(n,offset=1)"
    (case,) = cases_of(f"// onepass-check: {line}\n", "mine.cu")
    at = launch_of(case, compile_handwritten(SCALE).parameters, "mine.cu")
    assert (at.grid, at.block, at.arguments["n"]) == ((2, 1), (64,), 12)
    assert torch.equal(at.arguments["x"], torch.full((2, 6), 7.0))
    assert at.arguments["y"].data_ptr() % 16 == 4
    assert at.arguments["y"].isnan().all()
    assert pairs_of("a=f(1, 2) b=k<1, 2>", "mine.cu") == {"a": "f(1, 2)", "b": "k<1, 2>"}


def test_both_directions_of_lanes_are_tried() -> None:
    """Threads write one element: whoever is last wins. With the seeds given, ascending and descending both occur."""
    text = "__global__ void k(int* y) { y[0] = threadIdx.x; }"
    report = check_kernel(text, {"y": torch.zeros(1, dtype=torch.int32)}, 1, 32)
    assert [f.kind for f in report.faults] == ["order-dependent"]
    assert check_kernel(text, {"y": torch.zeros(1, dtype=torch.int32)}, 1, 1).clean


def test_a_difference_is_seen() -> None:
    y = torch.ones(10)
    assert difference(y, y.double()) is None
    assert difference(y, y.double() + 1e-3) is not None
    assert difference(torch.full((10,), float("nan")), y.double()) is not None  # NaN is no pass
    assert difference(y, torch.ones(9)) is not None
    assert difference(torch.tensor([float("nan")]), torch.tensor([float("nan")])) is None


TWO_OUTPUTS = """\
__global__ void k(const float* x, float* y, float* z, int n) {
  const int i = threadIdx.x;
  if (i < n) { y[i] = 2 * x[i]; z[i] = 7; }
}
"""


def two_outputs(reference: Callable[..., Any] | None = None, **given: Any) -> CheckReport:
    values = {"x": torch.randn(32), "y": torch.zeros(32), "z": torch.zeros(32), "n": 32}
    return check_kernel(TWO_OUTPUTS, values, 1, 32, reference=reference, **given)


def test_no_output_stays_uncompared_unseen() -> None:
    """z is garbage: one tensor for two outputs says nothing of it, and is no reason to call the kernel clean."""
    with pytest.raises(BadLaunch, match=r"returns 1 results; the kernel writes y, z"):
        two_outputs(lambda x: 2 * x)
    with pytest.raises(BadLaunch, match="returns no result"):
        two_outputs(lambda x: {})
    with pytest.raises(BadLaunch, match="returns w; the kernel writes y, z"):
        two_outputs(lambda x: {"w": 2 * x})
    with pytest.raises(BadLaunch, match="returns w; the kernel writes y, z"):
        two_outputs(expected={"w": torch.zeros(32)})
    assert [f.kind for f in two_outputs(lambda x: (2 * x, 3 * x)).faults] == ["wrong-result"]
    left = two_outputs(lambda x: {"y": 2 * x})
    assert left.clean and left.compared and left.uncompared == ("z",)
    assert "z of the launch" in _compared([left])
    assert (
        "No reference" in _compared([two_outputs()])
        and _compared([two_outputs(lambda x: (2 * x, 0 * x + 7))]) == ""
    )
    # A case without a reference beside one with it.
    assert "y of the launch, z of the launch" in _compared([left, two_outputs()])


def test_one_huge_value_does_not_turn_the_check_off() -> None:
    """An outlier, and a mask's finfo.min: a mean of magnitudes would allow each other element anything."""
    text = """\
__global__ void k(const float* x, float* y, int n) {
  const int i = threadIdx.x;
  if (i < n) y[i] = i == 5 ? x[i] + 0.5f : x[i];
}
"""
    for huge in (1e6, torch.finfo(torch.float32).min):
        x = torch.randn(32)
        x[0] = huge
        report = check_kernel(text, {"x": x, "y": torch.zeros(32), "n": 32}, 1, 32, reference=lambda x: x)
        assert [f.kind for f in report.faults] == ["wrong-result"] and "1 of 32" in report.faults[0].detail


def test_declared_and_asked_for_shared_memory_count_together() -> None:
    text = """\
__global__ void k(float* y) {
  extern __shared__ float own[];
  __shared__ float fixed[8192];
  fixed[threadIdx.x] = 1;
  own[threadIdx.x] = 2;
  __syncthreads();
  y[threadIdx.x] = fixed[31 - threadIdx.x] + own[threadIdx.x];
}
"""
    y = {"y": torch.zeros(32)}
    assert check_kernel(text, y, 1, 32, shared_bytes=232448 - 32768).clean
    with pytest.raises(BadLaunch, match="232452 bytes together"):
        check_kernel(text, y, 1, 32, shared_bytes=232452 - 32768)


def test_a_fused_multiply_add_of_16_bits_is_rounded_once() -> None:
    """259 and 2049 lie between two numbers of their types; what is added says which one, and fp32 or fp64 would lose it."""
    text = """\
#include <cuda_bf16.h>
#include <cuda_fp16.h>
__global__ void k(const float* c, float* brain, float* half) {
  const int i = threadIdx.x;
  const auto b = __float2bfloat16(c[i]);
  brain[i] = __bfloat162float(__hfma(__float2bfloat16(7.0f), __float2bfloat16(37.0f), b));
  half[i] = __half2float(__hfma(__float2half(3.0f), __float2half(683.0f), __float2half(c[i])));
}
"""
    c = [2.0**-14, -(2.0**-14), 2.0**-60, -(2.0**-60), 0.0]
    brain = torch.tensor([260.0, 258.0, 260.0, 258.0, 260.0])
    half = torch.tensor([2050.0, 2048.0, 2048.0, 2048.0, 2048.0])  # fp16 has no 2^-60
    out = {"brain": torch.zeros(5), "half": torch.zeros(5)}
    report = check_kernel(
        text, {"c": torch.tensor(c), **out}, 1, 5, expected={"brain": brain, "half": half}, rtol=0
    )
    assert report.clean, report.faults


def test_every_kernel_of_the_ladders_has_a_case() -> None:
    """A file of several kernels is checked in all of them."""
    for path in sorted(HERE.glob("*/*.cu")):
        text = path.read_text()
        kernels = {k.name for k in kernels_of(without_comments(text))}
        cases = cases_of(text, str(path))
        assert {c.pairs.get("kernel", next(iter(kernels))) for c in cases} == kernels, path.name


@pytest.mark.parametrize("name", ["f1_three_kernels", "f2_gelu_add_then_layer_norm"])
def test_a_ladders_file_of_several_kernels_is_clean(name: str) -> None:
    path = HERE / "fusion" / f"{name}.cu"
    reports = checked(path)
    assert all(r.clean and not r.uncompared for r in reports)
    broken = (
        path.read_text()
        .replace("gelu_of(x.w)", "gelu_of(x.z)")
        .replace("gelu(x.w)", "gelu(x.z)")
        .replace("a.w + r.w", "a.w - r.w")
    )
    wrong = [r.case for r in checked(path, broken) if not r.clean]
    assert wrong == (["gelu", "add"] if name.startswith("f1") else ["gelu_then_add"])


def test_a_generated_kernel_is_clean_and_its_prelude_is_no_refusal() -> None:
    from harness.shipping import H200, Emulation, captured
    from harness.shipping import layer_norm as operator

    emulation = Emulation(captured(torch.float32, 1024, (operator,)), H200)
    inputs = [torch.randn(s) for s in ((4, 1024), (4, 1024), 1024, 1024)]
    (source,) = emulation.sources(inputs).values()
    values = {
        "x0": inputs[0] + 1000,
        "x1": inputs[2],
        "x2": inputs[3],
        "y0": torch.full((4, 1024), float("nan")),
    }
    sizes = {
        "x0_o0": 1024,
        "x1_o0": 0,
        "x2_o0": 0,
        "y0_o0": 1024,
        "n0": 4,
        "rows": 4,
        "cols": 1024,
        "zero": 0,
    }
    wanted = torch.nn.functional.layer_norm(
        values["x0"].double(), (1024,), inputs[2].double(), inputs[3].double()
    )
    # A mean of 1000 is off by 6e-5 in fp32, which the largest weights make 2e-4 of.
    report = check_kernel(source.text, values | sizes, 4, 128, expected={"y0": wanted}, rtol=1e-3)
    assert report.clean, report.faults
    assert report.counts.barriers_per_block == 2
    broken = source.text.replace("group.sum(v1_a)", "v1_a")
    faults = check_kernel(broken, values | sizes, 4, 128, expected={"y0": wanted}, rtol=1e-3).faults
    assert [f.kind for f in faults] == ["wrong-result"]


# The command


Ended = tuple[int, str, str]


@pytest.fixture
def onepass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Exit status and both outputs; in this process, since importing torch takes longer than a check."""

    def run_it(*words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["onepass", "check", *map(str, words)])
        try:
            status = app.run()
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return run_it


def test_the_command_ends_0_1_or_2(onepass: Callable[..., Ended]) -> None:
    status, text, _ = onepass(CORPUS / "right" / "block_reduce.cu", "--case", "large")
    assert status == 0
    assert "row_sum is clean" in text.splitlines()[0]
    path = CORPUS / "wrong" / "shuffle_under_divergent_branch.cu"
    status, text, shown = onepass(path, "--json")
    assert status == 1
    document = json.loads(text)
    assert (document["schema"], document["clean"]) == ("onepass.check/1", False)
    (fault,) = document["cases"][0]["faults"]
    assert (fault["kind"], fault["line"]) == ("missing-lane", next(iter(marks(path.read_text()))))
    assert f"{path}:{fault['line']}" in shown
    status, text, shown = onepass(CORPUS / "wrong" / "no_such.cu")
    assert (status, text) == (2, "")
    assert "no such file" in shown


def test_options_stand_for_lines(tmp_path: Path, onepass: Callable[..., Ended]) -> None:
    file = tmp_path / "mine.cu"
    file.write_text("#define TWO FACTOR\n" + SCALE.replace("2 *", "TWO *"))
    (tmp_path / "right.py").write_text("def twice(x):\n    return 2 * x\n")
    words = ("--args", "n=40 x=randn(n) y=out(n)", "--grid", 1, "--ref", tmp_path / "right.py:twice")
    assert onepass(file, *words, "--block", "n", "-D", "FACTOR=2")[0] == 0
    assert onepass(file, *words, "--block", "n", "-D", "FACTOR=3")[0] == 1
    status, text, _ = onepass(file, *words, "--block", 32, "-D", "FACTOR=2")
    assert status == 1
    assert "8 of 40 elements are off" in text
    assert onepass(file, *words, "--block", "n")[0] == 2


def test_errors_survive_between_processes() -> None:
    import pickle

    errors: list[OnepassError] = [
        CannotCheck("a.cu", 3, "asm", "inline PTX", "why"),
        NoSuchKernel("a.cu", "k", ("f",), "f"),
        BadLaunch("a.cu", "problem", "remedy"),
    ]
    assert [str(pickle.loads(pickle.dumps(e))) for e in errors] == [str(e) for e in errors]


AFFINE = """\
// onepass-check: n=8 x=randn(n) y=out(n) grid=1 block=8
__global__ void twice(const float* x, float* y, int n) {
#if __CUDA_ARCH__ >= 800
  y[threadIdx.x] = 2.0f * x[threadIdx.x];
#else
  y[threadIdx.x] = 3.0f * x[threadIdx.x];
#endif
}
"""
REFERENCES = """\
def twice(x): return 2 * x
def raises(x): raise ValueError("oops")
def none(x): return None
def many(x): return x, x
def other(x): return {"z": x}
"""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--ref", "refs.py:twice"), 0, "clean"),
        (("--ref", "refs.py:twice", "--arch", "sm_70"), 1, "wrong-result"),
        (("--arch", "seventy"), 2, "sm_80"),
        (("--ref", "refs.py:raises"), 2, "raised ValueError: oops"),
        (("--ref", "refs.py:none"), 2, "returns NoneType"),
        (("--ref", "refs.py:many"), 2, "returns 2 results"),
        (("--ref", "refs.py:other"), 2, "the kernel writes y"),
        (("--args", "n=9**9**9"), 2, "too large"),
        (("--args", "x=randn(10**12)"), 2, "too large"),
        (("--grid", "(1,70000)"), 2, "at most"),
        (("--grid", "99999999"), 2, "too many"),
    ],
)
def test_misuse_is_said_and_ends_2(
    words: tuple[str, ...],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    onepass: Callable[..., Ended],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "refs.py").write_text(REFERENCES)
    (tmp_path / "k.cu").write_bytes(b"\xef\xbb\xbf" + AFFINE.replace("\n", "\r\n").encode())
    ended, out, err = onepass(*words, "k.cu")
    assert ended == code, out + err
    assert said in out + err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("#define KERNEL __global__ void\nKERNEL k(float* x) { x[0] = 1; }\n", 1),
        ("#define MAKE(n) \\\n  __global__ void n(float* x) { x[0] = 1; }\nMAKE(k)\n", 1),
    ],
)
def test_a_kernel_that_a_macro_makes_is_refused_by_line(text: str, line: int) -> None:
    with pytest.raises(CannotCheck, match="a macro makes") as refused:
        compile_handwritten(text, "k")
    assert refused.value.line == line
