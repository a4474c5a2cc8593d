"""A CUDA driver that starts kernels in the emulator: what an exported launcher is linked with where there is no GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from onepass.emulate import Buffer, compile_for_host

_STUB = r"""
#include <cuda.h>
#include <cstdlib>
#include <cstring>
typedef int (*start_fn)(const char*, unsigned, unsigned, unsigned, const void*);
typedef void (*allocated_fn)(unsigned long long, unsigned long long);
static start_fn start;
static allocated_fn allocated;
static int capability[2];
int self_test_main(int, char**);
extern "C" {
int run_self_test(const char* folder, int major, int minor, start_fn s, allocated_fn a) {
  start = s; allocated = a; capability[0] = major; capability[1] = minor;
  char name[] = "self_test", path[4096];
  strcpy(path, folder);
  char* arguments[] = {name, path};
  return self_test_main(2, arguments);
}
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* d, int) { *d = 0; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice) { *c = nullptr; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* d) { *d = 0; return CUDA_SUCCESS; }
CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute what, CUdevice) {
  *v = capability[what == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
  return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr* p, size_t n) {
  *p = (CUdeviceptr)aligned_alloc(256, (n + 255) / 256 * 256);
  allocated(*p, n);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t n) { memcpy((void*)to, from, n); return CUDA_SUCCESS; }
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t n) { memcpy(to, (void*)from, n); return CUDA_SUCCESS; }
CUresult cuMemsetD8(CUdeviceptr to, unsigned char v, size_t n) { memset((void*)to, v, n); return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule* m, const void* code) { *m = (CUmodule)code; return CUDA_SUCCESS; }
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* f, CUmodule, const char* name) { *f = (CUfunction)name; return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char** text) { *text = "an error"; return CUDA_SUCCESS; }
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned, unsigned shared,
                        CUstream, void** parameters, void**) {
  return start((const char*)f, gx, bx, shared, parameters[0]) ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}
}
"""


def cuda_headers() -> Path:
    """The folder of the real cuda.h, from the runtime's wheel."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    return next(p.parent for f in folders for p in f.glob("*/include/cuda.h"))


@dataclass
class Exported:
    """An exported folder's host code, built with the stub. ``memory`` holds what its last run allocated."""

    folder: Path
    scratch: Path
    change: Callable[[str], str] = str
    memory: list[tuple[int, int]] = field(default_factory=list)
    started: list[str] = field(default_factory=list)

    def build(self) -> Path:
        stub = self.scratch / "stub.cpp"
        stub.write_text(_STUB)
        library = self.scratch / "exported.so"
        sources = [*self.folder.glob("*.cpp"), stub]
        command = ["g++", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Dmain=self_test_main"]
        done = subprocess.run(
            [*command, f"-I{cuda_headers()}", *map(str, sources), "-o", str(library)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return library

    def run(self, library: Path, arch: str) -> int:
        """Runs the self-test as on a device of ``sm_XX``; gives its exit code. Raises: KernelFault."""
        number = int(arch[3:])
        self.memory.clear()
        self.started.clear()
        faults: list[BaseException] = []
        texts = {re.search(r"void [^;{]*?(\w+)\(const __grid_constant__", t)[1]: t for t in self.texts(arch)}  # type: ignore[index]
        kernels = {name: compile_for_host(self.change(text), name) for name, text in texts.items()}

        def start(name: bytes, blocks: int, threads: int, shared: int, args: int) -> int:
            text = texts[name.decode()]
            fields = text.split("struct Args {")[1].split("};")[0].count(";")
            self.started.append(name.decode())
            try:
                buffers = [Buffer(f"allocation {i}", a, n) for i, (a, n) in enumerate(self.memory)]
                kernels[name.decode()].launch(
                    blocks, threads, shared, ctypes.string_at(args, 8 * fields), buffers
                )
            except Exception as error:  # noqa: BLE001 - it can't pass through C
                faults.append(error)
                return 1
            return 0

        start_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, *[ctypes.c_uint] * 3, ctypes.c_void_p)
        allocated_type = ctypes.CFUNCTYPE(None, ctypes.c_ulonglong, ctypes.c_ulonglong)
        code = ctypes.CDLL(str(library)).run_self_test(
            str(self.folder / "data").encode(),
            number // 10,
            number % 10,
            start_type(start),
            allocated_type(lambda address, size: self.memory.append((address, size))),
        )
        if faults:
            raise faults[0]
        return int(code)

    def texts(self, arch: str) -> list[str]:
        files = sorted(self.folder.glob("*.cu"))
        return [f.read_text() for f in files if "_sm_" not in f.stem or f.stem.endswith(arch)]
