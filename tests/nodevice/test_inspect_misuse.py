"""`onepass inspect`, `occupancy` and `diff` on what breaks others: damaged, foreign and huge inputs. No traceback, ever."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onepass.analysis.occupancy import cliffs, resident
from onepass.cli import main
from onepass.device import architectures
from onepass.errors import BadUserFile
from onepass.insight import binaries
from onepass.insight.inspect import Inspection, inspect_file, picked, short
from onepass.runtime.nvrtc import compile_text, compile_with_ptx

KERNEL = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 2; }\n'
LADDER = Path(__file__).parents[2] / "src/onepass/ladder/layer_norm"

Invoke = Callable[..., tuple[int, str]]


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["onepass", *map(str, arguments)])
        try:
            code = main()
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else 0
        captured = capsys.readouterr()
        said = captured.out + captured.err
        assert "Traceback" not in said
        return code, said

    return run


@pytest.fixture(scope="module")
def cubin() -> bytes:
    return compile_text(KERNEL, "k", "sm_90")[0]


@pytest.fixture(scope="module")
def ptx() -> str:
    return compile_with_ptx(KERNEL, "k", "sm_90")[1]


@pytest.mark.parametrize("name", ["caché.cu", '日本 "x".cu'])
def test_names_that_nvdisasm_garbles(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(KERNEL)
    (k,) = inspect_file(tmp_path / name, ["sm_90"]).kernels
    assert k.code and k.code.origin == "machine code" and k.code.lines


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", "// café\n".encode("latin-1"), b"// \xff\xfe\r\n"])
def test_bytes_that_are_no_utf_8_in_comments(tmp_path: Path, before: bytes) -> None:
    (tmp_path / "k.cu").write_bytes(before + KERNEL.encode())
    assert inspect_file(tmp_path / "k.cu", ["sm_90"]).kernels


@pytest.mark.parametrize("suffix", [".cu", ".ptx"])
def test_what_is_no_text(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"k{suffix}").write_bytes(KERNEL.encode("utf-16"))
    with pytest.raises(BadUserFile, match="is no text"):
        inspect_file(tmp_path / f"k{suffix}", ["sm_90"])


@pytest.mark.parametrize("share", [0.02, 0.3, 0.99])
@pytest.mark.parametrize("tools", [True, False])
def test_a_cubin_cut_off(
    tmp_path: Path, cubin: bytes, share: float, tools: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not tools:
        monkeypatch.setattr(binaries, "tools", lambda name: [])
    (tmp_path / "k.cubin").write_bytes(cubin[: int(len(cubin) * share)])
    with pytest.raises(BadUserFile, match="cut off"):
        inspect_file(tmp_path / "k.cubin", [])


def test_a_cubin_with_other_bytes_inside(tmp_path: Path, cubin: bytes) -> None:
    (tmp_path / "k.cubin").write_bytes(cubin[:200] + bytes(range(256)) * 8 + cubin[2248:])
    with pytest.raises(BadUserFile, match="does not read"):
        inspect_file(tmp_path / "k.cubin", [])


@pytest.mark.skipif(binaries.tool("ptxas") is None, reason="needs an assembler to find a fault in PTX")
def test_ptx_with_a_fault_is_told_and_ptx_of_a_later_version_is_counted(tmp_path: Path, ptx: str) -> None:
    file = tmp_path / "k.ptx"
    file.write_text(ptx[: len(ptx) * 2 // 3])
    with pytest.raises(BadUserFile, match=r"does not assemble for sm_90: .* line \d+"):
        inspect_file(file, [])
    file.write_text(ptx.replace(".version ", ".version 9", 1))
    (k,) = inspect_file(file, []).kernels
    assert k.registers is None and k.code and k.code.origin == "PTX"
    file.write_text(ptx.replace("sm_90", "sm_90a", 1))
    with pytest.raises(BadUserFile, match="for sm_90a alone, not for sm_100"):
        inspect_file(file, ["sm_100"])


def test_an_entry_of_triton_with_other_types(tmp_path: Path, cubin: bytes) -> None:
    (tmp_path / "k.cubin").write_bytes(cubin)
    (tmp_path / "k.json").write_text(json.dumps({"num_warps": "4", "shared": None}))
    with pytest.raises(BadUserFile, match="num_warps='4'"):
        inspect_file(tmp_path, [])


def test_names_that_no_file_can_have(tmp_path: Path, invoke: Invoke) -> None:
    for name in ("x" * 300 + ".cu", "bad\0name.cu", ":ok:", tmp_path / "absent.cubin"):
        code, said = invoke("inspect", name)
        assert code == 2 and str(name)[:4] in said  # ":ok:" is no emoji
    (tmp_path / "k.cu").write_text(KERNEL)
    code, said = invoke("inspect", tmp_path / "k.cu", "--include", tmp_path / "none")
    assert code == 2 and "no such folder of headers" in said
    code, said = invoke("inspect", "user.py:f", "--block", "64")
    assert code == 2 and "has its own block" in said


def test_kernels_are_found_by_the_names_that_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "k.cu"
    file.write_text(
        "template <class T> __global__ void t(T* x) { *x = T(1); }\n"
        "template __global__ void t<float>(float*);\ntemplate __global__ void t<int>(int*);\n"
        "namespace a { __global__ void q(int* x) { *x = 1; } }\nnamespace { __global__ void h(int* x) { *x = 1; } }\n"
        "__global__ void o(int* x) { *x = 1; }\n__global__ void o(float* x) { *x = 1; }\n"
    )
    kernels = inspect_file(file, ["sm_90"]).kernels
    for k in kernels:
        assert k in picked("k.cu", kernels, short(k.name))
    assert {short(k.name) for k in kernels} == {"t<float>", "t<int>", "a::q", "(anonymous namespace)::h", "o"}
    overloads = Inspection("k.cu", "CUDA C++ source", picked("k.cu", kernels, "o"))
    assert len(overloads.records()) == len(overloads.kernels) == 2  # a gate judges both
    assert len(inspect_file(file, ["sm_90", "sm_90"], kernel="a::q").kernels) == 1


@pytest.mark.parametrize(
    "gate", ["registers<=1e999", "registers<=64 spill_bytes==0", "REGISTER<=6", "gbps>=1"]
)
def test_gates_that_can_not_be_judged_are_refused_before_the_work(invoke: Invoke, gate: str) -> None:
    code, said = invoke("inspect", "absent.cu", "--gate", gate)
    assert code == 2 and "--gate" in said and "absent" not in said


@pytest.mark.parametrize("arch", architectures())
@pytest.mark.parametrize("shared", [10**6, 10**22])
def test_more_shared_memory_than_any_block_may_have(arch: str, shared: int) -> None:
    """The search for the nearest step started at what was asked for: hours for 1e12 bytes."""
    limits = architectures()[arch]
    steps = [c for c in cliffs(resident(limits, 256, 32, shared)) if c.resource == "shared_bytes"]
    assert [(c.direction, c.value) for c in steps] == [("down", limits.block_shared_bytes)]
    assert resident(limits, 256, 32, limits.block_shared_bytes + 1).blocks == 0


def test_an_architecture_that_no_table_has(invoke: Invoke) -> None:
    code, said = invoke("occupancy", "--device", "sm_91")
    assert code == 2 and "Did you mean sm_90" in said


# Executed counts


def executed(rung: str) -> Any:
    (k,) = inspect_file(next(LADDER.glob(f"{rung}_*.cu")), ["sm_80"]).kernels
    assert k.executed
    return k


def test_executed_counts_a_row_are_those_of_the_text() -> None:
    """SPEC A5 and A6: barriers 9 and 1; four times fewer memory instructions; the static counts show neither."""
    v1, v2, v3, v4 = map(executed, ("v1", "v2", "v3", "v4"))
    assert [k.executed.barriers_per_row for k in (v1, v2, v3, v4)] == [0, 9, 1, 1]
    # By hand: 1024 columns read twice, gamma and beta once, written once; 32 lanes an instruction, a lane alone in v1.
    assert [k.executed.memory_instructions_per_row for k in (v1, v2, v3, v4)] == [5 * 1024, 160, 160, 40]
    assert {k.executed.bytes_per_row for k in (v1, v2, v3, v4)} == {5 * 1024 * 4}
    assert (v1.threads, v1.threads_from, v1.resident.warp_share) == (1, "its launch line", 0.5)
    assert v3.to_dict()["memory_instructions_per_row"] == 160


def test_a_launch_that_faults_or_is_missing_gives_no_counts_and_says_why(
    tmp_path: Path, invoke: Invoke
) -> None:
    file = tmp_path / "k.cu"
    file.write_text(KERNEL)
    (k,) = inspect_file(file, ["sm_90"]).kernels
    assert k.executed is None and "no line says how k is launched" in " ".join(k.missing)
    file.write_text("// onepass-check: x=rand(4) grid=1 block=32\n" + KERNEL)
    (k,) = inspect_file(file, ["sm_90"]).kernels
    assert k.executed is None and "line 2: out-of-bounds" in " ".join(k.missing)
    code, said = invoke("inspect", file, "--gate", "bytes_per_row<=256")
    assert code == 2 and "has no bytes_per_row" in said


@pytest.mark.parametrize(
    ("body", "rows", "cols", "instructions"),
    [
        ("torch.nn.functional.layer_norm(x, x.shape[-1:])", 37, 256, 4),
        ("torch.relu(x) + 1", 37, 256, 4),
        ("torch.nn.functional.layer_norm(x[:, 128:384], (256,))", 37, 512, 4),  # a slice of a wider tensor
    ],
)
def test_executed_counts_of_generated_kernels(
    tmp_path: Path, invoke: Invoke, body: str, rows: int, cols: int, instructions: int
) -> None:
    file = tmp_path / "user.py"
    file.write_text(
        f"import torch\ndef f(x): return {body}\ndef example_inputs(): return torch.randn({rows}, {cols})\n"
    )
    code, said = invoke("inspect", f"{file}:f", "--arch", "sm_90", "--json", "--gate", "bytes_per_row>0")
    assert code == 0, said
    (k,) = json.loads(said[said.index("{\n") :].split("\n}\n")[0] + "\n}")["kernels"]
    elements = k["executed"]["rows"] * 256
    moved = k["executed"]["rows"] * k["bytes_per_row"]
    if "layer_norm" in body:
        assert k["bytes_per_row"] == 2 * 4 * 256
        assert k["memory_instructions_per_row"] == instructions
    else:
        assert moved == pytest.approx(
            2 * 4 * elements, rel=0.15
        )  # the last block of a flat kernel is not full


# Two documents


def inspection() -> dict[str, Any]:
    kernel: dict[str, Any] = {
        "name": "k",
        "demangled": "k",
        "arch": "sm_90",
        "counted_in": "machine code",
        "memory": [],
    }
    kernel |= dict.fromkeys(("spill_bytes", "local_accesses", "registers", "shared_bytes", "threads"), 0)
    kernel |= dict.fromkeys(("instructions", "special_instructions", "barrier_instructions"), 0)
    kernel |= dict.fromkeys(
        ("shuffle_instructions", "widest_load_bits", "widest_store_bits", "bytes_in_flight"), 0
    )
    return {"schema": "onepass.inspect/1", "kernels": [{**kernel, "occupancy": 1.0}]}


def timing() -> dict[str, Any]:
    numbers = {"median_us": 100.0, "iqr_us": 1.0, "gbps": 30.0, "roof_gbps": 60.0, "attained": 0.5}
    texts = {"target": "f", "void": "", "device": "d", "protocol": "cold"}
    return {"schema": "onepass.bench/1", **texts, **numbers, "tensors": {}, "versions": {}}


@pytest.mark.parametrize("share", [0.75, 0.5, None])
def test_occupancy_alone_is_neither_better_nor_worse(
    tmp_path: Path, invoke: Invoke, share: float | None
) -> None:
    files = []
    for name, occupancy in (("full", 1.0), ("less", share)):
        document = inspection()
        document["kernels"][0]["occupancy"] = occupancy
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(document))
    for old, new in (files, files[::-1]):
        code, said = invoke("diff", old, new)
        assert code == 0 and "cannot tell: what changed is neither better nor worse" in said
        assert "occupancy " in said


@pytest.mark.parametrize("make", [inspection, timing])
def test_a_document_that_lacks_any_of_its_parts_is_refused(
    tmp_path: Path, invoke: Invoke, make: Callable[[], dict[str, Any]]
) -> None:
    whole = make()
    good = tmp_path / "good.json"
    good.write_text(json.dumps(whole))
    assert invoke("diff", good, good)[0] == 0
    places = [
        (p, k) for p in ([], ["kernels", 0]) for k in (whole if not p else whole.get("kernels", [{}])[0])
    ]
    for path, key in places:
        for value in ("gone", {"a": 1}, float("nan")):
            if key == "schema" or (value == "gone" and isinstance(whole.get(key), str) and key != "void"):
                continue
            if key in ("name", "demangled", "arch", "counted_in", "target", "device", "protocol", "void"):
                continue
            if key in ("tensors", "versions") and isinstance(value, dict):
                continue
            changed = copy.deepcopy(whole)
            at: Any = changed
            for step in path:
                at = at[step]
            at[key] = value
            (tmp_path / "bad.json").write_text(json.dumps(changed))
            code, said = invoke("diff", good, tmp_path / "bad.json")
            assert code == 2 and "bad.json" in said, (path, key, value)
    for text in (
        "",
        "[]",
        "{}",
        "[" * 100_000,
        json.dumps(whole)[:-9],
        json.dumps({"schema": whole["schema"]}),
    ):
        (tmp_path / "bad.json").write_text(text)
        assert invoke("diff", good, tmp_path / "bad.json")[0] == 2


def test_two_kernels_of_one_name_are_both_compared(tmp_path: Path, invoke: Invoke) -> None:
    old, new = inspection(), inspection()
    old["kernels"] *= 2
    new["kernels"] = [{**new["kernels"][0], "spill_bytes": 99}, new["kernels"][0]]
    for name, document in (("a", old), ("b", new)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    code, said = invoke("diff", tmp_path / "a.json", tmp_path / "b.json")
    assert code == 1 and said.startswith("worse over 2 kernels")
