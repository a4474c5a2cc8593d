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
from torch._C._dynamo.guards import TensorGuards
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
from onepass.errors import BadOption, BadSetting, CannotFuse, LeftToPyTorch
from onepass.ir.symbol import Poly, Size

P = ParamSpec("P")
R = TypeVar("R")
Run = Callable[[list[Tensor]], Any]

# Shapes a function remembers before it forgets them all; each takes some hundred bytes.
MOST_SHAPES = 4096
# Captures a function keeps; the one used longest ago goes first. Each takes some 20 KB, and 50 ms to make anew when its
# kernel is in the cache (softmax of 90 shapes, Zen 3, 2026-11-30).
MOST_CAPTURES = 128

# What kernels are made for besides tensors. Any other argument is a tracer's stand-in for a value, or a mistake.
_CONSTANTS = (int, float, str, type(None), torch.dtype)

# Looked up once: a call has a few microseconds.
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_transform, _trace = torch._C._functorch.peek_interpreter_stack, torch._C._get_tracing_state
_is_compiling, _is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
_is_autocast_enabled = torch._C._is_any_autocast_enabled


def direct(f: Callable[P, R]) -> Callable[P, R]:
    """A function of tensors and constants, and of nothing else, as kernels that are launched without Dynamo.

    It runs as it is written where kernels can't stand in for PyTorch's own ops: when gradients are needed, for tensor
    subclasses and tensors that are not plain memory, while something traces, watches or changes single ops, and where
    one of its ops is denied. Rows, the product of all sizes but the last, may change freely; the last is part of what a
    kernel is made for. Settings hold for the captures made while they are set, as with a compiled graph.

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


def is_constant(value: Any) -> bool:
    """Whether a kernel can be made for a value: numbers, names, dtypes, and sequences of them."""
    if isinstance(value, (tuple, list)):
        return all(map(is_constant, value))
    return isinstance(value, _CONSTANTS)


@dataclass(frozen=True, eq=False)
class _Captured:
    """One capture: how to run it, and the arguments it holds for. Without ``run`` all of its kind run in PyTorch."""

    kind: tuple[Any, ...]
    run: Run | None = None
    shapes: tuple[tuple[Size, ...], ...] = ()
    strides: tuple[tuple[Size, ...] | None, ...] = ()  # None: contiguous
    guards: tuple[Any, ...] = ()  # conditions on sizes that the capture relied on, as sympy has them

    def holds_for(self, kind: tuple[Any, ...], tensors: Sequence[Tensor]) -> bool:
        """Whether it was made for arguments of a kind and for tensors of such sizes and strides."""
        if self.kind != kind or self.run is None:
            return self.kind == kind
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


@dataclass(frozen=True)
class _Seen:
    """Arguments met before: what checks in one call that tensors are like theirs in all but values, and what runs them."""

    is_like: Callable[..., bool]
    run: Run


@dataclass
class _Direct:
    """The captures of one function, and which of them to run for arguments met before.

    Looking up takes as long as launching: ``seen`` is found by the sizes alone, and Dynamo's guard, which is compiled code,
    checks what else a kernel relies on: dtypes, devices, strides, gradients, and which modes and transforms there are.
    """

    function: Callable[..., Any]
    name: str
    seen: dict[tuple[Any, ...], _Seen] = field(default_factory=dict)
    by_arguments: dict[tuple[Any, ...], Run] = field(default_factory=dict)
    captures: list[_Captured] = field(default_factory=list)  # the one used last is the last
    lock: threading.RLock = field(default_factory=threading.RLock)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function's result.

        Raises: what `meet` raises, and what the function does.
        """
        tensors: list[Tensor] = []
        # What was met without gradients says nothing of a call with them: the guard may not look at the mode.
        key: list[Any] = [_is_grad_enabled(), len(args), *kwargs]
        for value in (*args, *kwargs.values()) if kwargs else args:
            kind = type(value)
            if kind is Tensor or kind is Parameter:
                tensors.append(value)
                key.append(value.shape)
            else:
                key += (kind, value)
        short: tuple[Any, ...] | None = tuple(key)
        try:
            seen = self.seen.get(short)  # type: ignore[arg-type]
        except TypeError:  # no hash: no constant, or a list
            short = seen = None
        if seen is not None and seen.is_like(*tensors) and not _function_modes():
            return seen.run(tensors)
        return self.look_up(args, kwargs, short)

    def look_up(self, args: tuple[Any, ...], kwargs: dict[str, Any], short: tuple[Any, ...] | None) -> Any:
        """The result for arguments that may be like others in their sizes only; they are `seen` from then on.

        Raises: as `call`.
        """
        values = (*args, *kwargs.values()) if kwargs else args
        key: list[Any] = [len(args), *kwargs]
        tensors: list[Tensor] = []
        differentiable = False
        try:
            for value in values:
                kind = type(value)
                if kind is Tensor or kind is Parameter:
                    tensors.append(value)
                    differentiable = differentiable or value.requires_grad
                    key += (value.dtype, value.device, value.shape, value.is_contiguous() or value.stride())
                    key += (value.layout, value.is_neg())
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
        except (TypeError, RuntimeError):  # no strides, no hash: neither a plain tensor nor a constant
            run = held = None
        if held is None:
            return self.function(*args, **kwargs)
        if run is None:
            return self.meet(args, kwargs, tensors, held)
        if short is not None and not _is_autocast_enabled():  # no guard checks autocast's dtype
            self.seen[short] = _Seen(_guard(tensors), run)
        return run(tensors)

    def meet(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], key: tuple[Any, ...]
    ) -> Any:
        """The result for arguments that no kernel is remembered for.

        Raises: CannotFuse, BadOption, BadSetting; with ONEPASS_STRICT whatever goes wrong.
        """
        run = None
        if self.is_for_kernels(args, kwargs, tensors):
            with self.lock:
                run = self.find(args, kwargs, tensors)
                if run is not None:
                    if len(self.by_arguments) >= MOST_SHAPES:
                        self.by_arguments.clear()
                        self.seen.clear()
                    self.by_arguments[key] = run
        return run(tensors) if run is not None else self.function(*args, **kwargs)

    def is_for_kernels(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> bool:
        """Whether arguments are tensors in plain memory and constants, and kernels are wanted at all."""
        constants = [v for v in (*args, *kwargs.values()) if not isinstance(v, Tensor)]
        plain = all(t.layout is torch.strided and not t.is_neg() for t in tensors)
        return plain and is_constant(constants) and not settings.DISABLE.read()

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Run | None:
        """How the capture that holds for arguments runs, a new one if none does; None where PyTorch is to run them."""
        options = Options()
        kind = (options, *_kind(args, kwargs))
        held = next((c for c in self.captures if c.holds_for(kind, tensors)), None)
        if held is None:
            held = self.capture(args, kwargs, tensors, kind, options)
        else:
            self.captures.remove(held)
        self.captures.append(held)
        if len(self.captures) > MOST_CAPTURES:
            del self.captures[0]
            self.by_arguments.clear()  # these may hold the one that went
            self.seen.clear()
        return held.run

    def capture(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        kind: tuple[Any, ...],
        options: Options,
    ) -> _Captured:
        """A capture made now, or one that leaves all of its kind to PyTorch, with a warning, after a failure of ours.

        Raises: as `meet`; what the function raises where the arguments are at fault.
        """

        def of_tensors(*given: Tensor) -> Any:
            left = iter(given)
            put = [next(left) if isinstance(v, Tensor) else v for v in (*args, *kwargs.values())]
            return self.function(*put[: len(args)], **dict(zip(kwargs, put[len(args) :], strict=True)))

        try:
            return self.compile(of_tensors, tensors, kind, options)
        except (CannotFuse, BadOption, BadSetting):
            raise
        except Exception as error:  # noqa: BLE001 - the user's program must run whatever is wrong with ours
            failure = error
        self.function(*args, **kwargs)  # raises here, in PyTorch's words, if the arguments are what is wrong
        if options.strict:
            raise failure
        warnings.warn(LeftToPyTorch.after(self.name, failure), stacklevel=2)
        return _Captured(kind)

    def compile(
        self,
        of_tensors: Callable[..., Any],
        tensors: Sequence[Tensor],
        kind: tuple[Any, ...],
        options: Options,
    ) -> _Captured:
        """The function of tensors, traced with sizes as names, as kernels.

        Raises: CannotFuse where they can't be all of it; whatever goes wrong.
        """
        environment = ShapeEnv()
        mode = FakeTensorMode(shape_env=environment)
        fakes = [
            mode.from_tensor(t.detach(), source=ConstantSource(f"x{i}"), symbolic_context=_rows_change(t))
            for i, t in enumerate(tensors)
        ]
        graph, single = trace(of_tensors, fakes)
        compiled = compile_graph(graph, options)
        if any(call.reason.startswith("denied") for call in compiled.plan.calls):
            return _Captured(kind)
        require_whole(compiled.plan, graph, self.name, callers_line())
        run = compiled.run
        return _Captured(
            kind,
            (lambda given: run(given)[0]) if single else run,
            tuple(tuple(map(size, fake.shape)) for fake in fakes),
            tuple(
                None if t.is_contiguous() else tuple(map(size, fake.stride()))
                for t, fake in zip(tensors, fakes, strict=True)
            ),
            # A size that one of them made a number is that number in the shapes too.
            tuple(environment.replace(guard.expr) for guard in environment.guards),
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


def _guard(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """What says whether other tensors are like these in type, dispatch keys, dtype, device, gradients, sizes, strides."""
    guards = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return guards.check


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
