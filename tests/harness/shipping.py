"""What would ship: operators planned and built for a CUDA device that is not there, and run under the emulator."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.nvrtc import resources
from harness.oracle import capture
from onepass import build as pipeline
from onepass.analysis.resources import Resources
from onepass.build import Built
from onepass.capture import launch, runner
from onepass.capture.normalize import Captured
from onepass.capture.runner import compile_runner
from onepass.codegen.emit import Source
from onepass.device import KNOWN, Device
from onepass.emulate import Buffer, EmulatedKernel, KernelSource, LaunchReport, compile_many
from onepass.plan import merge
from onepass.runtime.load import Binary

H200, _, A100, V100 = KNOWN
# What a plan asks of a device is its shared memory: 100 KB a multiprocessor, 64 KB on Turing, 228 KB on Blackwell's
# data-center parts. Source: CUDA C++ programming guide, table of compute capabilities.
DEVICES: dict[str, Device] = {
    "sm_70": V100,
    "sm_75": replace(V100, name="sm_75", arch="sm_75", threads=1024, shared_bytes=65536, blocks=16),
    "sm_80": A100,
    "sm_86": replace(A100, name="sm_86", arch="sm_86", threads=1536, shared_bytes=102400, blocks=16),
    "sm_89": replace(A100, name="sm_89", arch="sm_89", threads=1536, shared_bytes=102400, blocks=24),
    "sm_90": H200,
    "sm_100": replace(H200, name="sm_100", arch="sm_100"),
    "sm_120": replace(A100, name="sm_120", arch="sm_120", threads=1536, shared_bytes=102400, blocks=24),
}
# So few multiprocessors that no grid holds the longest rows of a test, and that a test runs as many blocks side by side.
FEW = 8
FAMILIES = {
    "flat",
    "tiled",
    "row-warp",
    "row-block",
    "row-smem",
    "row-cluster",
    "row-grid",
    "row-stream",
    "row-strided",
}


def layer_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def rms_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], w, 1e-6)


def softmax(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.softmax(x, -1)


def gelu_tanh_add_layer_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x, approximate="tanh") + r, x.shape[-1:], w, b)


def gelu_erf_add_layer_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x) + r, x.shape[-1:], w, b)


def add_rms_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    total = x + r
    return total, F.rms_norm(total, x.shape[-1:], w, 1e-6)


def bias_gelu(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(x + b, approximate="tanh")


def middle_softmax(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.softmax(x.reshape(2, -1, x.shape[-1]), 1)


def transposed_gelu(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(x + b, approximate="tanh").T.contiguous() * 2


def rotary(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * w + torch.cat([-x[..., half:], x[..., :half]], -1) * b


OPERATORS: tuple[Callable[..., Any], ...] = (
    layer_norm,
    rms_norm,
    softmax,
    gelu_tanh_add_layer_norm,
    gelu_erf_add_layer_norm,
    add_rms_norm,
    bias_gelu,
    middle_softmax,
    transposed_gelu,
    rotary,
)
ROWS = 12  # more than so few that transposing them is no turn


@lru_cache
def captured(
    dtype: torch.dtype, cols: int, operators: Sequence[Callable[..., Any]] = OPERATORS, rows: int = ROWS
) -> Captured:
    """Several operators in one graph, each with tensors of its own: tracing costs more than planning."""
    fitting = [f for f in operators if f is not rotary or cols % 2 == 0]
    inputs = [torch.empty(s, dtype=dtype) for _ in fitting for s in ((rows, cols), (rows, cols), cols, cols)]

    def graph(*given: Tensor) -> tuple[Tensor, ...]:
        results: list[Tensor] = []
        for i, f in enumerate(fitting):
            result = f(*given[4 * i : 4 * i + 4])
            results += result if isinstance(result, tuple) else [result]
        return tuple(results)

    with planning_for(H200):
        return capture(graph, inputs, pipeline.fit)


@contextmanager
def planning_for(device: Device) -> Iterator[None]:
    """Plans for a device although tensors are on the host."""
    with (
        mock.patch.object(pipeline, "of", return_value=device),
        mock.patch.object(merge, "of", return_value=device),
    ):
        yield


@dataclass
class Shop:
    """Builds for one device, compiling side by side what `build` asks for one by one."""

    device: Device
    known: dict[str, Resources] = field(default_factory=dict)

    def build(self, graphs: Sequence[Captured]) -> list[Built]:
        """Every kernel of the graphs as it would ship.

        `build` tries schedules until one does not spill. So it is run again and again: what it has not been told of
        counts as free, and is compiled after the round.
        """
        while True:
            asked: dict[str, Source] = {}

            def binary(source: Source, arch: str, asked: dict[str, Source] = asked) -> Binary:
                if source.text not in self.known:
                    asked[source.text] = source
                return Binary(b"", self.known.get(source.text, Resources(0, 0, 0, 0)))

            with planning_for(self.device), mock.patch.object(pipeline, "binary", binary):
                plans = [pipeline.build(g.program, {}) for g in graphs]
            if not asked:
                return [k for p in plans for k in p.kernels]
            self.compile(asked.values())

    def compile(self, sources: Any) -> None:
        self.known |= resources(sources, self.device.arch)

    def unaligned(self, kernels: Sequence[Built], elements: int) -> dict[str, Source]:
        """Texts that calls get, by text, whose tensors all start so many elements past 16 bytes."""
        asked: dict[str, Source] = {}

        def kernel(source: Source, arch: str, threads: int, shared_bytes: int = 0) -> Callable[..., None]:
            asked[source.text] = source
            return lambda blocks, device, values: None

        with mock.patch.object(launch, "cuda_kernel", kernel):
            for k in kernels:
                plan = launch.launch_plan(k)
                fields = [f for f in k.source.block if f.kind != "extra"]
                starts = {a.name: elements * a.dtype.nbytes for a in k.kernel.accesses}
                values = [4096 + starts[f.name] if f.kind == "pointer" else int(f.size) for f in fields]
                plan.call(*plan.sizes, *values)
        return {t: s for t, s in asked.items() if t not in {k.source.text for k in kernels}}


def spills(kernels: Sequence[Built]) -> dict[str, int]:
    """Bytes, by kernel, that it keeps outside registers."""
    return {
        f"{k.source.name}, {k.kernel.cols} columns, {k.schedule.explain()}": r.spill_bytes + r.stack_bytes
        for k in kernels
        if (r := k.resources) is None or r.spill_bytes + r.stack_bytes
    }


# Running what would ship, under the emulator


Change = Callable[[str], str]


@dataclass
class Emulation:
    """Runs a captured graph's CUDA kernels, each block watched; ``change`` is made to every text.

    Results begin ``past`` elements past 16 bytes.
    """

    graph: Captured
    device: Device
    change: Change = str
    past: int = 0
    kernels: dict[str, EmulatedKernel] = field(default_factory=dict)
    reports: list[LaunchReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        with planning_for(self.device):
            self.plan = pipeline.build(self.graph.program, {}, run=False)

    def sources(self, inputs: Sequence[Tensor]) -> dict[str, KernelSource]:
        """What a call with these tensors runs, by the text as generated."""
        asked: dict[str, KernelSource] = {}

        def note(source: Source, *_: Any) -> Callable[..., None]:
            asked[source.text] = KernelSource(source.name, self.change(source.text))
            return lambda blocks, device, values: None

        with (
            mock.patch.object(launch, "cuda_kernel", note),
            mock.patch.object(runner, "allocator", return_value=self._empty),
        ):
            compile_runner(self.plan, self.graph).run(list(inputs))
        return asked

    def _empty(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
        whole = torch.empty(math.prod(size) + self.past, dtype=dtype)
        whole.fill_(float("nan") if whole.is_floating_point() else 0)
        return whole.as_strided(size, stride, self.past)

    def run(self, inputs: Sequence[Tensor], order_seed: int = 0) -> list[Tensor]:
        """The graph's outputs, in memory that held NaN. Raises: KernelFault."""
        live = [Buffer(f"input {i}", *_span(x), False) for i, x in enumerate(inputs)]

        def empty(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
            x = self._empty(sizes, strides, dtype)
            live.append(Buffer(f"output {len(live)}", *_span(x)))
            return x

        def kernel(source: Source, arch: str, threads: int, shared_bytes: int = 0) -> Callable[..., None]:
            def start(blocks: int, device: int, values: tuple[int, ...]) -> None:
                packed = struct.pack(f"{len(values)}q", *values)
                emulated = self.kernels[source.text]
                self.reports.append(emulated.launch(blocks, threads, shared_bytes, packed, live, order_seed))

            return start

        def scratch(numel: int, device: str) -> Tensor:
            return empty((numel,), (1,), torch.float32)

        with (
            mock.patch.object(launch, "cuda_kernel", kernel),
            mock.patch.object(launch, "scratch", scratch),
            mock.patch.object(runner, "allocator", return_value=empty),
        ):
            return list(compile_runner(self.plan, self.graph).run(list(inputs)))


def _span(x: Tensor) -> tuple[int, int]:
    """Address and bytes of what a tensor covers, no more: what lies beside it belongs to others."""
    return x.data_ptr(), x.numel() * x.element_size()


def prepare(cases: Sequence[tuple[Emulation, Sequence[Tensor]]]) -> None:
    """Compiles all kernels of all cases at once."""
    asked = [e.sources(inputs) for e, inputs in cases]
    distinct = list({s: None for sources in asked for s in sources.values()})
    kernels = dict(zip(distinct, compile_many(distinct), strict=True))
    for (emulation, _), sources in zip(cases, asked, strict=True):
        emulation.kernels.update({text: kernels[s] for text, s in sources.items()})
