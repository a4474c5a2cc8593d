"""The contenders: one implementation each of a case, or the reason why there is none here.

Every contender takes the case's arguments and returns its outputs as new tensors. Other libraries are imported here
and nowhere else, and only when asked for.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cases import EPS, Case, Inputs
from onepass.runtime.timer import Call

Function = Callable[..., Any]


class Absent(Exception):
    """A contender has no implementation of a case, or is not installed; the message says which."""


def call_of(name: str, case: Case, inputs: Inputs) -> Call:
    """A contender on the sets of some inputs.

    Raises: Absent, with the reason.
    """
    return CONTENDERS[name](case, inputs)


def eager(case: Case, inputs: Inputs) -> Call:
    return _on(case.function, inputs)


def onepass(case: Case, inputs: Inputs) -> Call:
    """Its own kernels or nothing: an op left to PyTorch raises, and is not timed as onepass."""
    from onepass.capture.backend import Backend

    backend = Backend(whole=case.name, keep=False)
    return _on(torch.compile(_fresh(case.function), backend=backend, dynamic=False), inputs)


def inductor(case: Case, inputs: Inputs) -> Call:
    return _on(torch.compile(_fresh(case.function), backend="inductor", dynamic=False), inputs)


def liger(case: Case, inputs: Inputs) -> Call:
    if inputs.device.type != "cuda":
        raise Absent("Liger needs a GPU")
    if case.name not in LIGER:
        raise Absent("Liger has no such function")
    return _on(_imported("Liger", LIGER[case.name]), inputs)


def quack(case: Case, inputs: Inputs) -> Call:
    if inputs.device.type != "cuda":
        raise Absent("QuACK needs a GPU")
    if case.name not in QUACK:
        raise Absent("QuACK has no such function")
    function = _imported("QuACK", QUACK[case.name])
    # Its LayerNorm takes fp32 weights only; they are converted once, outside the timed part, and again when the
    # check has put new values in their place.
    return _on(function, inputs, _Widened(inputs) if case.name == "layer_norm" else None)


CONTENDERS: dict[str, Callable[[Case, Inputs], Call]] = {
    "eager": eager,
    "inductor": inductor,
    "liger": liger,
    "quack": quack,
    "onepass": onepass,
}


def _liger_layer_norm() -> Function:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, EPS)


def _liger_rms_norm() -> Function:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False, None)


def _liger_softmax() -> Function:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return lambda x: LigerSoftmaxFunction.apply(x)


def _liger_add_rms_norm() -> Function:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    return lambda x, r, weight: LigerFusedAddRMSNormFunction.apply(x, r, weight, EPS, 0.0, "llama", False)


def _liger_swiglu() -> Function:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    return lambda gate, up: LigerSiLUMulFunction.apply(gate, up)


def _quack_layer_norm() -> Function:
    from quack.rmsnorm import layernorm_fwd

    return lambda x, weight, bias: layernorm_fwd(x, weight, bias, EPS)


def _quack_rms_norm() -> Function:
    from quack.rmsnorm import rmsnorm_fwd

    return lambda x, weight: rmsnorm_fwd(x, weight, eps=EPS)[0]


def _quack_add_rms_norm() -> Function:
    from quack.rmsnorm import rmsnorm_fwd

    return lambda x, r, weight: rmsnorm_fwd(x, weight, residual=r, eps=EPS)[:2]


def _quack_softmax() -> Function:
    from quack.softmax import softmax_fwd

    return lambda x: softmax_fwd(x)


LIGER: dict[str, Callable[[], Function]] = {
    "layer_norm": _liger_layer_norm,
    "rms_norm": _liger_rms_norm,
    "softmax": _liger_softmax,
    "add_rms_norm": _liger_add_rms_norm,
    "swiglu": _liger_swiglu,
}
QUACK: dict[str, Callable[[], Function]] = {
    "layer_norm": _quack_layer_norm,
    "rms_norm": _quack_rms_norm,
    "add_rms_norm": _quack_add_rms_norm,
    "softmax": _quack_softmax,
}


def _imported(library: str, load: Callable[[], Function]) -> Function:
    try:
        return load()
    except Exception as e:
        raise Absent(f"{library} can't be imported: {type(e).__name__}: {e}") from e


def _fresh(function: Function) -> Function:
    """The same function with a code object of its own: Dynamo keeps what it compiled by code object."""
    return types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


class _Widened:
    """The vectors of a case as fp32, converted again whenever they have been written."""

    def __init__(self, inputs: Inputs) -> None:
        self.vectors = inputs.vectors
        self.versions: list[int] = []
        self.wide: list[Tensor] = []

    def now(self) -> list[Tensor]:
        versions = [v._version for v in self.vectors]
        if versions != self.versions:
            self.versions, self.wide = versions, [v.float() for v in self.vectors]
        return self.wide


def _on(function: Function, inputs: Inputs, vectors: _Widened | None = None) -> Call:
    if vectors is None:
        return lambda index: function(*inputs.arguments(index))
    return lambda index: function(*inputs.sets[index], *vectors.now())
