"""The cases and suites of cases.toml: functions, points, inputs, and the float64 result they are held to."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onepass.dtypes import DTYPES

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
UNIT_ROUNDOFF = {d.short: d.unit_roundoff for d in DTYPES.values()}
EPS = 1e-5
# Of the cases that take rows × cols as batch × channels × cols, channels first: KernelBench's number.
CHANNELS, GROUPS = 64, 8
# The largest number of fp8 e4m3, columns that share a scale where blocks of them do, and what the largest value of a
# block counts as at least.
E4M3_LARGEST, BLOCK, LEAST = 448.0, 128, 1e-12


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


def rms_norm_fp8_row(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    y = rms_norm(x, weight).float()
    scale = y.abs().amax(-1, keepdim=True).clamp(min=LEAST) / E4M3_LARGEST
    return (y / scale).to(torch.float8_e4m3fn), scale


def rms_norm_fp8_block(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    y = rms_norm(x, weight).float().view(x.shape[0], -1, BLOCK)
    scale = y.abs().amax(-1, keepdim=True).clamp(min=LEAST) / E4M3_LARGEST
    return (y / scale).to(torch.float8_e4m3fn).view(x.shape), scale.squeeze(-1)


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


def gelu_tanh_add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x, approximate="tanh") + residual, x.shape[-1:], weight, bias, EPS)


def gelu_erf_add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x) + residual, x.shape[-1:], weight, bias, EPS)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    s = x + residual
    return F.rms_norm(s, s.shape[-1:], weight, EPS), s


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias, approximate="tanh")


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def channels_first_rms_norm(x: Tensor) -> Tensor:
    y = _channels(x)
    return (y / torch.sqrt(y.square().mean(1, True) + EPS)).view(x.shape)


def channels_first_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = _channels(x)
    centred = y - y.mean(1, True)
    normal = centred * torch.rsqrt(centred.square().mean(1, True) + EPS)
    return (normal * weight[:CHANNELS, None] + bias[:CHANNELS, None]).view(x.shape)


def channels_first_softmax(x: Tensor) -> Tensor:
    return F.softmax(_channels(x), 1).view(x.shape)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.group_norm(_channels(x), GROUPS, weight[:CHANNELS], bias[:CHANNELS], EPS).view(x.shape)


def channels_last_gelu(x: Tensor) -> Tensor:
    """Each batch's result as channels × cols of memory, although its elements lie the other way."""
    return F.gelu(_channels(x).transpose(1, 2), approximate="tanh").contiguous().view(x.shape)


def _channels(x: Tensor) -> Tensor:
    return x.view(-1, CHANNELS, x.shape[-1])


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        layer_norm,
        rms_norm,
        rms_norm_fp8_row,
        rms_norm_fp8_block,
        softmax,
        gelu_tanh_add_layer_norm,
        gelu_erf_add_layer_norm,
        add_rms_norm,
        bias_gelu,
        swiglu,
        channels_first_rms_norm,
        channels_first_layer_norm,
        channels_first_softmax,
        group_norm,
        channels_last_gelu,
    )
}


@dataclass(frozen=True)
class Case:
    """What is computed: `reads` and `writes` tensors of rows × cols, `vectors` of cols; see cases.toml."""

    name: str
    formula: str
    reads: int
    writes: int
    vectors: int
    roundings: int
    scale: float
    together: int = 1  # rows that belong together: their number is a multiple of it
    quantizes: str = ""  # the case whose result it leaves as fp8 numbers and their fp32 scales
    block: int = 0  # columns that share a scale; 0: a row does

    @property
    def function(self) -> Callable[..., Any]:
        return FUNCTIONS[self.name]

    @property
    def exact(self) -> Callable[..., Any]:
        """What a result is held to, in float64."""
        return FUNCTIONS[self.quantizes or self.name]


@dataclass(frozen=True)
class Targets:
    """What is asked of onepass at a point; None where nothing is."""

    attained: float | None = None
    of_peers: float | None = None
    of: Mapping[str, float] = field(default_factory=dict)
    mean_of: Mapping[str, float] = field(
        default_factory=dict
    )  # of the geometric mean over the group's points


@dataclass(frozen=True)
class Point:
    """One case at one dtype and shape."""

    case: Case
    dtype: str
    rows: int
    cols: int
    targets: Targets = field(default=Targets(), compare=False)
    group: int = 0  # points of one [[points]] entry

    @property
    def tensor_bytes(self) -> int:
        return self.rows * self.cols * TORCH_DTYPES[self.dtype].itemsize

    @property
    def streams(self) -> tuple[int, int, int]:
        """Streams of equal size that are read and written, and their bytes: of fp8, so many reads as an input is wider."""
        if self.case.quantizes:
            return self.case.reads * TORCH_DTYPES[self.dtype].itemsize, 1, self.rows * self.cols
        return self.case.reads, self.case.writes, self.tensor_bytes

    @property
    def ideal_bytes(self) -> int:
        """Each input read once, each output written once."""
        if self.case.quantizes:
            scales = self.rows * (self.cols // self.case.block if self.case.block else 1)
            vectors = self.case.vectors * self.cols * TORCH_DTYPES[self.dtype].itemsize
            return self.case.reads * self.tensor_bytes + self.rows * self.cols + 4 * scales + vectors
        vector = self.cols * TORCH_DTYPES[self.dtype].itemsize
        return (self.case.reads + self.case.writes) * self.tensor_bytes + self.case.vectors * vector

    def __str__(self) -> str:
        return f"{self.case.name} {self.dtype} {self.rows} × {self.cols}"


@dataclass(frozen=True)
class Suite:
    """Points that are measured in one run."""

    name: str
    device: str
    protocol: str  # cold, or graph
    rounds: int
    contenders: tuple[str, ...]
    acceptance: str
    points: tuple[Point, ...]
    mean_of: Mapping[str, float] = field(
        default_factory=dict
    )  # contender → least factor over it, over all points


@cache
def cases() -> dict[str, Case]:
    return {name: Case(name=name, **fields) for name, fields in _file()["cases"].items()}


def suites() -> dict[str, Suite]:
    return {name: _suite(name, fields) for name, fields in _file()["suites"].items()}


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "cases.toml").read_text())


def _suite(name: str, fields: Mapping[str, Any]) -> Suite:
    points = [p for group, entry in enumerate(fields["points"]) for p in _points(entry, group)]
    plain = {k: fields[k] for k in ("device", "protocol", "rounds", "acceptance")}
    mean_of = fields.get("mean_of", {})
    contenders = tuple(fields["contenders"])
    return Suite(name=name, contenders=contenders, points=tuple(points), mean_of=mean_of, **plain)


def _points(entry: Mapping[str, Any], group: int) -> list[Point]:
    targets = Targets(**{k: entry[k] for k in ("attained", "of_peers", "of", "mean_of") if k in entry})
    return [
        Point(cases()[case], dtype, rows, cols, targets, group)
        for case in entry["cases"]
        for dtype in entry["dtypes"]
        for cols in entry.get("cols") or _around(**entry["around"])
        for rows in entry.get("rows") or [_rows(entry["mib"][dtype] << 20, cols, dtype)]
    ]


def _around(low: int, high: int, centres: int) -> list[int]:
    """So many widths between two, evenly on a logarithmic scale, each with its two neighbours."""
    steps = range(centres)
    middles = [round(low * (high / low) ** (i / (centres - 1))) for i in steps]
    return sorted({n for middle in middles for n in (middle - 1, middle, middle + 1)})


def _rows(tensor_bytes: int, cols: int, dtype: str) -> int:
    return max(1, tensor_bytes // (cols * TORCH_DTYPES[dtype].itemsize))


class Inputs:
    """Random inputs of a point: several sets of the large tensors, one of the row vectors."""

    def __init__(self, point: Point, device: torch.device, sets: int, seed: int = 0) -> None:
        self.point, self.device = point, device
        self.generator = torch.Generator(device).manual_seed(seed)
        shape = (point.rows, point.cols)
        self.sets = [[self._random(shape) for _ in range(point.case.reads)] for _ in range(sets)]
        self.vectors = [self._random((point.cols,)) for _ in range(point.case.vectors)]

    def arguments(self, index: int) -> list[Tensor]:
        """What the case's function takes, with the large tensors of one set."""
        return [*self.sets[index], *self.vectors]

    def refresh(self) -> None:
        """New values in the same memory: a result kept from before is now wrong."""
        for tensor in (*self.sets[0], *self.vectors):
            tensor.copy_(self._random(tuple(tensor.shape)))

    def _random(self, shape: Sequence[int]) -> Tensor:
        dtype = TORCH_DTYPES[self.point.dtype]
        return torch.randn(tuple(shape), device=self.device, dtype=dtype, generator=self.generator)
