"""CUDA C++ on the CPU: compile a kernel text with the host compiler, run it block by block, watch it."""

from onepass.emulate.compile import compile_for_host, compile_many
from onepass.emulate.launch import Buffer, EmulatedKernel, KernelSource, LaunchReport

__all__ = [
    "Buffer",
    "EmulatedKernel",
    "KernelSource",
    "LaunchReport",
    "compile_for_host",
    "compile_many",
]
