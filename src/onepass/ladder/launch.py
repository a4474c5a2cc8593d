"""A rung on the present GPU: its kernels loaded, and called one after the other on the current stream."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from onepass.ladder.compiled import Compiled
from onepass.runtime.launch_cuda import check, driver, loaded

SLOT_BYTES = 8


class Loaded:
    """One kernel in the driver."""

    def __init__(self, compiled: Compiled) -> None:
        """Raises: DriverError when the driver refuses the code."""
        self.step = compiled.step
        self._function = loaded(compiled.code, self.step.kernel, self.step.shared_bytes)

    def prepared(self, tensors: Mapping[str, Tensor]) -> Prepared:
        """The kernel with its arguments laid out; it keeps the tensors, of which the kernel has only addresses."""
        values = self.step.values({n: t.data_ptr() for n, t in tensors.items()})
        return Prepared(self, values, tuple(tensors.values()))

    def launch(self, pointers: ctypes.Array[ctypes.c_void_p]) -> None:
        stream = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())
        code = driver().cuLaunchKernel(
            self._function,
            self.step.grid,
            1,
            1,
            self.step.block,
            1,
            1,
            self.step.shared_bytes,
            ctypes.c_void_p(stream),
            pointers,
            None,
        )
        check(code, f"cuLaunchKernel({self.step.kernel})")


class Prepared:
    """A kernel and one set of arguments: each in a slot of eight bytes, of which an int takes the lower half."""

    def __init__(self, kernel: Loaded, values: Sequence[int], tensors: tuple[Tensor, ...]) -> None:
        self._kernel, self._tensors = kernel, tensors
        self._slots = (ctypes.c_int64 * len(values))(*values)
        first = ctypes.addressof(self._slots)
        count = 1 if kernel.step.block_struct else len(values)
        self._pointers = (ctypes.c_void_p * count)(*(first + SLOT_BYTES * i for i in range(count)))

    def __call__(self) -> None:
        self._kernel.launch(self._pointers)


def load(compiled: Sequence[Compiled]) -> list[Loaded]:
    return [Loaded(c) for c in compiled]
