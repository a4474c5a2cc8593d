"""`onepass export`: the launcher as written, linked with a driver that runs the exported kernels in the emulator."""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.driver import Exported
from harness.oracle import capture
from harness.shipping import H200, Emulation, planning_for, prepare
from onepass import build as pipeline
from onepass.dtypes import FLOAT32
from onepass.errors import BadUserFile
from onepass.insight import binaries
from onepass.insight.bench import copied
from onepass.insight.export import TEST_ROWS, Argument, _write_data, export
from onepass.runtime import disassemble
from onepass.runtime.nvrtc import compile_cubin

ARCHS = ("sm_80", "sm_90")


def one(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x, approximate="tanh") + residual, x.shape[-1:], weight, bias)


def two(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Two kernels: the second reads what the first leaves in scratch, along another dimension."""
    s = F.softmax(x, 0)
    return F.rms_norm(s * scale, s.shape[-1:]), s.sum(-1)


def inputs_of_one(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(s, generator=generator).to(dtype) for s in ((300, 260), (300, 260), (260,), (260,))]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "one"
    export("one.py", "one", one, inputs_of_one(), ARCHS, folder)
    return folder


def test_the_self_test_passes_and_gives_the_numbers_that_onepass_gives(
    exported: Path, tmp_path: Path
) -> None:
    ours = Exported(exported, tmp_path)
    library = ours.build()
    assert [ours.run(library, arch) for arch in ("sm_80", "sm_86", "sm_90")] == [0, 0, 0]
    x, residual, weight, bias = inputs_of_one()
    small = [x[:TEST_ROWS].contiguous(), residual[:TEST_ROWS].contiguous(), weight, bias]
    with planning_for(H200):
        emulation = Emulation(capture(one, small, pipeline.fit), H200)
    prepare([(emulation, small)])
    want = torch.stack(emulation.run(small))  # a single result comes row by row
    address, size = ours.memory[4]  # four inputs stand before it
    got = torch.frombuffer(bytearray(ctypes.string_at(address, size)), dtype=torch.float32).view(want.shape)
    assert torch.equal(got, want)


def test_a_wrong_kernel_fails_the_self_test(exported: Path, tmp_path: Path) -> None:
    def wrong(text: str) -> str:
        changed, n = re.subn(r"(y0_t\[e\] = )(\w+);", r"\1\2 * 1.0001f;", text)
        assert n
        return changed

    ours = Exported(exported, tmp_path, wrong)
    assert ours.run(ours.build(), "sm_90") == 1


@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_compile_alone(exported: Path, arch: str) -> None:
    for file in exported.glob("*.cu"):
        text = file.read_text()
        assert "#include" not in text
        assert compile_cubin(text, file.stem, arch).resources.spill_bytes == 0


def test_what_is_written(exported: Path) -> None:
    names = {p.name for p in exported.iterdir()}
    assert {"one.h", "one.cpp", "cubins.h", "self_test.cpp", "README.md", "data", "kernel_0.cu"} <= names
    assert {f"kernel_0_{a}.cubin" for a in ARCHS} <= names
    assert (
        "CUdeviceptr x, CUdeviceptr residual, CUdeviceptr weight, CUdeviceptr bias"
        in (exported / "one.h").read_text()
    )
    assert "onepass" not in (exported / "one.cpp").read_text()


def test_several_kernels_share_scratch_in_half_precision(tmp_path: Path) -> None:
    x = torch.randn(48, 130, generator=torch.Generator().manual_seed(1)).bfloat16()
    made = export("two.py", "two", two, [x, torch.full((130,), 3.0).bfloat16()], ("sm_90",), tmp_path / "two")
    ours = Exported(tmp_path / "two", tmp_path)
    assert ours.run(ours.build(), "sm_90") == 0
    assert len(ours.started) == len(made.kernels) > 1


def test_rms_norm_without_an_epsilon_is_held_to_that_of_its_own_type(tmp_path: Path) -> None:
    small = torch.randn(48, 64, generator=torch.Generator().manual_seed(1)) * 1e-3
    export("r.py", "r", lambda x: F.rms_norm(x, x.shape[-1:]), [small], ("sm_90",), tmp_path / "r")
    ours = Exported(tmp_path / "r", tmp_path)
    assert ours.run(ours.build(), "sm_90") == 0


def nested(x: Tensor) -> Any:
    """Results that are told apart by their values, not in the order of their names; nothing where None is."""
    return {"z": x + 1, "none": None, "a": [x - 1, (x * 2,)]}


def test_results_keep_their_order(tmp_path: Path) -> None:
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))
    export("n.py", "n", nested, [x], ("sm_90",), tmp_path / "n")
    for i, want in enumerate((x + 1, x - 1, x * 2)):
        held = torch.frombuffer(
            bytearray((tmp_path / f"n/data/output_{i}.bin").read_bytes()), dtype=torch.float64
        )
        assert torch.allclose(held.view(want.shape), want.double(), rtol=1e-6)
    ours = Exported(tmp_path / "n", tmp_path)
    assert ours.run(ours.build(), "sm_90") == 0


def test_a_module_that_returns_its_parameter_is_refused(tmp_path: Path) -> None:
    class Both(torch.nn.LayerNorm):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), self.weight

    with pytest.raises(BadUserFile, match="argument as it is"):
        export("m.py", "both", Both(64), [torch.randn(32, 64)], ("sm_90",), tmp_path / "m")


class OnGpu(Tensor):
    """A tensor that, as one on a GPU, gives numpy nothing before it is copied to the CPU, and says where it is."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return self.as_subclass(Tensor)


def test_data_of_tensors_on_a_gpu_is_written(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    argument = Argument("x", "x", FLOAT32, 32, (4, 8), "input")
    output = Argument("output_0", "y", FLOAT32, 32, (4, 8), "output")
    gpu = x.as_subclass(OnGpu)
    _write_data(tmp_path, [argument, output], {"x": gpu}, {"output_0": gpu})
    assert (tmp_path / "x.bin").read_bytes() == x.numpy().tobytes()
    assert (tmp_path / "output_0.bin").read_bytes() == x.double().numpy().tobytes()


def test_a_copy_for_the_emulator_is_on_the_cpu() -> None:
    x = torch.randn(4, 8).as_subclass(OnGpu)
    assert torch.equal(copied(x, torch.device("cpu")), x.cpu())
    with pytest.raises((RuntimeError, AssertionError)):
        copied(x).data_ptr()  # where x says it is: no such device on a machine without a GPU


def masked(x: Tensor, huge: Tensor) -> Tensor:
    return x * 0.5 + huge


@pytest.mark.parametrize("huge", [1e6, torch.finfo(torch.float32).min])
def test_one_huge_value_does_not_hide_wrong_ones_from_the_self_test(tmp_path: Path, huge: float) -> None:
    generator = torch.Generator().manual_seed(1)
    x, mask = torch.randn(40, 64, generator=generator), torch.zeros(40, 64)
    mask[3, 5] = huge
    export("m.py", "masked", masked, [x, mask], ("sm_90",), tmp_path / "m")
    ours = Exported(tmp_path / "m", tmp_path)
    library = ours.build()
    assert ours.run(library, "sm_90") == 0

    def wrong(text: str) -> str:
        changed, n = re.subn(r"(y0_t\[e\] = )(\w+);", r"\1\2 + 0.01f;", text)
        assert n
        return changed

    assert Exported(tmp_path / "m", tmp_path, wrong).run(library, "sm_90") == 1


@pytest.mark.skipif(
    disassemble.tool("fatbinary") is None or disassemble.tool("cuobjdump") is None, reason="needs both tools"
)
def test_a_fat_binary_holds_the_machine_code_of_each_architecture(exported: Path) -> None:
    held = {i.arch: i.code for i in binaries.images(exported / "kernel_0.fatbin")}
    assert held == {a: (exported / f"kernel_0_{a}.cubin").read_bytes() for a in ARCHS}


def relu(x: Tensor) -> Tensor:
    return F.relu(x)


def test_a_fat_binary_that_can_not_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(8, 32)
    made = tmp_path / "nvidia" / "cu13" / "bin" / "fatbinary"  # where a wheel puts it
    made.parent.mkdir(parents=True)
    made.write_text("#!/bin/sh\necho 'fatal: out of cheese' >&2; exit 3\n")
    made.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.syspath_prepend(str(tmp_path))
        assert disassemble.tool("fatbinary") == str(made)
        broken = export("r.py", "relu", relu, [x], ("sm_90",), tmp_path / "broken")
    assert "says fatal: out of cheese" in broken.verdict
    monkeypatch.setattr(disassemble, "tools", lambda name: [])
    absent = export("r.py", "relu", relu, [x], ("sm_90",), tmp_path / "absent")
    assert "no fat binary: fatbinary is missing: pip install nvidia-cuda-nvcc" in absent.verdict
    assert not [f for f in (*broken.files, *absent.files) if f.endswith(".fatbin")]


def test_an_older_export_is_replaced_and_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    folder, x = tmp_path / "out", torch.randn(48, 130)
    export("two.py", "two", two, [x, torch.ones(130)], ("sm_80", "sm_90"), folder)
    (folder / "self_test").write_text("what the user built")
    made = export("r.py", "relu", relu, [x], ("sm_90",), folder)
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert files == {*made.files, "self_test"}
    (folder / "files.txt").write_text("../outside\n/tmp/elsewhere\n")
    (tmp_path / "outside").write_text("kept")
    export("r.py", "relu", relu, [x], ("sm_90",), folder)
    assert (tmp_path / "outside").read_text() == "kept"
    (folder / "files.txt").unlink()
    with pytest.raises(BadUserFile, match="no export"):
        export("r.py", "relu", relu, [x], ("sm_90",), folder)


def test_a_module_keeps_its_parameters_names(tmp_path: Path) -> None:
    module = torch.nn.LayerNorm(64)
    export("m.py", "norm", module, [torch.randn(32, 64)], ("sm_90",), tmp_path / "m")
    assert "CUdeviceptr weight, CUdeviceptr bias" in (tmp_path / "m" / "norm.h").read_text()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x @ x, "does not become kernels entirely: mm"),
        (lambda x: x.add_(1), "writes to an argument"),
        (lambda x: torch.sort(F.relu(x))[0], "sort"),
        (lambda x: (x, F.relu(x)), "returns an argument as it is"),
        (lambda x: (F.relu(x), x, F.gelu(x)), "returns an argument as it is"),
        (lambda x: (y := F.relu(x), y, F.gelu(x)), "returns one tensor twice"),
        (lambda x: (F.relu(x), 3), "returns 3, which is no tensor"),
        (lambda x: (F.relu(x), x[:3]), "which no kernel writes"),
    ],
)
def test_what_can_not_be_exported_is_named(tmp_path: Path, function: Any, said: str) -> None:
    with pytest.raises(BadUserFile, match=said):
        export("f.py", "f", function, [torch.randn(32, 32)], ("sm_90",), tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_the_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    from onepass.cli import main

    file = tmp_path / "user.py"
    file.write_text(
        "import torch\ndef f(x): return torch.relu(x) + 1\ndef example_inputs(): return torch.ones(8, 64)\n"
    )
    arguments = [
        "onepass",
        "export",
        f"{file}:f",
        "--arch",
        "sm_86,sm_86",
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit, match="0"):
        main()
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "onepass.export/1"
    assert all((tmp_path / "out" / f).is_file() for f in document["files"])
    assert (tmp_path / "out" / "cubins.h").read_text().count("kernel_0_sm_86[]") == 1
    assert document["fat_binary"] == (not document["missing"])
    for nothing in ("", " "):
        monkeypatch.setattr(sys, "argv", [*arguments[:6], nothing])
        with pytest.raises(SystemExit, match="2"):
            main()
        assert "name a folder" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*arguments[:4], "sm_85", *arguments[5:]])
    assert main() == 2  # a mistake of the user's
    assert "sm_86" in capsys.readouterr().err
