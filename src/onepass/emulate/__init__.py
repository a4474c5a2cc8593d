"""CUDA C++ on the CPU: compile a kernel text with the host compiler, run it block by block, watch what it does."""

from onepass.emulate.compile import KernelSource, compile_for_host, compile_many
from onepass.emulate.faults import CompileFault, KernelFault
from onepass.emulate.launch import Buffer, EmulatedKernel, LaunchReport

__all__ = [
    "Buffer",
    "CompileFault",
    "EmulatedKernel",
    "KernelFault",
    "KernelSource",
    "LaunchReport",
    "compile_for_host",
    "compile_many",
]
