"""A function computed in float64, all else as it is with narrower inputs: what a result is held to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

# What F.rms_norm adds without an epsilon: float32's, also to 16-bit inputs; but to float64 ones float64's.
RMS_EPSILON = torch.finfo(torch.float32).eps


class AsNarrow(TorchFunctionMode):
    """Within it, what PyTorch takes from the inputs' type is as it was before they were made float64."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func in (F.rms_norm, torch.rms_norm):
            names = ("input", "normalized_shape", "weight", "eps")
            given = {**dict(zip(names, args, strict=False)), **given}
            args = [given.pop("input"), given.pop("normalized_shape"), given.pop("weight", None)]
            eps = given.pop("eps", None)
            return func(*args, RMS_EPSILON if eps is None else eps, **given)
        return func(*args, **given)


def in_float64(function: Callable[..., Any], *arguments: Any, narrow: bool = True, **named: Any) -> Any:
    """Call a function with arguments that are float64 already; ``narrow``: they were not before."""
    if not narrow:
        return function(*arguments, **named)
    with AsNarrow():
        return function(*arguments, **named)


def is_narrow(values: Sequence[Any]) -> bool:
    """Whether no tensor among these is float64."""
    return not any(isinstance(v, Tensor) and v.dtype == torch.float64 for v in values)
