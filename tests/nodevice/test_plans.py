"""Graphs whose capture or plan once went wrong: interpreted as captured and as merged, both are PyTorch in float64."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from harness.oracle import Oracle, capture, double
from onepass.build import build, fit
from onepass.ir.cluster import Call

ROOT = Path(__file__).parents[2]


def hardtanh(x: torch.Tensor) -> torch.Tensor:
    """Its arguments have names of their own."""
    return F.hardtanh(x, -0.5, 0.25) + F.relu6(x)


def reads_a_neighbour(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Two readers of ``y`` are merged side by side; what then reads one of them may not join the pair that way too."""
    x = x.reshape(2, 3, 21)
    y = (1.5 - x).clamp(0.25).reciprocal() + torch.arange(1, 2)
    a, b, _ = y.chunk(3, -1)
    c = b.clamp(0.25, 3.0)
    return b, torch.softmax(F.silu(a) * b, 1).mT, torch.pow(c, c).mT


def scalar_reductions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A tensor of rank 0 reduces along no dimension."""
    s = x[0, 0]
    return torch.log_softmax(s, 0), s.mean(), s.exp().amax()


def grows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The first operand is the one that broadcasts."""
    row = x.amax(1, keepdim=True)
    return (
        torch.clamp_max(row, x),
        torch.clamp_min(row, x),
        torch.lerp(row, x, 0.25),
        torch.addcmul(row[0], x, x),
    )


def between(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What lies inside the reduced dimension is a slice: two strides."""
    y = x.reshape(3, 1, 2, 21)
    z = y.expand(3, 2, 2, 21)[..., 3:17]
    return z.amax(1), torch.softmax(z, 1), z.mean(1, keepdim=True)


def straddles(x: torch.Tensor) -> torch.Tensor:
    """A slice begins in the middle of a row of the tensor behind the view."""
    flat = x.tanh().reshape(-1)
    half = flat.shape[0] // 2
    return torch.cat([-flat[half:], flat[:half]], -1) * flat


def across_pieces(x: torch.Tensor) -> torch.Tensor:
    """A slice begins in one piece of a concatenation and ends in the next."""
    return torch.cat([x.exp(), x.sin()], 0)[2:5].tanh()


GRAPHS = (hardtanh, reads_a_neighbour, scalar_reductions, grows, between, straddles, across_pieces)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.__name__)
def test_plan_is_eager(graph: Callable[..., Any]) -> None:
    x = torch.rand(3, 42, generator=torch.Generator().manual_seed(7)) * 4 - 1
    captured = capture(graph, [x], fit)
    assert not [i for i in captured.program.items if isinstance(i, Call) and i.bound in ("memory", "compute")]
    plan = build(captured.program, {}, run=False)
    merged = replace(captured.program, items=tuple(getattr(i, "cluster", i) for i in plan.items))
    expected = graph(double(x))
    for program in (captured.program, merged):
        for found, reference in zip(Oracle(captured, [x]).outputs(program), _tuple(expected), strict=True):
            # Both are float64; sums are taken in another order, and no value is above 100.
            torch.testing.assert_close(found, reference, rtol=1e-12, atol=1e-12)


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def two_values_are_kept(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    left, right = F.gelu(a) * F.silu(b), torch.tanh(a) * b.sigmoid()
    return (left + right) * a.sum(-1, keepdim=True) + left.tanh() * right * b.amax(-1, keepdim=True)


def texts() -> str:
    """What `two_values_are_kept` compiles to, and how many values it keeps."""
    inputs = [torch.rand(4, 64), torch.rand(4, 64)]
    kernels = build(capture(two_values_are_kept, inputs, fit).program, {}, run=False).kernels
    kept = sum(len(k.kernel.kept) for k in kernels)
    return f"{kept} " + hashlib.sha256("".join(k.source.text for k in kernels).encode()).hexdigest()


def test_the_text_does_not_depend_on_the_hash_seed() -> None:
    """Another process must find in the cache what this one compiled."""
    command = [sys.executable, "-c", "from nodevice.test_plans import texts; print(texts())"]
    path = os.pathsep.join(str(ROOT / name) for name in ("src", "tests"))
    running = [
        subprocess.Popen(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")  # of a set of two, these give both orders
    ]
    found = {process.communicate()[0] for process in running}
    assert not any(process.returncode for process in running)
    assert len(found) == 1
    assert int(found.pop().split()[0]) >= 2
