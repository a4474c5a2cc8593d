"""The CUDA prelude compiles for each architecture, without a GPU, and costs what costs.toml says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import onepass.codegen
from harness.costs import BINARY, UNARY, cost, machine_code
from harness.kernels import layer_norm, map_text
from harness.nvrtc import compile_cubin
from onepass.codegen.cuda_prelude import cuda_prelude, own_prelude, reduce_scratch_bytes
from onepass.errors import CompileError

PRELUDE = Path(onepass.codegen.__file__).parent / "prelude"
ARCHITECTURES = [70, 75, 80, 86, 89, 90, 100, 120]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["float", "bf16", "f16"])
def test_layer_norm_compiles_without_spills(arch: int, dtype: str) -> None:
    # 8192 columns over 256 lanes: 32 elements a lane stay in registers.
    compiled = compile_cubin(layer_norm(dtype, 8192, 256, 1, 8), arch)
    assert 16 < compiled.resources.registers <= 128
    assert compiled.resources.spill_bytes == compiled.resources.stack_bytes == 0
    assert compiled.cubin[:4] == b"\x7fELF"
    assert not re.search(r"kernel\.cu\(\d+\): warning", compiled.log), compiled.log


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_function_compiles_without_local_memory(arch: int) -> None:
    calls = (
        [f"op_{n}(x)" for n in UNARY] + [f"op_{n}(x, z)" for n in BINARY] + ["op_where(op_isnan(x), x, z)"]
    )
    compiled = compile_cubin(map_text(calls), arch)
    assert compiled.resources.registers > 0
    assert compiled.resources.spill_bytes == compiled.resources.stack_bytes == 0
    assert not re.search(r"kernel\.cu\(\d+\): warning", compiled.log), compiled.log


@pytest.mark.parametrize(("hint", "arch", "kept"), [("stream", 80, 1), ("cached", 80, 0), ("stream", 75, 0)])
def test_lines_of_what_is_read_once_stay_in_l2(hint: str, arch: int, kept: int) -> None:
    """The policy that `createpolicy` makes of evict_last is a constant: its upper half shows in the machine code."""
    body = f"store<plain, 4>(y + 4 * threadIdx.x, load<{hint}, 4>(x + 4 * threadIdx.x));"
    text = f'{cuda_prelude()}\nextern "C" __global__ void k(const float* x, float* y) {{ {body} }}\n'
    code = machine_code(text, arch)
    assert code.count("LDG.E") == 1
    assert code.count("0x14f00000") == kept


def test_a_spill_shows() -> None:
    """The figure that the tests above want to be 0 is not always 0."""
    text = layer_norm("float", 65536, 256, 1, 8)  # 256 elements a lane do not fit
    compiled = compile_cubin(text, 90)
    assert compiled.resources.spill_bytes > 0


def test_a_compile_error_is_not_swallowed() -> None:
    with pytest.raises(CompileError, match="undeclared"):
        compile_cubin(map_text(["undeclared(x)"]), 90)


def test_texts_are_header_free_and_keep_instructions_in_one_place() -> None:
    own = ("lanes", "tile", "blocks", "ptx_grid", "grid")
    all_parts = cuda_prelude() + "".join(map(own_prelude, own))
    assert "#include" not in all_parts
    for file in PRELUDE.glob("*.cuh"):
        assert file.read_text() in all_parts, f"{file.name} is not part of the prelude"
        if not file.name.startswith("ptx"):
            assert not re.search(r"\basm\s*(volatile\s*)?\(", file.read_text()), file.name


# The forms that kernels live on: a change of these is a change of the time model.
@pytest.mark.parametrize(
    "name", ["exp", "sigmoid_h", "silu_h", "gelu_tanh_h", "gelu_erf_h", "gelu_tanh", "gelu_erf"]
)
def test_instruction_counts_are_as_recorded(name: str) -> None:
    recorded = tomllib.loads((PRELUDE / "costs.toml").read_text())[name]
    assert cost(name) == (recorded["instructions"], recorded["special"])


def test_every_function_has_its_costs() -> None:
    recorded = tomllib.loads((PRELUDE / "costs.toml").read_text())
    assert set(recorded) == {*UNARY, *BINARY}
    text = (PRELUDE / "math.cuh").read_text()
    assert all(f" op_{name}(float" in text for name in recorded)


def test_recorded_errors_are_small_enough() -> None:
    """A few ulp for fp32; for 16-bit results well under half an ulp of bf16 (2^-9 at its smallest)."""
    recorded = tomllib.loads((PRELUDE / "costs.toml").read_text())
    largest = {
        "gelu_tanh": 72 * 2**-23
    }  # the rounding of its exponent, which reaches 126 (math.cuh says why)
    for name, row in recorded.items():
        if "max_error" in row:
            assert row["max_error"] <= largest.get(name, 2**-11 if name.endswith("_h") else 8 * 2**-23), name
            assert row["floor"] < 2**-120, name


def test_reduce_scratch() -> None:
    assert reduce_scratch_bytes(32, 8) == 0
    assert reduce_scratch_bytes(128, 2) == 2 * 2 * 4 * 4  # two halves, two groups, four warps, four bytes
    assert reduce_scratch_bytes(1024, 1, values=2) == 2 * 2 * 32 * 4
