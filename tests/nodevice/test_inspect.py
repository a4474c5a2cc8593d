"""`onepass inspect`: every kind of file, held to what the compiler and the disassembler's own text say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from onepass.analysis.machine_code import Access, read_ptx
from onepass.analysis.resources import own_shared_bytes, resources_by_kernel, usage_by_kernel
from onepass.errors import BadUserFile, NoSuchArchitecture
from onepass.insight import binaries
from onepass.insight.inspect import KernelFacts, inspect_file
from onepass.runtime import disassemble
from onepass.runtime.nvrtc import compile_text, compile_with_ptx

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")

# What SPEC's text compares: the same copy by single floats and by float4, and one with shared memory and a shuffle.
COPIES = """
extern "C" __global__ void scalar(const float* __restrict__ x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}
extern "C" __global__ void vector(const float4* __restrict__ x, float4* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}
extern "C" __global__ void __launch_bounds__(128) mixed(const float* x, float* y) {
  __shared__ float s[256];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = __shfl_down_sync(~0u, __expf(s[255 - threadIdx.x]), 1);
}
template <int N> __global__ void scaled(float* x) { x[threadIdx.x] *= N; }
template __global__ void scaled<3>(float*);
"""

# One kernel whose values don't fit in its registers, and one whose array is indexed at run time: a stack frame, no spill.
STACKS = """
extern "C" __global__ void __launch_bounds__(1024, 2) heavy(const float* x, float* y, int n) {
  float a[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) a[i] = x[threadIdx.x + i * 1024];
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int i = 0; i < 96; ++i) a[i] = a[i] * a[(i + 37) % 96] + a[(i + 11) % 96];
  }
#pragma unroll
  for (int i = 0; i < 96; ++i) y[threadIdx.x + i * 1024] = a[i];
}
extern "C" __global__ void indexed(const float* x, float* y, const int* at, int n) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) a[i] = x[threadIdx.x * 64 + i];
  for (int k = 0; k < n; ++k) y[k] = a[at[k] & 63];
}
"""


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("copies") / "copies.cu"
    path.write_text(COPIES)
    return path


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stacks") / "stacks.cu"
    path.write_text(STACKS)
    return path


@cache
def once(path: Path, arch: str) -> dict[str, KernelFacts]:
    """A source that no test changes, inspected once."""
    return found(path, arch)


def found(path: Path, *archs: str, **options: Any) -> dict[str, KernelFacts]:
    return {k.name: k for k in inspect_file(path, archs, **options).kernels}


def loads(k: KernelFacts) -> dict[tuple[str, str, int], int]:
    assert k.code
    return {(a.space, a.kind, a.bits): n for a, n in k.code.memory.items()}


def without_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (binaries, disassemble):
        monkeypatch.setattr(module, "tools", lambda name: [])


@pytest.mark.parametrize("arch", ARCHS)
def test_a_scalar_copy_and_a_vector_copy_differ_by_width_and_not_by_number(copies: Path, arch: str) -> None:
    kernels = once(copies, arch)
    assert loads(kernels["scalar"]) == {("global", "load", 32): 1, ("global", "store", 32): 1}
    assert loads(kernels["vector"]) == {("global", "load", 128): 1, ("global", "store", 128): 1}
    opcodes = {
        n: [i.opcode for i in k.code.instructions if i.name == "LDG"] for n, k in kernels.items() if k.code
    }
    assert re.fullmatch(r"LDG\.E(\.CONSTANT)?(\.SYS)?", opcodes["scalar"][0])
    assert re.fullmatch(r"LDG\.E\.128(\.CONSTANT)?(\.SYS)?", opcodes["vector"][0])
    assert (kernels["scalar"].code.bytes_in_flight, kernels["vector"].code.bytes_in_flight) == (4, 16)  # type: ignore[union-attr]


@pytest.mark.parametrize("arch", ARCHS)
def test_shared_memory_barriers_shuffles_special_functions_and_threads(copies: Path, arch: str) -> None:
    k = once(copies, arch)["mixed"]
    assert k.code
    assert (k.shared_bytes, k.barriers, k.threads, k.threads_from) == (1024, 1, 128, "launch bounds")
    assert (k.code.barriers, k.code.shuffles, k.code.special) == (1, 1, 1)
    assert {(s, b) for s, _, b in loads(k)} == {("global", 32), ("shared", 32)}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_counts_are_those_of_the_disassemblers_text(stacks: Path, tmp_path: Path, arch: str) -> None:
    cubin, _ = compile_text(STACKS, "stacks", arch)
    (tmp_path / "stacks.cubin").write_bytes(cubin)
    tool = binaries.tool("nvdisasm")
    assert tool
    text = subprocess.run(
        [tool, "-c", str(tmp_path / "stacks.cubin")], capture_output=True, text=True, check=True
    ).stdout
    parts = re.split(r"\n\.text\.(\w+):", text)[1:]
    for name, body in zip(*[iter(parts)] * 2, strict=True):
        printed = Counter(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9_]+)", body))
        k = once(stacks, arch)[name]
        assert k.code
        ours = Counter(i.name for i in k.code.instructions)
        assert (
            printed["NOP"] >= 0 and ours["BRA"] == printed["BRA"] - 1
        )  # the jump to itself that ends a function
        for n in ("LDG", "STG", "LDL", "STL", "FFMA", "EXIT"):
            assert ours[n] == printed[n], n


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_stack_frame_is_no_spill(stacks: Path, arch: str) -> None:
    kernels = once(stacks, arch)
    heavy, indexed = kernels["heavy"], kernels["indexed"]
    assert heavy.spill_store_bytes and heavy.spill_load_bytes and heavy.stack_bytes
    assert heavy.spill_store_bytes != heavy.spill_load_bytes != heavy.stack_bytes
    assert (indexed.spill_store_bytes, indexed.spill_load_bytes, indexed.stack_bytes) == (0, 0, 256)
    assert indexed.to_dict()["local_accesses"] > 16  # what a count of local accesses would call spills


@pytest.mark.parametrize(
    ("arch", "holds"), [("sm_75", 1024), ("sm_89", 1024), ("sm_90", 2048), ("sm_120", 2048)]
)
def test_what_a_cubin_says_of_shared_memory_is_made_the_same_on_all(
    tmp_path: Path, arch: str, holds: int
) -> None:
    cubin, log = compile_text(COPIES, "copies", arch)
    file = tmp_path / "copies.cubin"
    file.write_bytes(cubin)
    tool = binaries.tool("cuobjdump")
    assert tool
    text = subprocess.run([tool, "-res-usage", str(file)], capture_output=True, text=True, check=True).stdout
    assert f"SHARED:{holds}" in text
    assert (
        usage_by_kernel(text, arch)["mixed"].shared_bytes
        == resources_by_kernel(log)["mixed"].shared_bytes
        == 1024
    )
    assert own_shared_bytes(0, arch) == 0
    assert found(file)["mixed"].shared_bytes == 1024


def test_sm_70_is_counted_in_ptx_and_says_so(copies: Path) -> None:
    k = found(copies, "sm_70")["vector"]
    assert k.code and k.code.origin == "PTX"
    assert loads(k) == {("global", "load", 128): 1, ("global", "store", 128): 1}
    assert k.registers and k.spill_bytes == 0
    assert k.code.bytes_in_flight is None
    assert any("Counted in PTX" in m for m in k.missing)


def test_source_lines_are_those_of_the_file(copies: Path) -> None:
    k = once(copies, "sm_90")["mixed"]
    assert k.code
    line = COPIES.splitlines().index("  __syncthreads();") + 1
    assert any(i.name == "BAR" for i in k.code.lines[("copies.cu", line)])
    assert not any(i.name == "BAR" for place, code in k.code.lines.items() if place[1] != line for i in code)


def test_occupancy_its_limit_and_its_steps(copies: Path) -> None:
    k = replace(once(copies, "sm_80")["mixed"], registers=128, threads=256, shared_bytes=0)
    assert (k.occupancy, k.limit) == (0.25, "registers")
    assert {(c["direction"], c["value"]) for c in k.to_dict()["cliffs"] if c["resource"] == "registers"} == {
        ("down", 80),
        ("up", 129),
    }
    assert replace(k, registers=32, dynamic_shared_bytes=60_000).limit == "shared memory"
    one = replace(k, registers=16, threads=1)
    assert one.limit == "blocks"
    assert (one.occupancy, one.to_dict()["thread_occupancy"]) == (0.5, 32 / 2048)


def test_both_layouts_of_ptxas_are_read() -> None:
    nvrtc = """ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
ptxas         .     1552 bytes stack frame, 1660 bytes spill stores, 1780 bytes spill loads
ptxas info    : Function properties for helper
ptxas         .     40 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 32 registers, used 2 barriers, 1552 bytes cumulative stack size, 4096 bytes smem
"""
    nvcc = nvrtc.replace("ptxas         .     ", "    ")
    for text in (nvrtc, nvcc):
        r = resources_by_kernel(text)["k"]
        assert (r.registers, r.stack_bytes, r.spill_store_bytes, r.spill_load_bytes) == (32, 1552, 1660, 1780)
        assert (r.spill_bytes, r.shared_bytes, r.barriers) == (3440, 4096, 2)


def test_ptx_widths_and_spaces() -> None:
    code = read_ptx(""".visible .entry k(.param .u64 p) {
  .reg .b32 %r<9>;
  ld.param.u64 %rd1, [p];
  ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];
  @%p1 ld.global.v2.u16 {%rs1, %rs2}, [%rd1];
  st.shared.b16 [%r1], %rs1;
  red.global.add.f32 [%rd1], %f1;
  ld.global.L1::no_allocate.v4.b64 {%rd2, %rd3, %rd4, %rd5}, [%rd1];
  ex2.approx.ftz.f32 %f5, %f1;
  bar.sync 0;
  shfl.sync.down.b32 %r1, %r2, 1, 31, -1;
  ret;
}""")["k"]
    assert code.memory == {
        Access("global", "load", 256): 1,
        Access("global", "load", 128): 1,
        Access("global", "load", 32): 1,
        Access("shared", "store", 16): 1,
        Access("global", "atomic", 32): 1,
    }
    assert (code.special, code.barriers, code.shuffles, code.total) == (1, 1, 1, 10)


def test_headers_and_folders(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "factor.cuh").write_text("#define FACTOR 2.0f\n")
    source = tmp_path / "half.cu"
    source.write_text(
        '#include <cuda_fp16.h>\n#include "factor.cuh"\n'
        'extern "C" __global__ void k(__half2* x) { x[threadIdx.x] = __hmul2(x[threadIdx.x], __float2half2_rn(FACTOR)); }\n'
    )
    with pytest.raises(BadUserFile, match="--include"):
        inspect_file(source, ["sm_90"])
    assert loads(found(source, "sm_90", include=[tmp_path / "elsewhere"])["k"])[("global", "load", 32)] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__global__ void k(float* x) {\n  x[0] = y;\n}\n", r">\s+2 |.*identifier \"y\" is undefined"),
        ("template <int N> __global__ void k() {}\n", "holds no kernel"),
        (
            'extern "C" __global__ void k() { __shared__ volatile float s[65536]; s[threadIdx.x] = 1; }\n',
            r"too much shared data[\s\S]*48 KiB",
        ),
        ("#include <cstdio>\n__global__ void k() {}\n", r">\s+1 \|[\s\S]*keep host code"),
    ],
)
def test_a_bad_source_is_told_with_its_lines(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "bad.cu"
    file.write_text(text)
    with pytest.raises(BadUserFile, match=said) as raised:
        inspect_file(file, ["sm_90"])
    assert "fault of onepass" not in str(raised.value)


def test_what_can_not_be_found_is_told_with_what_can(copies: Path, tmp_path: Path) -> None:
    with pytest.raises(BadUserFile, match="Did you mean scaled or scalar"):
        inspect_file(copies, ["sm_90"], kernel="scaler")
    assert [k.name for k in inspect_file(copies, ["sm_90"], kernel="scaled").kernels] == [
        "_Z6scaledILi3EEvPf"
    ]
    with pytest.raises(NoSuchArchitecture, match="sm_90"):
        inspect_file(copies, ["sm_91"])
    with pytest.raises(BadUserFile, match="no such file"):
        inspect_file(tmp_path / "absent.cu", [])
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(BadUserFile, match="nothing that holds GPU code"):
        inspect_file(tmp_path / "notes.txt", [])
    with pytest.raises(BadUserFile, match="no entry of Triton's cache"):
        inspect_file(tmp_path, [])
    (tmp_path / "k.cubin").write_bytes(compile_text(COPIES, "copies", "sm_80")[0])
    with pytest.raises(BadUserFile, match="is for sm_80, not for sm_90"):
        inspect_file(tmp_path / "k.cubin", ["sm_90"])


def test_without_tools_it_says_what_is_missing(
    copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_tools(monkeypatch)
    k = found(copies, "sm_90")["mixed"]
    assert k.registers and k.code and k.code.origin == "PTX"
    assert "nvdisasm is missing: pip install" in " ".join(k.missing)
    library = tmp_path / "library.so"
    library.write_bytes(b"\x7fELF" + bytes(60))
    with pytest.raises(BadUserFile, match="without cuobjdump"):
        inspect_file(library, [])


PLAIN = 'extern "C" __global__ void plain(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }\n'


def test_ptx_is_counted_without_a_disassembler_whatever_the_text_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_tools(monkeypatch)
    file = tmp_path / "plain.cu"
    file.write_text(PLAIN)
    k = found(file, "sm_90")["plain"]
    assert k.code and k.code.origin == "PTX" and k.widest_bits("load") == 32
    assert (k.threads, k.threads_from) == (256, "assumed")


@pytest.mark.parametrize("where", ["macro", "header"])
def test_launch_bounds_count_wherever_they_were_written(tmp_path: Path, where: str) -> None:
    bounds = "#define BOUNDS __launch_bounds__(96)\n"
    file = tmp_path / "plain.cu"
    if where == "header":
        (tmp_path / "bounds.h").write_text(bounds)
        file.write_text('#include "bounds.h"\n' + PLAIN.replace("void", "void BOUNDS", 1))
    else:
        file.write_text(PLAIN.replace("void", "void MOST", 1))
        file.write_text(
            "#define JOIN(a, b) a##b\n#define MOST JOIN(__launch, _bounds__)(96)\n" + file.read_text()
        )
    k = found(file, "sm_90")["plain"]
    assert (k.threads, k.threads_from) == (96, "launch bounds")


def test_variants_of_an_architecture(tmp_path: Path) -> None:
    file = tmp_path / "plain.cu"
    file.write_text(PLAIN)
    for arch in ("sm_90a", "sm_103f"):
        k = found(file, arch)["plain"]
        assert (k.arch, k.registers is None, k.occupancy) == (arch, False, 1.0)
    for arch in ("sm_89a", "sm_90f", "sm_90b", "sm_a", "a", "sm_91a"):
        with pytest.raises(NoSuchArchitecture):
            inspect_file(file, [arch])
    cubin, ptx, _ = compile_with_ptx(PLAIN, "plain", "sm_90a")
    (tmp_path / "k.cubin").write_bytes(cubin)
    assert found(tmp_path / "k.cubin", "sm_90a").keys() == {"plain"}
    with pytest.raises(BadUserFile, match="is for sm_90, not for sm_100a"):
        inspect_file(tmp_path / "k.cubin", ["sm_100a"])
    (tmp_path / "a.ptx").write_text(ptx)
    assert found(tmp_path / "a.ptx", "sm_90a")["plain"].arch == "sm_90a"
    with pytest.raises(BadUserFile, match="sm_90a alone, not for sm_100"):
        inspect_file(tmp_path / "a.ptx", ["sm_100"])


def test_ptx_for_a_family_goes_to_the_family(tmp_path: Path) -> None:
    file = tmp_path / "f.ptx"
    file.write_text(compile_with_ptx(PLAIN, "plain", "sm_100f")[1])
    for arch in ("sm_100f", "sm_103", "sm_103a"):
        assert found(file, arch)["plain"].arch == arch
    with pytest.raises(BadUserFile, match="sm_100f and its family, not for sm_120"):
        inspect_file(file, ["sm_120"])


def test_an_entry_of_tritons_cache_is_counted_in_its_ptx_without_a_disassembler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cubin, ptx, _ = compile_with_ptx(PLAIN, "plain", "sm_90a")
    (tmp_path / "plain.cubin").write_bytes(cubin)
    (tmp_path / "plain.ptx").write_text(ptx)
    (tmp_path / "plain.json").write_text(json.dumps({"name": "plain", "num_warps": 4, "shared": 0}))
    without_tools(monkeypatch)
    for arch in ("sm_90", "sm_90a"):
        code = found(tmp_path, arch)["plain"].code
        assert code and code.origin == "PTX"


def test_an_entry_of_tritons_cache(tmp_path: Path) -> None:
    """Of the form that Triton 3.9 writes: NAME.cubin and NAME.json beside a file that lists the group."""
    (tmp_path / "mixed.cubin").write_bytes(compile_text(COPIES, "copies", "sm_90")[0])
    described = {"name": "mixed", "num_warps": 4, "shared": 2048, "target": {"backend": "cuda", "arch": 90}}
    (tmp_path / "mixed.json").write_text(json.dumps(described))
    (tmp_path / "__grp__mixed.json").write_text(json.dumps({"child_paths": {}}))
    for path in (tmp_path, tmp_path / "mixed.cubin", tmp_path / "mixed.json"):
        k = found(path)["mixed"]
        assert (k.threads, k.dynamic_shared_bytes, k.arch, k.spill_bytes) == (128, 2048, "sm_90", None)


needs_nvcc = pytest.mark.skipif(
    shutil.which("nvcc") is None, reason="needs nvcc to make a library with a fat binary"
)


@needs_nvcc
def test_a_library_and_a_fat_binary(tmp_path: Path) -> None:
    source = tmp_path / "extension.cu"
    source.write_text(
        COPIES
        + 'extern "C" void run(const float4* x, float4* y, int n) { vector<<<(n + 255) / 256, 256>>>(x, y, n); }\n'
    )
    codes = ["-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=[sm_90,compute_90]"]
    library, fat = tmp_path / "extension.so", tmp_path / "extension.fatbin"
    for options in (["-shared", "-Xcompiler", "-fPIC", "-o", str(library)], ["-fatbin", "-o", str(fat)]):
        subprocess.run(["nvcc", *codes, *options, str(source)], check=True, capture_output=True)
    for path in (library, fat):
        kernels = inspect_file(path, []).kernels
        assert {k.arch for k in kernels} == {"sm_80", "sm_90"}
        for k in kernels:
            if k.name == "vector":
                assert loads(k) == {("global", "load", 128): 1, ("global", "store", 128): 1}
        for k in inspect_file(
            path, ["sm_86"], kernel="mixed"
        ).kernels:  # no PTX: a device takes machine code first
            assert k.arch == "sm_86" and "sm_86 runs the machine code for sm_80." in k.missing
        with pytest.raises(BadUserFile, match="It holds sm_80, sm_90, PTX for sm_90"):
            inspect_file(path, ["sm_75"])
    for k in inspect_file(library, ["sm_100"], kernel="mixed").kernels:  # from the PTX, assembled
        assert (k.arch, k.spill_bytes, k.threads) == ("sm_100", 0, 128)


# The verb

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    import sys

    from onepass.cli import main

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["onepass", *arguments])
        try:
            code = main()
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_verdict_stands_before_the_table_and_json_is_one_document(copies: Path, invoke: Invoke) -> None:
    code, out, _ = invoke("inspect", str(copies), "--arch", "sm_86,sm_90", "--kernel", "vector")
    assert code == 0
    assert out.startswith("vector on sm_86, sm_90: no spills; occupancy")
    code, out, err = invoke("inspect", str(copies), "--arch", "sm_86,sm_90", "--json")
    document = json.loads(out)
    assert document["schema"] == "onepass.inspect/1" and document["verdict"] in err
    assert len(document["kernels"]) == 8


@pytest.mark.parametrize(
    ("gate", "code", "said"),
    [
        ("spill_bytes==0, registers<=64, occupancy>=0.5", 0, ""),
        ("registers<=4", 1, "gate broken: scalar on sm_90: registers is"),
        ("", 2, "it has no rule"),
        ("registers", 2, "'registers' is no rule"),
        ("register<=64", 2, "Did you mean registers"),
        ("registers<=64, attained>=0.9", 2, "has no attained"),
    ],
)
def test_gates(copies: Path, invoke: Invoke, gate: str, code: int, said: str) -> None:
    got, out, err = invoke("inspect", str(copies), "--arch", "sm_90", "--kernel", "scalar", "--gate", gate)
    assert got == code, err
    assert said in out + err


def test_a_gate_on_what_a_cubin_does_not_tell_is_an_error(tmp_path: Path, invoke: Invoke) -> None:
    file = tmp_path / "k.cubin"
    file.write_bytes(compile_text(COPIES, "copies", "sm_90")[0])
    code, _, err = invoke("inspect", str(file), "--gate", "spill_bytes==0")
    assert code == 2 and "has no spill_bytes" in err


def test_a_generated_kernel(tmp_path: Path, invoke: Invoke) -> None:
    file = tmp_path / "user.py"
    file.write_text(
        "import torch\ndef f(x): return torch.nn.functional.layer_norm(x, (1024,))\n"
        "def example_inputs(): return torch.randn(64, 1024)\n"
    )
    code, out, err = invoke(
        "inspect", f"{file}:f", "--arch", "sm_80,sm_90", "--json", "--gate", "spill_bytes==0"
    )
    assert code == 0, err
    kernels = json.loads(out)["kernels"]
    assert [k["arch"] for k in kernels] == ["sm_80", "sm_90"]
    assert all(k["widest_load_bits"] == k["widest_store_bits"] == 128 for k in kernels)
    assert all(k["threads_from"] == "its schedule" for k in kernels)


def test_diff_of_two_inspections(stacks: Path, invoke: Invoke, tmp_path: Path) -> None:
    roomy = tmp_path / "roomy.cu"
    roomy.write_text(STACKS.replace("__launch_bounds__(1024, 2)", "__launch_bounds__(1024, 1)"))
    documents = []
    for name, file in (("a", stacks), ("b", roomy)):
        _, out, _ = invoke(
            "inspect", str(file), "--arch", "sm_90", "--block", "256", "--kernel", "heavy", "--json"
        )
        documents.append(tmp_path / f"{name}.json")
        documents[-1].write_text(out)
    a, b = map(str, documents)
    code, out, _ = invoke("diff", a, b)
    # Twice the registers: fewer spills, half the occupancy, which is no verdict.
    assert code == 0 and out.startswith("better: spill_bytes, local_accesses; time it")
    assert "occupancy 1 → 0.5" in out
    assert invoke("diff", a, a)[1].startswith("cannot tell: no quantity differs")
    worse = json.loads(documents[0].read_text())
    worse["kernels"][0]["spill_bytes"] += 4
    (tmp_path / "worse.json").write_text(json.dumps(worse))
    assert invoke("diff", a, str(tmp_path / "worse.json"))[0] == 1
    assert invoke("diff", str(tmp_path / "worse.json"), a)[1].startswith("better")
    worse["schema"] = "onepass.ladder/1"
    (tmp_path / "other.json").write_text(json.dumps(worse))
    code, out, _ = invoke("diff", a, str(tmp_path / "other.json"))
    assert code == 2 and out.startswith("not comparable")
    assert invoke("diff", a, str(tmp_path / "absent.json"))[0] == 2
