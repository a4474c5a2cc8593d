"""The insight verbs on foreign kernels, one in Triton, one in a PyTorch extension; and an exported kernel on its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SOURCE = Path(__file__).parents[2] / "src"
TRITON = """
import torch, triton, triton.language as tl

@triton.jit
def add_kernel(x, r, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y + at, tl.load(x + at, inside) + tl.load(r + at, inside), inside)

def add(x, r):
    y = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, r, y, n, BLOCK=1024)
    return y

def half(x, r):
    y = torch.empty_like(x)
    n = x.numel() // 2
    add_kernel[(triton.cdiv(n, 1024),)](x, r, y, n, BLOCK=1024)
    return y

def reference(x, r):
    return x + r

def example_inputs():
    return torch.randn(8192, 8192, device="cuda"), torch.randn(8192, 8192, device="cuda")
"""
EXTENSION = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
__global__ void scaled_add_kernel(const float* x, const float* r, float* y, long long n) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + r[i];
}
torch::Tensor scaled_add(torch::Tensor x, torch::Tensor r) {
  auto y = torch::empty_like(x);
  const long long n = x.numel();
  scaled_add_kernel<<<(n + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), r.data_ptr<float>(), y.data_ptr<float>(), n);
  return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scaled_add", &scaled_add); }
"""
EXTENDED = """
import torch
import scaled_add_extension

def add(x, r):
    return scaled_add_extension.scaled_add(x, r)

def reference(x, r):
    return x + r

def example_inputs():
    return torch.randn(8192, 8192, device="cuda"), torch.randn(8192, 8192, device="cuda")
"""


def onepass(folder: Path, *words: str, code: int = 0, env: dict[str, str] | None = None) -> Any:
    paths = [str(SOURCE), str(folder), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "onepass", *words, "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p), **(env or {})},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, (words, done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    return json.loads(done.stdout)


def bench(folder: Path, file: str, name: str, *more: str, code: int = 0, **kw: Any) -> Any:
    words = ["bench", f"{file}:{name}", "--reads", "x,r", "--writes", "y", "--ref", f"{file}:reference"]
    return onepass(folder, *words, *more, code=code, **kw)


@pytest.fixture(scope="module")
def triton_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("triton")
    (folder / "kernels.py").write_text(TRITON)
    return folder


def test_bench_judges_a_triton_kernel(triton_folder: Path) -> None:
    row = bench(triton_folder, "kernels.py", "add", "--gate", "attained>=0.8")
    assert 0.8 <= row["attained"] <= 1.02 and not row["void"], row
    wrong = bench(triton_folder, "kernels.py", "half", code=1)
    assert (wrong["void"] and "attained" not in wrong) or wrong["attained"] is None, wrong


def test_inspect_reads_triton_s_cache(triton_folder: Path) -> None:
    cache = triton_folder / "cache"
    bench(triton_folder, "kernels.py", "add", env={"TRITON_CACHE_DIR": str(cache)})
    cubins = sorted(cache.rglob("add_kernel*.cubin"))
    assert cubins, "Triton kept no cubin"
    found = onepass(triton_folder, "inspect", str(cubins[0]))
    (kernel,) = found["kernels"]
    assert kernel["name"] == "add_kernel" and kernel["registers"] > 0, kernel
    accesses = {(m["space"], m["kind"], m["bits"]): m["count"] for m in kernel["memory"] or ()}
    assert accesses.get(("global", "load", 128), 0) > 0 or kernel["memory"] is None, kernel


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("nvcc") is None and not Path("/usr/local/cuda/bin/nvcc").exists():
        pytest.skip("nvcc is not installed: an extension with CUDA kernels can't be built")
    folder = tmp_path_factory.mktemp("extension")
    (folder / "scaled_add.cu").write_text(EXTENSION)
    (folder / "extended.py").write_text(EXTENDED)
    from torch.utils import cpp_extension

    includes = [f"-I{p}" for p in (*cpp_extension.include_paths("cuda"), sysconfig.get_paths()["include"])]
    libraries = [f"-L{p}" for p in cpp_extension.library_paths("cuda")]
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    major, minor = torch.cuda.get_device_capability()
    built = folder / "scaled_add_extension.so"
    command = [nvcc, "-shared", "-std=c++17", "-O3", "-Xcompiler", "-fPIC", "-lineinfo"]
    command += [f"-arch=sm_{major}{minor}", "-DTORCH_EXTENSION_NAME=scaled_add_extension"]
    command += [*includes, *libraries, str(folder / "scaled_add.cu"), "-o", str(built)]
    command += ["-ltorch", "-ltorch_cpu", "-ltorch_cuda", "-ltorch_python", "-lc10", "-lc10_cuda"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_bench_inspect_and_diff_an_extension(extension: Path, triton_folder: Path) -> None:
    row = bench(extension, "extended.py", "add")
    assert 0.5 < row["attained"] <= 1.02 and not row["void"], row
    found = onepass(extension, "inspect", "scaled_add_extension.so")
    (kernel,) = [k for k in found["kernels"] if "scaled_add_kernel" in k["name"]]
    assert kernel["registers"] > 0 and kernel["spill_bytes"] in (0, None), kernel
    other = bench(triton_folder, "kernels.py", "add")
    for name, document in (("a.json", row), ("b.json", other)):
        (extension / name).write_text(json.dumps(document))
    judged = onepass(extension, "diff", "a.json", "b.json")
    assert judged["schema"] == "onepass.diff/1" and judged["verdict"], judged


NORMS = """
import torch
def block(x, r, w, b):
    h = torch.nn.functional.gelu(x, approximate='tanh') + r
    return torch.nn.functional.layer_norm(h, (x.shape[-1],), w, b)
def example_inputs():
    return [torch.randn(n, device="DEVICE") for n in ((64, 1024), (64, 1024), (1024,), (1024,))]
"""


def test_executed_counts_are_the_same_for_inputs_on_a_gpu(tmp_path: Path) -> None:
    counts = []
    for device in ("cpu", "cuda"):
        (tmp_path / "norms.py").write_text(NORMS.replace("DEVICE", device))
        (kernel,) = onepass(tmp_path, "inspect", "norms.py:block")["kernels"]
        counts.append(kernel["executed"])
    assert counts[0] and counts[0] == counts[1]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_exported_kernel_passes_its_test_without_onepass(tmp_path: Path, device: str) -> None:
    (tmp_path / "norms.py").write_text(NORMS.replace("DEVICE", device))
    major, minor = torch.cuda.get_device_capability()
    onepass(tmp_path, "export", "norms.py:block", "--arch", f"sm_{major}{minor}", "--out", "exported")
    folder = tmp_path / "exported"
    alone = tmp_path / "alone"
    shutil.copytree(folder, alone)
    sources = sorted(p.name for p in alone.glob("*.cpp"))
    includes = [f"-I{p}" for p in _cuda_includes()]
    command = ["g++", "-O2", *includes, "-o", "self_test", *sources, "-l:libcuda.so.1"]
    built = subprocess.run(command, cwd=alone, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    ran = subprocess.run(["./self_test"], cwd=alone, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, (ran.stdout, ran.stderr)


def _cuda_includes() -> list[Path]:
    site = Path(sysconfig.get_paths()["purelib"])
    places = [*site.glob("nvidia/*/include"), *Path(torch.__file__).parents[1].glob("nvidia/*/include")]
    places.append(Path("/usr/local/cuda/include"))
    return [p for p in places if (p / "cuda.h").exists()]
