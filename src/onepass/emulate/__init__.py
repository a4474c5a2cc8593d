"""CUDA C++ on the CPU: compile a kernel text with the host compiler, run it block by block, watch it."""

from onepass.emulate.compile import compile_for_host, compile_many
from onepass.emulate.handwritten import HandwrittenKernel, Parameter, compile_handwritten
from onepass.emulate.launch import Buffer, EmulatedKernel, KernelSource, LaunchReport, MemorySite

__all__ = [
    "Buffer",
    "EmulatedKernel",
    "HandwrittenKernel",
    "KernelSource",
    "LaunchReport",
    "MemorySite",
    "Parameter",
    "compile_for_host",
    "compile_handwritten",
    "compile_many",
]
