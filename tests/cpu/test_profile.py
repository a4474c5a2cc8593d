"""`onepass profile`: shares that add up, a forecast made before anything is measured, measured beside it."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from onepass.cli.app import _application
from onepass.errors import BadUserFile, NoSuchDevice
from onepass.insight.profile import WIDEST, Group, Profile, kind_of_name, op_times, profile
from onepass.ops.table import COMPUTE_BOUND
from onepass.runtime.timer import Spread

ROWS, COLS = 512, 1024


class Block(nn.Module):
    """A matmul, GELU + Add + LayerNorm twice, so that equal kernels come together."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(COLS, COLS) for _ in range(2))
        self.norm = nn.LayerNorm(COLS)

    def forward(self, x: Tensor) -> Tensor:
        for projection in self.projections:
            x = self.norm(nn.functional.gelu(projection(x)) + x)
        return x


@pytest.fixture(scope="module")
def found() -> Profile:
    torch._dynamo.reset()
    torch.manual_seed(0)
    return profile(Block().eval(), (torch.randn(ROWS, COLS),), rounds=3)


def test_shares_add_up_and_name_what_the_model_does(found: Profile) -> None:
    assert math.isclose(sum(found.shares.values()), 1.0)
    assert all(share >= 0 for share in found.shares.values())
    assert found.shares["matmul"] > 0
    assert found.shares["memory-bound"] > 0
    assert found.shares["attention"] == found.shares["other"] == 0
    kinds = [(op.target, op.kind) for op in found.ops]
    assert kinds.count(("addmm.default", "matmul")) == 2
    assert kinds.count(("native_layer_norm.default", "memory-bound")) == 2


def test_equal_kernels_are_one_group_with_all_their_bytes(found: Profile) -> None:
    (group,) = found.groups
    assert group.count == 2
    full = 4 * ROWS * COLS
    assert group.eager_bytes == 2 * (7 * full + 2 * 4 * COLS + 2 * 4 * ROWS)
    assert group.fused_bytes >= 2 * (3 * full + 2 * 4 * COLS)


def test_the_forecast_knows_nothing_of_the_measurement(found: Profile) -> None:
    unmeasured = dataclasses.replace(
        found, id="", groups=tuple(dataclasses.replace(g, measured_us=None) for g in found.groups)
    )
    assert unmeasured.id == found.id
    assert unmeasured.saving_us == found.saving_us
    assert unmeasured.saved_us is None
    assert found.saved_us is not None
    assert found.saved_us > 0


def group(eager_us: float, fused_us: tuple[float, float], measured_us: float | None) -> Group:
    return Group("k", ("gelu",), 1, 3000, 1000, eager_us, fused_us, measured_us)


def test_measured_beside_forecast() -> None:
    assert group(100, (20, 40), None).verdict == "not measured"
    assert group(100, (20, 40), 30).verdict == "as forecast"
    assert group(100, (20, 40), 15).verdict.startswith("more")
    near = group(100, (20, 40), 41.5)
    assert near.verdict.startswith("as forecast, within") and not near.held() and near.held(2.0)
    assert group(100, (20, 40), 63).verdict.startswith("less")
    least, most = group(100, (20, 99), None).saving_us
    assert most == 80
    assert least == most / WIDEST


def test_an_op_is_timed_where_it_stands() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x)

    def slow(x: Tensor) -> Tensor:
        return (x @ x) @ x

    graph = torch.fx.experimental.proxy_tensor.make_fx(slow)(torch.randn(400, 400))
    times = op_times(graph, [torch.randn(400, 400)], torch.device("cpu"))
    assert [t.kind for t in times.values()] == ["matmul", "matmul"]
    assert all(t.us > 0 for t in times.values())


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(COLS)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(nn.functional.gelu(x) + x)


class Broken(nn.Module):
    """What Dynamo can't follow around layers that it can: one graph that runs three times a step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()

    @torch._dynamo.disable(recursive=False)
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.layer(x)
        return x


def test_a_graph_that_runs_again_counts_again() -> None:
    torch._dynamo.reset()
    broken = profile(Broken().eval(), (torch.randn(ROWS, COLS),), rounds=2)
    assert sum(g.count for g in broken.groups) == 3
    full = 4 * ROWS * COLS
    assert sum(g.eager_bytes for g in broken.groups) >= 3 * 7 * full
    assert len(broken.ops) >= 3 and broken.saved_us is not None


def test_a_forecast_is_made_before_anything_is_measured() -> None:
    torch._dynamo.reset()
    heard: list[Profile] = []
    later = profile(Block().eval(), (torch.randn(ROWS, COLS),), rounds=2, made=heard.append)
    (early,) = heard
    assert early.saved_us is None and not early.contenders and early.id == later.id
    assert early.saving_us == later.saving_us and later.contenders


class Masked(nn.Module):
    """A mask that every layer's kernel computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        added = (mask.float() - 1) * 1e4
        for _ in range(3):
            x = torch.softmax(x + added, -1) @ self.weight
        return x


def test_an_op_computed_again_counts_once() -> None:
    torch._dynamo.reset()
    inputs = torch.randn(512, 64), torch.ones(512, 64, dtype=torch.bool)
    again = profile(Masked().eval(), inputs, rounds=2)
    captured = sum(op.us for op in again.ops if op.kind == "memory-bound")
    assert sum(g.eager_us for g in again.groups) <= captured * (1 + 1e-9)


class Restless(nn.Module):
    """Another graph from the third call on; then another constant at each call, until Dynamo stops compiling."""

    def __init__(self, constants: bool) -> None:
        super().__init__()
        self.calls, self.constants = 0, constants

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.constants:
            return torch.relu(x * float(self.calls)) + 1
        return torch.softmax(torch.relu(x) + 1, -1) if self.calls < 3 else torch.tanh(x) * 2


@pytest.mark.parametrize("constants", [False, True])
def test_what_no_step_runs_is_not_measured(constants: bool) -> None:
    torch._dynamo.reset()
    restless = profile(Restless(constants).eval(), (torch.randn(64, 64),), rounds=2)
    for g in restless.groups:
        assert g.count >= 1
        assert g.measured_us is None or g.measured_us > 0
    if restless.groups and all(g.measured_us is None for g in restless.groups):
        assert any("launched none of the kernels" in why for why in restless.left)


def test_a_model_in_training_is_left_as_it_was() -> None:
    torch._dynamo.reset()
    norm = nn.Sequential(nn.BatchNorm1d(16), nn.GELU()).train()
    before = {k: v.clone() for k, v in norm.state_dict().items()}
    profile(norm, (torch.randn(32, 16),), rounds=2)
    assert all(torch.equal(v, before[k]) for k, v in norm.state_dict().items())


def test_a_disturbed_machine_is_told(found: Profile) -> None:
    steady = [
        dataclasses.replace(c, step_us=Spread(found.step_us, found.step_us, found.step_us))
        for c in found.contenders
    ]
    quiet = dataclasses.replace(found, contenders=tuple(steady), groups=())
    assert not quiet.disturbed
    apart = dataclasses.replace(steady[0], step_us=Spread(10.0, 5.0, 20.0))
    assert dataclasses.replace(quiet, contenders=(apart,)).disturbed
    assert dataclasses.replace(quiet, groups=(group(9 * found.step_us, (1, 2), None),)).disturbed


def test_two_subjects_are_two_forecasts(found: Profile) -> None:
    assert found.subject == f"Block(({ROWS}, {COLS}))"
    assert dataclasses.replace(found, subject="Other()", id="").id != found.id


def test_what_is_slower_is_not_worth_it(found: Profile) -> None:
    """Whatever the forecast says: here that half of a step is saved."""
    good = dataclasses.replace(found, step_us=1000.0, groups=(group(600, (100, 120), None),), contenders=())
    assert good.saving_us[1] > 0.03 * good.step_us and good.worth_it
    eager, ours = (dataclasses.replace(c, step_us=Spread(1000.0, 0, 0)) for c in found.contenders)
    slow = dataclasses.replace(ours, step_us=Spread(2000.0, 0, 0))
    assert not dataclasses.replace(good, contenders=(eager, slow)).worth_it


@pytest.mark.parametrize("name", sorted(COMPUTE_BOUND))
def test_what_arithmetic_bounds_is_matmul_or_attention(name: str) -> None:
    assert kind_of_name(name) == ("attention" if "attention" in name else "matmul")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("addmm", "matmul"),
        ("bmm", "matmul"),
        ("mkldnn_linear", "matmul"),
        ("_convolution", "matmul"),
        ("cudnn_convolution", "matmul"),
        ("convolution_overrideable", "matmul"),
        ("_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("_efficient_attention_forward", "attention"),
        ("add_", "memory-bound"),
        ("native_layer_norm", "memory-bound"),
        ("addcmul", "memory-bound"),
        ("mul", "memory-bound"),
        ("cumsum", "memory-bound"),
        ("embedding", "memory-bound"),
        ("linalg_vector_norm", "memory-bound"),
        ("_transformer_encoder_layer_fwd", "other"),
        ("mkldnn_rnn_layer", "other"),
        ("linalg_eigh", "other"),
        ("_fft_r2c", "other"),
    ],
)
def test_kinds_of_eager_s_ops(name: str, kind: str) -> None:
    assert kind_of_name(name) == kind


MODEL = """
import torch
def build():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)).eval()
def example_inputs():
    return torch.randn(32, 64)
"""


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    torch._dynamo.reset()
    ran = CliRunner().invoke(_application(), ["profile", f"{file}:build", "--rounds", "2", "--json"])
    assert ran.exit_code == 0, ran.output
    document = json.loads(ran.stdout)
    assert document["schema"] == "onepass.profile/1"
    assert {c["name"] for c in document["contenders"]} == {"eager", "onepass"}
    assert json.loads((tmp_path / "cache" / "profiles" / f"{document['id']}.json").read_text()) == document


def test_an_unknown_type_names_the_nearest() -> None:
    ran = CliRunner().invoke(_application(), ["profile", "hf:brt"])
    assert "bert" in str(ran.exception)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('no weights')", "raised ValueError: no weights"),
        ("return None", "returned NoneType"),
        ("return torch.nn.Linear(3, 3)", "PyTorch raises RuntimeError"),
    ],
)
def test_a_model_that_is_none_is_the_files_fault(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "model.py"
    file.write_text(
        f"import torch\ndef build():\n    {body}\ndef example_inputs():\n    return torch.randn(2, 64)\n"
    )
    torch._dynamo.reset()
    ran = CliRunner().invoke(_application(), ["profile", f"{file}:build"])
    assert isinstance(ran.exception, BadUserFile)
    assert said in str(ran.exception)


@pytest.mark.parametrize("device", ["nope", "cudaa", "cpu:x", "cuda:99", "meta"])
def test_a_device_that_is_not_here_is_named(device: str) -> None:
    ran = CliRunner().invoke(_application(), ["profile", "hf:bert", "--device", device])
    assert isinstance(ran.exception, NoSuchDevice)
    assert device in str(ran.exception)


def test_a_dtype_that_is_none_is_named() -> None:
    ran = CliRunner().invoke(_application(), ["profile", "hf:bert", "--dtype", "int8"])
    assert isinstance(ran.exception, BadUserFile)


def test_a_slower_step_is_not_worth_it(found: Profile) -> None:
    def took(factor: float) -> Profile:
        eager = found.contender("eager")
        us = replace(eager.step_us, median=eager.step_us.median * factor)
        large = tuple(replace(g, eager_us=found.step_us, fused_us=(1.0, 2.0)) for g in found.groups)
        return replace(found, groups=large, contenders=(eager, replace(eager, name="onepass", step_us=us)))

    assert took(0.5).worth_it
    assert not took(1.2).worth_it
