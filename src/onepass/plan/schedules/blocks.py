"""CUDA: columns in blocks, each of which one stride passes, as schedules that take whole vectors see them.

A group norm's row is contiguous, its weight one value a channel; a training batch norm's row is a piece of each image.
Where vectors divide what one stride passes (`Kernel.run`), none goes over its end: a vector of an access lies in one block,
whose number is a division by a constant.
"""

from __future__ import annotations

from dataclasses import replace

from onepass.ir.kernel import Access, Kernel
from onepass.plan.schedules.row import vector_width


def irregular(kernel: Kernel) -> bool:
    """Whether columns are in blocks that vectors don't divide, or whose sizes are only known at run time."""
    if not kernel.blocks:
        return False
    sizes = (*kernel.blocks, kernel.run)
    known = [s for s in sizes if isinstance(s, int)]
    return kernel.axis != "reduced" or len(known) < len(sizes) or known[-1] % vector_width(kernel) != 0


def straightened(kernel: Kernel) -> Kernel:
    """The kernel whose accesses have blocks only where no one stride passes all their columns."""
    return replace(kernel, accesses=tuple(_straightened(kernel, a) for a in kernel.accesses))


def _straightened(kernel: Kernel, a: Access) -> Access:
    step = a.step * kernel.run
    for size, stride in zip(reversed(kernel.blocks), reversed(a.blocks), strict=True):
        if stride != step:
            return a
        step = step * size
    return replace(a, blocks=())
