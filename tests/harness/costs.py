"""Measure what the prelude's functions cost and how far they are off: what costs.toml holds."""

from __future__ import annotations

import importlib.util
import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch

from harness.kernels import fill, map_text
from harness.math_reference import EXACT, TRANSCENDENTAL, arguments, largest_error
from harness.nvrtc import compile_cubin
from onepass.emulate import compile_for_host

UNARY = [n + suffix for n in TRANSCENDENTAL for suffix in ("", "_h")] + list(EXACT)
BINARY = ["div", "div_h", "pow", "fmod", "remainder", "max", "min"]

# Below this a result may be 0: these take a reciprocal or a power that flushes.
FLUSHING = {"exp_h", "exp2_h", "expm1_h", "sigmoid", "silu", "gelu_tanh", "gelu_erf", "softplus_h"}
FLUSHED = 2.0**-121  # x 2^-126 where x is at most 88
DENORMAL = 2.0**-147  # four steps of the smallest number: ex2 may be off by 2.5


def floor_of(name: str) -> float:
    return FLUSHED if name in FLUSHING or name.removesuffix("_h") in FLUSHING else DENORMAL


def disassembler() -> Path:
    """nvdisasm from its wheel."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    return next(p for f in folders for p in f.glob("*/bin/nvdisasm"))


_COUNTING = r"""
struct Args { const float4* x; float4* y; };
extern "C" __global__ void __launch_bounds__(256) k(const __grid_constant__ Args a) {
  const float4 v = a.x[threadIdx.x];
  float4 r;
@BODY  a.y[threadIdx.x] = r;
}
"""


def machine_code(text: str, arch: int) -> str:
    """What nvdisasm prints of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compile_cubin(text, arch).cubin)
        file.flush()
        return subprocess.run(
            [str(disassembler()), "-c", file.name], capture_output=True, text=True, check=True
        ).stdout


@lru_cache
def instructions(expression: str, arch: int) -> Counter[str]:
    """Machine instructions of a kernel that applies an expression in X and Y to four elements."""
    pairs = zip("xyzw", "yzwx", strict=True)
    body = "".join(
        f"  r.{x} = {expression};\n".replace("X", f"v.{x}").replace("Y", f"v.{y}") for x, y in pairs
    )
    # The slow path of sine and cosine is one branch, rarely taken: only its test counts.
    text = fill(_COUNTING, BODY=body).replace("t = reduce_large(x, cosine);", 'asm volatile("exit;");')
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9_]+)", machine_code(text, arch))
    return Counter(name for name in found if name != "NOP")


def cost(name: str, arch: int = 90) -> tuple[float, float]:
    """Instructions and, among them, special-function ones, for an element."""
    arguments_text = "X, Y" if name in BINARY else "X"
    extra = Counter(instructions(f"op_{name}({arguments_text})", arch))
    extra.subtract(instructions("X", arch))
    special = (
        extra["MUFU"] + extra["I2F"] + extra["I2FP"]
    )  # one pipe, a quarter of the lanes or fewer a cycle
    return sum(extra.values()) / 4, special / 4


def errors(
    folder: Path | None = None, names: Sequence[str] = (), text_change: tuple[str, str] | None = None
) -> dict[str, tuple[float, float]]:
    """Largest relative error of each function in the emulator, and the argument where."""
    names = names or [n for n in UNARY if n not in EXACT]
    text = map_text([f"op_{n}(x)" for n in names])
    if text_change:
        assert text_change[0] in text
        text = text.replace(*text_change)
    kernel = compile_for_host(text, "k", cache_dir=folder)
    x = arguments()
    y = torch.full((len(names), x.numel()), float("nan"))
    args = struct.pack("QQQq", x.data_ptr(), x.data_ptr(), y.data_ptr(), x.numel())
    kernel.launch(-(-x.numel() // 256), 256, 0, args, {"x": x, "y": y})
    return {
        n: largest_error(row, x, TRANSCENDENTAL[n.removesuffix("_h")], floor_of(n))
        for n, row in zip(names, y, strict=True)
    }
