"""What would ship spills nowhere, on any architecture. No GPU: NVRTC and ptxas say it.

On sm_90 the grid is every width at fp32 and bf16 (a walked row's text depends on its length by one number, so the
longest is there once), and at fp16, whose kernels are bf16's but for the conversions, a width of three kinds. sm_80 and
sm_100 get the corners: a ragged row, the widths whose threads hold the most, and one that no register file holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.quantized import E4M3, Form, add_rms_norm
from harness.quantized import layer_norm as normalised
from harness.shipping import (
    DEVICES,
    FAMILIES,
    FEW,
    Shop,
    bias_gelu,
    captured,
    gelu_tanh_add_layer_norm,
    layer_norm,
    middle_softmax,
    softmax,
    spills,
    transposed_gelu,
)
from onepass import build as pipeline
from onepass.plan.choose import candidates
from onepass.plan.schedules.row import RowSchedule
from onepass.plan.schedules.row_strided import StridedSchedule
from onepass.runtime.disassemble import disassemble
from onepass.runtime.nvrtc import compile_cubin

COLS = (63, 256, 1000, 1023, 1024, 4096, 5120, 8192, 12289, 16384, 65536, 262144, 1 << 21)
Point = tuple[torch.dtype, int]
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
CORNERS: tuple[Point, ...] = (
    (BF16, 63),
    (FP32, 1023),
    (FP32, 16384),
    (BF16, 16384),
    (FP32, 65536),
    (FP32, 1 << 20),
)
HELD = FAMILIES - {"row-stream"}  # what the whole device holds
SWEEPS: dict[str, tuple[str, tuple[Point, ...], set[str]]] = {
    "sm_90 fp32": ("sm_90", tuple((FP32, n) for n in COLS), HELD),
    "sm_90 bf16": ("sm_90", tuple((BF16, n) for n in COLS), HELD - {"row-smem"}),
    "sm_90 fp16": (
        "sm_90",
        tuple((FP16, n) for n in (63, 1000, 8192)),
        HELD - {"row-smem", "row-cluster", "row-grid"},
    ),
    "sm_80": ("sm_80", CORNERS, HELD - {"row-cluster"}),
    "sm_100": ("sm_100", CORNERS, HELD),
}
# Where a kernel for unaligned tensors is compiled too: the most in a thread's registers, and the fewest.
UNALIGNED = {(FP32, 256), (FP32, 16384), (BF16, 4096), (BF16, 16384), (BF16, 65536)}


@pytest.mark.parametrize("sweep", SWEEPS)
def test_nothing_that_ships_spills(sweep: str) -> None:
    arch, points, families = SWEEPS[sweep]
    shop = Shop(DEVICES[arch])
    built = shop.build([captured(*p) for p in points])
    assert not spills(built)
    assert all(k.resources and k.resources.registers > 8 for k in built)
    assert {k.schedule.family for k in built} == families
    chosen = [p for p in points if p in UNALIGNED] if arch == "sm_90" else []
    for elements in (1, 2) if chosen else ():
        texts = shop.unaligned(shop.build([captured(*p) for p in chosen]), elements)
        assert texts
        shop.compile(texts.values())
        assert not {s.name: shop.known[t] for t, s in texts.items() if shop.known[t].spill_bytes}


def group_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x.reshape(-1, 64, 64, x.shape[1] // 512), 8, w[:64], b[:64])


def batch_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    images = x.reshape(x.shape[0] // 4, 4, 64, x.shape[1] // 64)
    return torch.ops.aten._native_batch_norm_legit.no_stats(images, w[:4], b[:4], True, 0.1, 1e-5)[0]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_columns_in_blocks_spill_nowhere(arch: str) -> None:
    """A weight a channel; images with others between them. Rows of 256, 25088, 524288 and 2097152 columns."""
    shop = Shop(DEVICES[arch])
    points = [captured(d, n, (group_norm,), 64) for d in (FP32, BF16) for n in (2048, 25088, 524288, 2097152)]
    points += [
        captured(d, n, (batch_norm,), rows) for d in (FP32, BF16) for n, rows in ((1024, 8), (65536, 128))
    ]
    built = shop.build(points)
    assert not spills(built)
    assert {k.schedule.family for k in built} >= {"row-block", "row-grid"}
    assert all(k.kernel.blocks for k in built)
    assert not {"row-walk", "row-stream"} & {k.schedule.family for k in built}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_rows_that_no_device_holds_spill_nowhere(arch: str) -> None:
    built = Shop(replace(DEVICES[arch], units=FEW)).build([captured(d, 1 << 21) for d in (FP32, BF16)])
    assert not spills(built)
    assert {k.schedule.family for k in built} == {"flat", "tiled", "row-strided", "row-stream"}


def test_a_spill_that_would_ship_is_seen() -> None:
    """A schedule with 128 elements a thread in 64 registers, and nothing else to try."""

    def greedy(*given: Any) -> Any:
        kernel, schedule = candidates(*given)[0]
        assert isinstance(schedule, RowSchedule)
        return [(kernel, replace(schedule, steps=schedule.steps * 4))]

    shop = Shop(DEVICES["sm_90"])
    graph = captured(FP32, 16384, (layer_norm,))
    with mock.patch.object(pipeline, "candidates", greedy):
        built = shop.build([graph])
    assert len(spills(built)) == len(built) == 1
    # Beside a schedule that fits, it is passed over.
    with mock.patch.object(pipeline, "candidates", lambda *given: [*greedy(*given), *candidates(*given)]):
        (kernel,) = shop.build([graph])
    assert not spills([kernel])
    # What is read off many kernels compiled together is what the compiler says of one.
    alone = compile_cubin(built[0].source.text, built[0].source.name, "sm_90").resources
    assert alone == built[0].resources
    assert alone.spill_bytes > 0


def layer_norm_to_fp8(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return Form(normalised, E4M3, "block")(x, r, w, b, x)


def add_rms_norm_to_fp8(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return Form(add_rms_norm, E4M3, "block")(x, r, w, b, x)


FORMS = (layer_norm_to_fp8, add_rms_norm_to_fp8)
QUANTISED: tuple[Point, ...] = (
    (BF16, 256),
    (FP32, 1024),
    (FP32, 4096),
    (BF16, 16384),
    (FP32, 16384),
    (BF16, 65536),
    (FP32, 65536),
)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_norms_quantised_by_blocks_spill_nowhere(arch: str) -> None:
    """A block's columns are held between the two rounds over it, beside the row."""
    shop = Shop(DEVICES[arch])
    points = QUANTISED if arch == "sm_90" else QUANTISED[3:6]
    built = shop.build([captured(dtype, cols, FORMS) for dtype, cols in points])
    assert len(built) == len(points) * len(FORMS)
    assert not spills(built)


def channels_norms(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Over 64 and 384 channels, held by few lanes and by many; over channels made last; down the rows."""
    y = x.reshape(-1, 64, x.shape[1])
    mean = y.mean(1, True)
    centred = y - mean
    layer_norm = centred * torch.rsqrt(centred.square().mean(1, True) + 1e-5) * w[:64, None] + b[:64, None]
    rms_norm = y * torch.rsqrt(y.square().mean(1, True) + 1e-5)
    last = F.layer_norm(y.transpose(1, 2), (64,), w[:64], b[:64])
    return layer_norm, rms_norm, last, torch.softmax(x.reshape(-1, 384, x.shape[1]), 1), x.sum(0), x.var(0)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_reductions_with_inner_dimensions_spill_nowhere(arch: str) -> None:
    """Aligned, of an odd inner size, and where every tensor starts one or two elements past 16 bytes."""
    shop = Shop(DEVICES[arch])
    points = [
        (d, n) for d in (FP32, BF16) for n in (3136, 225) if arch == "sm_90" or (d == BF16) == (n == 3136)
    ]
    built = shop.build([captured(d, n, (channels_norms,), 64 * 384) for d, n in points])
    assert not spills(built)
    assert {k.schedule.family for k in built} == {"row-strided"}
    assert {k.schedule.parts == 1 for k in built if isinstance(k.schedule, StridedSchedule)} == {True, False}
    texts = (
        [t for elements in (1, 2) for t in shop.unaligned(built, elements).items()] if arch == "sm_90" else []
    )
    shop.compile([s for _, s in texts])
    assert not {s.name: shop.known[t] for t, s in texts if shop.known[t].spill_bytes}


# One operator and width for each schedule.
EACH: dict[str, tuple[Sequence[Any], int]] = {
    "flat": ((bias_gelu,), 1000),
    "row-warp": ((layer_norm,), 256),
    "row-block": ((gelu_tanh_add_layer_norm,), 1000),
    "row-smem": ((softmax,), 16384),
    "row-cluster": ((layer_norm,), 32768),
    "row-grid": ((layer_norm,), 1 << 20),
    "row-stream": ((layer_norm,), 1 << 21),
    "row-strided": ((middle_softmax,), 64),
    "tiled": ((transposed_gelu,), 1000),
}


@pytest.mark.parametrize("arch", [a for a in DEVICES if a not in ("sm_80", "sm_90", "sm_100")])
def test_every_schedule_on_the_other_architectures(arch: str) -> None:
    """sm_70 is the CUDA 12 compiler's, and it and sm_75 have no instruction that converts to bf16."""
    device = DEVICES[arch]
    shop = Shop(device)
    built = shop.build([captured(d, n, ops) for ops, n in EACH.values() for d in (FP32, BF16)])
    few = Shop(replace(device, units=FEW))
    built += few.build([captured(d, EACH["row-stream"][1], EACH["row-stream"][0]) for d in (FP32, BF16)])
    assert not spills(built)
    # These have too little shared memory to hold two blocks' rows: what an H200 would run must compile all the same.
    number = int(arch.removeprefix("sm_"))
    absent = (
        {"row-smem"} | ({"row-cluster"} if number < 90 else set()) | ({"row-grid"} if number < 80 else set())
    )
    assert {k.schedule.family for k in built} - {"row-smem"} == FAMILIES - absent
    ops, cols = EACH["row-smem"]
    shared = Shop(replace(device, shared_bytes=DEVICES["sm_90"].shared_bytes))
    (kernel,) = shared.build([captured(FP32, cols, ops)])
    assert not spills([kernel])
    assert kernel.schedule.family == "row-smem"


# What reaches memory, and what could go past the wait.
BEFORE_NO_WAIT = ("LD", "ST", "ATOM", "RED", "UBLK", "UTMA", "CCTL", "BRA", "BRX", "CALL", "EXIT")


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_no_kernel_touches_memory_before_the_grid_before_it_is_done(arch: str) -> None:
    """Of each family, in machine code: the compiler may move what reads memory that a kernel does not write."""
    built = Shop(DEVICES[arch]).build([captured(*p) for p in (CORNERS[2], *CORNERS[4:])])
    built += Shop(replace(DEVICES[arch], units=FEW)).build([captured(FP32, 1 << 21, (layer_norm,))])
    of_family = {k.schedule.family: k.source.text for k in built}
    assert set(of_family) >= FAMILIES - {"row-warp"}
    for family, text in of_family.items():
        assert not _early(text, arch), family
    wait = "  ptx_wait_for_grid_before();\n"
    without = of_family["row-block"].replace(wait, "")
    assert _early(without, arch) == ["no wait"]
    assert _early(without.rstrip().removesuffix("}") + wait + "}\n", arch)


def _early(text: str, arch: str) -> list[str]:
    """The instructions before the wait that should not be there."""
    found = disassemble(compile_cubin(text, "kernel", arch).code)
    assert not isinstance(found, str), found
    ((_, code),) = found.items()
    names = [i.name for i in code.instructions]
    if "ACQBULK" not in names:
        return ["no wait"]
    early = names[: names.index("ACQBULK")]
    return [n for n in early if n.startswith(BEFORE_NO_WAIT) and not n.startswith("LDC")]  # of constants
