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
from onepass.errors import BadUserFile
from onepass.insight.export import TEST_ROWS, export
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
    monkeypatch.setattr(sys, "argv", [*arguments[:4], "sm_85", *arguments[5:]])
    assert main() == 2  # a mistake of the user's
    assert "sm_86" in capsys.readouterr().err
