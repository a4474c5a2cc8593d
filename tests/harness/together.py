"""Many graphs planned, and their kernels compiled together: for the CPU, and for CUDA under the emulator."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from onepass import build as pipeline
from onepass import settings
from onepass.build import Built, Plan
from onepass.capture import launch, runner
from onepass.capture.in_place import in_place
from onepass.capture.normalize import Captured, normalize
from onepass.capture.runner import compile_runner
from onepass.codegen.cpu_prelude import cpu_library, cpu_prelude
from onepass.codegen.cuda_prelude import cuda_prelude
from onepass.codegen.emit import Source, emit
from onepass.device import KNOWN
from onepass.emulate import Buffer, EmulatedKernel, KernelSource, compile_many
from onepass.errors import CompileError
from onepass.ir.kernel import Kernel
from onepass.plan import merge
from onepass.plan.choose import candidates
from onepass.runtime.allocate import dispatched
from onepass.runtime.cache import open_cache
from onepass.runtime.launch_cpu import CpuKernel, load_kernel
from onepass.runtime.launch_cuda import Begin, CudaKernel, may_begin_early
from onepass.runtime.load import cuda_kernel
from onepass.runtime.nvrtc import compile_cubin

H200 = KNOWN[0]
# Kernels of one translation unit: enough that the prelude's 0.1 s is shared, few enough that two cores stay busy.
UNIT = 24


@dataclass(frozen=True)
class Planned:
    """A graph with kernels for one target."""

    captured: Captured
    plan: Plan
    inputs: list[torch.Tensor]

    @property
    def left(self) -> list[str]:
        """What stayed with ATen, other than views and constants."""
        return [f"{c.target}: {c.reason}" for c in self.plan.calls if c.bound not in ("view", "none")]


@contextmanager
def _target(cuda: bool) -> Iterator[None]:
    """Plans for the H200's record although tensors are on the host."""
    if not cuda:
        yield
        return

    with (
        mock.patch.object(pipeline, "of", return_value=H200),
        mock.patch.object(merge, "of", return_value=H200),
    ):
        yield


def planned(
    graph: torch.fx.GraphModule, inputs: list[torch.Tensor], cuda: bool = False, leaner: int = 0
) -> Planned:
    """``leaner`` passes over so many schedules that would be chosen first, as a spill does."""

    def others(*given: Any) -> Any:
        found = candidates(*given)
        return found if isinstance(found, str) else found[min(leaner, len(found) - 1) :]

    with _target(cuda), mock.patch.object(pipeline, "candidates", others):
        captured = normalize(graph, pipeline.fit)
        return Planned(captured, pipeline.build(captured.program, {}, run=False), inputs)


def changed(case: Planned, change: Callable[[Kernel], Kernel]) -> Planned:
    """The same plan with other kernels, to see whether a wrong one is noticed."""
    items = []
    for item in case.plan.items:
        if isinstance(item, Built):
            kernel = change(item.kernel)
            item = replace(item, kernel=kernel, source=emit(kernel, item.schedule, item.source.name))
        items.append(item)
    return replace(case, plan=replace(case.plan, items=tuple(items)))


def broken(case: Planned, pattern: str, new: str) -> Planned:
    """The same plan with each kernel's text changed in one way."""
    items = []
    for item in case.plan.items:
        if isinstance(item, Built):
            text, count = re.subn(pattern, new, item.source.text)
            assert count, f"nothing to break: {pattern}"
            item = replace(item, source=replace(item.source, text=text))
        items.append(item)
    return replace(case, plan=replace(case.plan, items=tuple(items)))


# The CPU


def run_on_cpu(cases: Sequence[Planned]) -> list[list[torch.Tensor]]:
    """Every graph's outputs, by generated kernels in torch's own memory that held NaN before."""
    with compiled_for_cpu(cases):
        return [run(c) for c in cases]


@contextmanager
def compiled_for_cpu(cases: Sequence[Planned], threads: int = 2, level: str = "-O1") -> Iterator[None]:
    """Inside it, `run` takes the kernels of these graphs, compiled together by so many threads.

    ``level`` decides how long that takes and how fast they are, and nothing else.

    One that does not compile raises its CompileError when it is asked for, and the others of its unit run.
    """
    sources = _distinct(k.source for c in cases for k in c.plan.kernels)
    unit = partial(_cpu_unit_or_errors, level=level)
    kernels = dict(zip((s.text for s in sources), _pieces(unit, sources, threads), strict=True))

    def kernel(source: Source) -> CpuKernel:
        found = kernels[source.text]
        if isinstance(found, CompileError):
            raise found
        return found

    with mock.patch.object(launch, "cpu_kernel", kernel):
        yield


def _cpu_unit_or_errors(sources: Sequence[Source], level: str) -> list[CpuKernel | CompileError]:
    try:
        return [*_cpu_unit(sources, level)]
    except CompileError as error:
        if len(sources) == 1:
            return [error]
        middle = len(sources) // 2
        return _cpu_unit_or_errors(sources[:middle], level) + _cpu_unit_or_errors(sources[middle:], level)


def _cpu_unit(sources: Sequence[Source], level: str = "-O1") -> list[CpuKernel]:
    parts = [cpu_prelude(), cpu_library()]
    names = []
    for i, s in enumerate(sources):
        names.append(f"onepass_{i}_{s.name}")
        body = s.text.removeprefix(cpu_prelude()).removeprefix(cpu_library())
        parts.append(f"#define {s.name} {names[-1]}\nnamespace onepass_{i} {{\n{body}\n}}\n#undef {s.name}\n")
    text = "".join(parts)
    # A lower level takes less time than what ships; the flags that decide results are the same.
    with mock.patch.dict(os.environ, {settings.CXX_FLAGS.name: level}):
        return [load_kernel(text, name, cache=open_cache()) for name in names]


# CUDA


@contextmanager
def compiled_for_cuda(cases: Sequence[Planned]) -> Iterator[None]:
    """Inside it, `run` takes the kernels of these graphs, compiled in units side by side, a thread a core.

    What is not among them, a kernel for tensors that are not aligned or one of a unit that does not compile, is compiled
    when it is asked for.
    """
    kernels = {k.source.text: k for c in cases for k in c.plan.kernels}
    arch = next((k.device.arch for k in kernels.values()), "")
    sources = [k.source for k in kernels.values()]
    unit = partial(_gpu_unit, arch=arch)
    found = dict(zip(kernels, _pieces(unit, sources, os.cpu_count() or 2, 8), strict=True))
    loaded: dict[str, CudaKernel] = {}

    def kernel(source: Source, arch: str, threads: int, shared_bytes: int = 0) -> CudaKernel:
        compiled = found.get(source.text)
        if compiled is None:
            return cuda_kernel(source, arch, threads, shared_bytes)
        if source.text not in loaded:
            begin: Begin = "early" if may_begin_early(arch) else "after"
            loaded[source.text] = CudaKernel(
                compiled.code, compiled.name, threads, len(source.block), shared_bytes, begin
            )
        return loaded[source.text]

    with mock.patch.object(launch, "cuda_kernel", kernel):
        yield


@dataclass(frozen=True)
class _InUnit:
    """A kernel's name in the machine code of its unit."""

    name: str
    code: bytes


def _gpu_unit(sources: Sequence[Source], arch: str) -> list[_InUnit | None]:
    """None where a unit does not compile: `run` then finds out which of its kernels it is."""
    parts, names = [cuda_prelude()], []
    for i, s in enumerate(sources):
        names.append(f"onepass_{i}_{s.name}")
        body = s.text.removeprefix(cuda_prelude())
        parts.append(f"#define {s.name} {names[-1]}\nnamespace onepass_{i} {{\n{body}\n}}\n#undef {s.name}\n")
    try:
        code = compile_cubin("".join(parts), "unit", arch).code
    except CompileError:
        return [None] * len(sources)
    return [_InUnit(name, code) for name in names]


# CUDA, emulated


def run_emulated(cases: Sequence[Planned]) -> list[list[torch.Tensor]]:
    """Like `run_on_cpu`, each block of each CUDA kernel watched: a KernelFault is raised for what no device allows."""
    with compiled_for_emulator(cases) as emulated:
        return [emulated(c, run) for c in cases]


@contextmanager
def compiled_for_emulator(cases: Sequence[Planned]) -> Iterator[Callable[..., list[torch.Tensor]]]:
    """What runs a graph, as `run` or `poisoned` does, with its CUDA kernels in the emulator."""
    asked: dict[str, Source] = {}

    def note(source: Source, arch: str, threads: int, shared_bytes: int = 0) -> Callable[..., None]:
        asked.setdefault(source.text, source)
        return lambda blocks, device, values: None

    with mock.patch.object(launch, "cuda_kernel", note):
        for c in cases:  # a launch asks for narrower kernels where tensors are not aligned
            with suppress(Exception):  # PyTorch's own ops may refuse what no kernel wrote
                poisoned(replace(c, inputs=[_copy(x) for x in c.inputs]))
    sources = list(asked.values())
    kernels = dict(zip(asked, _pieces(_cuda_unit, sources), strict=True))
    live = _Live()

    def kernel(source: Source, arch: str, threads: int, shared_bytes: int = 0) -> Callable[..., None]:
        emulated = kernels[source.text]

        def blocks_of(blocks: int, device: int, values: tuple[int, ...]) -> None:
            packed = struct.pack(f"{len(values)}q", *values)
            emulated.launch(
                blocks, threads, args=packed, buffers=live.buffers(), shared_bytes=shared_bytes, order_seed=1
            )

        return blocks_of

    def emulated(case: Planned, how: Callable[[Planned], list[torch.Tensor]]) -> list[torch.Tensor]:
        live.begin(case.inputs)
        with live:
            return how(case)

    with mock.patch.object(launch, "cuda_kernel", kernel):
        yield emulated


def _cuda_unit(sources: Sequence[Source]) -> list[EmulatedKernel]:
    return compile_many([KernelSource(s.name, s.text) for s in sources], prelude=cuda_prelude())


@dataclass
class _Live(TorchDispatchMode):
    """The memory of one run: what kernels may touch."""

    given: list[torch.Tensor] = field(default_factory=list)
    made: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def begin(self, inputs: list[torch.Tensor]) -> None:
        self.given, self.made = list(inputs), []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.made += [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        return result

    def buffers(self) -> list[Buffer]:
        found: dict[int, Buffer] = {}
        for i, x in enumerate((*self.given, *self.made)):
            storage = x.untyped_storage()
            name = f"input {i}" if i < len(self.given) else f"tensor {i}"
            found.setdefault(
                storage.data_ptr(), Buffer(name, storage.data_ptr(), storage.nbytes(), i >= len(self.given))
            )
        return list(found.values())


# Both


def _distinct(sources: Any) -> list[Source]:
    return list({s.text: s for s in sources}.values())


def _pieces(
    compile_unit: Callable[[Sequence[Source]], list[Any]],
    sources: Sequence[Source],
    threads: int = 2,
    size: int = UNIT,
) -> list[Any]:
    units = [sources[i : i + size] for i in range(0, len(sources), size)]
    with ThreadPoolExecutor(threads) as pool:
        return [k for unit in pool.map(compile_unit, units) for k in unit]


def run(case: Planned) -> list[torch.Tensor]:
    """A graph's outputs, in memory that held NaN before (integers: the largest one; booleans: a byte that is none).

    Raises: AssertionError if an input changed; what the graph raises.
    """
    before = [x.clone() for x in case.inputs]
    results = poisoned(case)
    if not all(map(_same, before, case.inputs)):
        raise AssertionError("an input changed")
    return results


def poisoned(case: Planned) -> list[torch.Tensor]:
    """Like `run`, for graphs that may write to their inputs."""
    poison = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills torch.empty_strided with NaN
    try:
        with (
            torch.no_grad(),
            mock.patch.object(runner, "allocator", dispatched),
            mock.patch.object(torch, "empty_strided", _poisoned_memory),
        ):
            results = compile_runner(case.plan, case.captured, in_place(case.plan)).run(list(case.inputs))
    finally:
        torch.use_deterministic_algorithms(poison)
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _copy(x: torch.Tensor) -> torch.Tensor:
    """The same numbers in memory aligned as before: a kernel's width depends on it."""
    whole = x.untyped_storage().clone()
    return torch.empty(0, dtype=x.dtype).set_(whole, x.storage_offset(), x.shape, x.stride())


def _poisoned_memory(
    *given: Any, make: Callable[..., torch.Tensor] = torch.empty_strided, **options: Any
) -> torch.Tensor:
    memory = make(*given, **options)
    if memory.dtype == torch.bool:  # PyTorch itself fills these with true
        memory.untyped_storage().fill_(0x5A)
    return memory


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return bool(((x == y) | ((x != x) & (y != y))).all())
