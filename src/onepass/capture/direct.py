"""Functions called without Dynamo: captured once for each kind of arguments, their kernels then launched directly."""

from __future__ import annotations

import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._functorch.aot_autograd import aot_function
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn import Parameter

from onepass import settings
from onepass.capture.backend import boxed, compile_graph
from onepass.capture.options import Options
from onepass.capture.sizes import size
from onepass.capture.whole import require_whole, user_line
from onepass.errors import BadSetting, CannotFuse, LeftToPyTorch
from onepass.ir.symbol import Poly, Size

P = ParamSpec("P")
R = TypeVar("R")
Run = Callable[[list[Tensor]], Any]

# Shapes a function remembers before it forgets them all; each takes some hundred bytes.
MOST_SHAPES = 4096

# Looked up once: a call has a few microseconds.
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_transform, _trace = torch._C._functorch.peek_interpreter_stack, torch._C._get_tracing_state
_is_compiling, _is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
_is_autocast_enabled = torch._C._is_any_autocast_enabled


def direct(f: Callable[P, R]) -> Callable[P, R]:
    """A function of tensors and constants, and of nothing else, as kernels that are launched without Dynamo.

    It runs as it is written where kernels can't stand in for PyTorch's own ops: when gradients are needed, for tensor
    subclasses, and while something traces, watches or changes single ops. Rows, the product of all sizes but the
    last, may change freely; the last is part of what a kernel is made for.

    Raises: CannotFuse where something inside can't become part of a kernel.
    """
    held = _Direct(f, f"{f.__module__}.{f.__qualname__}")

    @wraps(f)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if _is_compiling():
            return f(*args, **kwargs)
        return held.call(args, kwargs)  # type: ignore[no-any-return]

    return call


def is_watched() -> bool:
    """Whether something traces, watches or changes the ops that are called now."""
    return bool(
        _dispatch_modes()
        or _function_modes()
        or _transform() is not None
        or _trace() is not None
        or forward_ad._current_level >= 0
    )


@dataclass(frozen=True)
class _Captured:
    """One capture: how to run it, and the arguments it holds for."""

    run: Run
    shapes: tuple[tuple[Size, ...], ...]
    strides: tuple[tuple[Size, ...] | None, ...]  # None: contiguous
    guards: tuple[Any, ...]  # conditions on sizes that the capture relied on, as sympy has them

    def holds_for(self, tensors: Sequence[Tensor]) -> bool:
        known: dict[str, int] = {}
        for sizes, strides, tensor in zip(self.shapes, self.strides, tensors, strict=True):
            if not _fits(sizes, tensor.shape, known):
                return False
            if not (tensor.is_contiguous() if strides is None else _fits(strides, tensor.stride(), known)):
                return False
        return all(bool(g.xreplace({s: known[str(s)] for s in g.free_symbols})) for g in self.guards)


def _fits(expected: Sequence[Size], found: Sequence[int], known: dict[str, int]) -> bool:
    """Whether numbers are what expressions say. A name met first, alone, takes the number; it stands for two or more."""
    for want, number in zip(expected, found, strict=True):
        if not isinstance(want, Poly):
            if want != number:
                return False
            continue
        if str(want) in want.names - known.keys() and number >= 2:
            known[str(want)] = number
        if not want.names <= known.keys() or want.value(known) != number:
            return False
    return True


@dataclass
class _Direct:
    """The captures of one function, by exact arguments for speed and by kind of arguments for finding them."""

    function: Callable[..., Any]
    name: str
    by_arguments: dict[tuple[Any, ...], Run] = field(default_factory=dict)
    by_kind: dict[tuple[Any, ...], list[_Captured]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values = (*args, *kwargs.values()) if kwargs else args
        key: list[Any] = [len(args), *kwargs]
        tensors: list[Tensor] = []
        differentiable = False
        for value in values:
            kind = type(value)
            if kind is Tensor or kind is Parameter:
                tensors.append(value)
                differentiable = differentiable or value.requires_grad
                key += (value.dtype, value.device, value.shape, value.is_contiguous() or value.stride())
            elif isinstance(value, Tensor):
                return self.function(*args, **kwargs)
            else:
                key += (kind, tuple(value) if kind is list else value)
        if (differentiable and _is_grad_enabled()) or is_watched():
            return self.function(*args, **kwargs)
        if _is_autocast_enabled():
            key += _autocast()
        held = tuple(key)
        run = self.by_arguments.get(held)
        return (run or self.find(args, kwargs, tensors, held))(tensors)

    def find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], key: tuple[Any, ...]
    ) -> Run:
        """The capture for arguments not met before; a new one if none holds for them.

        Raises: CannotFuse, BadSetting; with ONEPASS_STRICT whatever goes wrong.
        """
        with self.lock:
            captures = self.by_kind.setdefault(_kind(args, kwargs), [])
            held = next((c for c in captures if c.holds_for(tensors)), None)
            if held is None:
                held = self.capture(args, kwargs, tensors)
                captures.append(held)
            if len(self.by_arguments) >= MOST_SHAPES:
                self.by_arguments.clear()
            self.by_arguments[key] = held.run
        return held.run

    def capture(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> _Captured:
        def of_tensors(*given: Tensor) -> Any:
            left = iter(given)
            put = [next(left) if isinstance(v, Tensor) else v for v in (*args, *kwargs.values())]
            return self.function(*put[: len(args)], **dict(zip(kwargs, put[len(args) :], strict=True)))

        def run_plainly(given: list[Tensor]) -> Any:
            return of_tensors(*given)

        exact = _Captured(
            run_plainly, tuple(tuple(t.shape) for t in tensors), tuple(tuple(t.stride()) for t in tensors), ()
        )
        if settings.DISABLE.read():
            return exact
        options = Options()
        try:
            return self.compile(of_tensors, tensors, options)
        except (CannotFuse, BadSetting):
            raise
        except Exception as error:  # the user's program must run whatever is wrong with ours
            if options.strict:
                raise
            warnings.warn(LeftToPyTorch.after(self.name, error), stacklevel=2)
            return exact

    def compile(
        self, of_tensors: Callable[..., Any], tensors: Sequence[Tensor], options: Options
    ) -> _Captured:
        environment = ShapeEnv()
        mode = FakeTensorMode(shape_env=environment)
        fakes = [
            mode.from_tensor(t.detach(), source=ConstantSource(f"x{i}"), symbolic_context=_rows_change(t))
            for i, t in enumerate(tensors)
        ]
        graph, single = trace(of_tensors, fakes)
        compiled = compile_graph(graph, options)
        require_whole(compiled.plan, graph, self.name, callers_line())
        run = compiled.run
        return _Captured(
            (lambda given: run(given)[0]) if single else run,
            tuple(tuple(map(size, fake.shape)) for fake in fakes),
            tuple(
                None if t.is_contiguous() else tuple(map(size, fake.stride()))
                for t, fake in zip(tensors, fakes, strict=True)
            ),
            tuple(guard.expr for guard in environment.guards),
        )


def trace(function: Callable[..., Any], fakes: Sequence[Tensor]) -> tuple[GraphModule, bool]:
    """The graph of ATen ops behind a function, without writes in place, and whether it returns a single tensor."""
    graphs: list[GraphModule] = []
    single: list[bool] = []

    def watched(*given: Tensor) -> Any:
        result = function(*given)
        single.append(isinstance(result, Tensor))
        return result

    def keep(graph: GraphModule, inputs: Sequence[Any]) -> Any:
        graphs.append(graph)
        return boxed(graph.forward)

    compiler: Any = keep
    with torch.no_grad():
        aot_function(watched, fw_compiler=compiler, inference_compiler=compiler)(*fakes)
    return graphs[0], single[0]


def _rows_change(tensor: Tensor) -> StatelessSymbolicContext[Any, Any]:
    rank = tensor.dim()
    return StatelessSymbolicContext([DimDynamic.DUCK] * (rank - 1) + [DimDynamic.STATIC] * min(rank, 1))


def _kind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What one capture may hold for: everything but sizes and strides."""
    kinds = [len(args), *kwargs, *_autocast()]
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            kinds += (value.dtype, value.device, value.dim())
        else:
            kinds += (type(value), tuple(value) if isinstance(value, list) else value)
    return tuple(kinds)


def _autocast() -> tuple[Any, ...]:
    kinds = ("cpu", "cuda")
    return tuple(
        torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds
    )


def callers_line() -> str:
    """``file:line`` of the caller outside PyTorch and onepass."""
    return user_line("".join(traceback.format_stack()))
