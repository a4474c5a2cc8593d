"""The C++ and Markdown texts of an export. They need the CUDA driver's header and library, and nothing of onepass."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onepass.codegen.arguments import Field
from onepass.ir.symbol import Poly, Size

if TYPE_CHECKING:
    from onepass.insight.export import Argument


# What the launcher calls things of its own.
TAKEN = frozenset(
    (
        "a",
        "aligned",
        "blocks",
        "check",
        "code",
        "compare",
        "context",
        "count",
        "device",
        "extent",
        "f",
        "fill",
        "folder",
        "kernels",
        "main",
        "memory",
        "parameters",
        "rows",
        "scratch",
        "stream",
        "targets",
        "value",
        "vectors",
        "wide",
        "wrong",
    )
)


@dataclass(frozen=True)
class Words:
    """What the texts are about: the function's name, its tensors, the sizes that a call gives."""

    name: str
    arguments: tuple[Argument, ...]
    symbols: Mapping[str, str]  # of the plan → in C++
    meanings: Mapping[str, str]
    archs: tuple[str, ...]

    @property
    def public(self) -> list[Argument]:
        """Inputs and outputs; scratch is the launcher's own."""
        return [a for a in self.arguments if a.role != "scratch"]

    @property
    def sizes(self) -> str:
        """Parameters of a call."""
        return "".join(f", long long {s}" for s in self.symbols.values())

    @property
    def given(self) -> str:
        """What a call passes for them."""
        return "".join(f", {s}" for s in self.symbols.values())

    def size(self, size: Size) -> str:
        """A size as a C++ expression over the launcher's arguments."""
        if not isinstance(size, Poly):
            return f"{size}LL"
        return re.sub(r"^\((\w+)\)$", r"\1", re.sub(r"\b1\*", "", size.text(self.symbols.__getitem__)))

    def shape(self, a: Argument) -> str:
        return " × ".join(self.size(n).removesuffix("LL") for n in a.shape) or "one value"


@dataclass(frozen=True)
class Launch:
    """How one kernel is started. ``masks``: (field, multiplier to bytes, mask) that must be 0 for wide accesses."""

    kernel: str
    block: tuple[Field, ...]
    rows: Size
    extent: Size
    threads: int
    shared_bytes: int
    grid: str
    extras: Mapping[str, str]
    masks: tuple[tuple[str, int, int], ...]
    wide: str
    width: int
    narrow: str


def cubins(found: Sequence[tuple[str, bytes]]) -> str:
    """Machine code as arrays."""
    parts = ["// Machine code of the kernels, one array for each and each architecture.\n#pragma once\n"]
    for label, code in found:
        lines = [", ".join(map(str, code[i : i + 32])) for i in range(0, len(code), 32)]
        body = ",\n  ".join(lines)
        parts.append(f"alignas(16) static const unsigned char {label}[] = {{\n  {body}}};\n")
    return "".join(parts)


def header(w: Words) -> str:
    tensors = "".join(f"//   {a.name}: {a.dtype.name}, {w.shape(a)}\n" for a in w.public)
    sizes = "".join(f"//   {n}: {w.meanings[s]}\n" for s, n in w.symbols.items())
    return f"""\
// Launcher of `{w.name}`: kernels that onepass generated, for {", ".join(w.archs)}. Needs the CUDA driver API alone.
//
// Tensors are device addresses, contiguous, each at a multiple of 16 bytes:
{tensors}{sizes}#pragma once
#include <cuda.h>
#include <stddef.h>

struct {w.name}_kernels;  // loaded for one context

// Loads the machine code for the current context's device. CUDA_ERROR_NO_BINARY_FOR_GPU: none of these runs on it.
CUresult {w.name}_load({w.name}_kernels** kernels);
void {w.name}_unload({w.name}_kernels* kernels);

// Bytes of device memory that a launch needs between its kernels; 0: none, `scratch` may be 0.
size_t {w.name}_scratch_bytes({w.sizes.removeprefix(", ") or "void"});

// Puts the kernels on a stream. CUDA_ERROR_MISALIGNED_ADDRESS: a tensor does not start at 16 bytes.
CUresult {w.name}_launch(const {w.name}_kernels* kernels{_tensors(w)}, CUdeviceptr scratch{w.sizes}, CUstream stream);
"""


def _tensors(w: Words) -> str:
    return "".join(f", CUdeviceptr {a.name}" for a in w.public)


def launcher_of(w: Words, arch: str, launches: Sequence[Launch], arguments: Sequence[Argument]) -> str:
    """The function that starts an architecture's kernels one after the other."""
    names = {a.tensor: a.name for a in arguments}
    body = "".join(_start(w, i, launch, names) for i, launch in enumerate(launches))
    scratch, offset = "", "0LL"
    for a in arguments:
        if a.role == "scratch":
            scratch += f"  const CUdeviceptr {a.name} = scratch + {offset};\n"
            offset += f" + {_rounded(w, a)}"
    used = "" if scratch else "  (void)scratch;\n"
    plain = w.sizes.removeprefix(", ")
    unused = "" if scratch else "".join(f"  (void){n};\n" for n in w.symbols.values())
    return f"""\
static CUresult launch_{arch}(const CUfunction* f{_tensors(w)}, CUdeviceptr scratch{w.sizes}, CUstream stream) {{
{scratch}{used}{body}  return CUDA_SUCCESS;
}}

static size_t scratch_{arch}({plain or "void"}) {{
{unused}  return (size_t)({offset});
}}

"""


def _rounded(w: Words, a: Argument) -> str:
    return f"(({w.size(a.numel)} * {a.dtype.nbytes} + 255) / 256 * 256)"


def _start(w: Words, i: int, launch: Launch, names: Mapping[str, str]) -> str:
    fields, values = [], []
    for f in launch.block:
        fields.append(f"      long long {f.name};")
        if f.kind == "pointer":
            values.append(f"(long long){names[f.tensor]} + {w.size(f.size)}")
        elif f.kind == "size":
            values.append(w.size(f.size))
        else:
            values.append("0")
    checks = " || ".join(f"((a.{n} * {by}) & {mask})" for n, by, mask in launch.masks) or "0"
    lines = [
        f"  {{  // {launch.kernel}",
        f"    const long long rows = {w.size(launch.rows)}, extent = {w.size(launch.extent)};",
        "    struct {",
        *fields,
        f"    }} a = {{{', '.join(values)}}};",
        f"    const bool aligned = !({checks});",
    ]
    if launch.narrow:
        lines.append(f"    if (!aligned) {launch.narrow}")
    if launch.wide:
        lines.append(f"    const long long wide = aligned && {launch.wide};")
        if "vectors" in launch.extras:
            lines.append(f"    const long long vectors = wide ? extent / {launch.width} : extent;")
    lines += [f"    a.{n} = {value};" for n, value in launch.extras.items()]
    lines += [
        "    (void)aligned;",
        f"    const long long blocks = {launch.grid};",
        "    void* parameters[] = {&a};",
        "    if (rows > 0 && extent > 0) {",
        f"      CUresult code = cuLaunchKernel(f[{i}], (unsigned)blocks, 1, 1, {launch.threads}, 1, 1, "
        f"{launch.shared_bytes}, stream, parameters, nullptr);",
        "      if (code) return code;",
        "    }",
        "  }",
    ]
    return "\n".join(lines) + "\n"


def launcher(w: Words, parts: Sequence[str], launches_by_arch: Mapping[str, Sequence[Launch]]) -> str:
    counts = {arch: len(found) for arch, found in launches_by_arch.items()}
    names = _table(launches_by_arch, lambda one: f'"{one.kernel}"')
    shared = _table(launches_by_arch, lambda one: str(one.shared_bytes))
    plain = w.sizes.removeprefix(", ")
    filled = "".join(parts)
    most = max(counts.values())
    given = "".join(f", {a.name}" for a in w.public)
    sizes = w.given
    loads, launches, scratches = [], [], []
    for at, arch in enumerate(w.archs):
        number = int(arch.removeprefix("sm_"))
        codes = ", ".join(f"kernel_{i}_{arch}" for i in range(counts[arch]))
        loads.append(f"  {{{number // 10}, {number % 10}, {counts[arch]}, {{{codes}}}}},")
        launches.append(
            f"    case {at}: return launch_{arch}(kernels->functions{given}, scratch{sizes}, stream);"
        )
        scratches.append(
            f"  if (scratch_{arch}({sizes.removeprefix(', ')}) > most) most = scratch_{arch}({sizes.removeprefix(', ')});"
        )
    return f"""\
#include "{w.name}.h"

#include "cubins.h"

struct {w.name}_kernels {{
  int target;
  CUmodule modules[{most}];
  CUfunction functions[{most}];
}};

struct target {{
  int major, minor, count;
  const unsigned char* code[{most}];
}};

static const target targets[] = {{
{chr(10).join(loads)}
}};

static const char* const names[][{most}] = {{{names}}};
static const int shared_bytes[][{most}] = {{{shared}}};

{filled}CUresult {w.name}_load({w.name}_kernels** kernels) {{
  CUdevice device;
  int major = 0, minor = 0, best = -1;
  CUresult code = cuCtxGetDevice(&device);
  if (!code) code = cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  if (!code) code = cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  if (code) return code;
  // Machine code runs on its own minor version and later ones of the same major version.
  for (int i = 0; i < {len(w.archs)}; ++i)
    if (targets[i].major == major && targets[i].minor <= minor && (best < 0 || targets[i].minor > targets[best].minor))
      best = i;
  if (best < 0) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  {w.name}_kernels* made = new {w.name}_kernels();
  made->target = best;
  for (int i = 0; i < targets[best].count; ++i) {{
    code = cuModuleLoadData(&made->modules[i], targets[best].code[i]);
    if (!code) code = cuModuleGetFunction(&made->functions[i], made->modules[i], names[best][i]);
    if (!code && shared_bytes[best][i] > 49152)
      code = cuFuncSetAttribute(made->functions[i], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes[best][i]);
    if (code) {{
      {w.name}_unload(made);
      return code;
    }}
  }}
  *kernels = made;
  return CUDA_SUCCESS;
}}

void {w.name}_unload({w.name}_kernels* kernels) {{
  for (CUmodule module : kernels->modules)
    if (module) cuModuleUnload(module);
  delete kernels;
}}

size_t {w.name}_scratch_bytes({plain}) {{
  size_t most = 0;
{chr(10).join(scratches)}
  return most;
}}

CUresult {w.name}_launch(const {w.name}_kernels* kernels{_tensors(w)}, CUdeviceptr scratch{w.sizes}, CUstream stream) {{
  switch (kernels->target) {{
{chr(10).join(launches)}
  }}
  return CUDA_ERROR_NO_BINARY_FOR_GPU;
}}
"""


def _table(launches: Mapping[str, Sequence[Launch]], spell: Callable[[Launch], str]) -> str:
    return ", ".join("{" + ", ".join(map(spell, found)) + "}" for found in launches.values())


def self_test(w: Words, sizes: Mapping[str, int], own_roundings: int, inner_roundings: int) -> str:
    """A program that runs the launcher on the inputs in data/ and holds it to float64."""
    declared = "".join(f"  const long long {n} = {sizes[s]};\n" for s, n in w.symbols.items())
    given = w.given
    setup, upload, check = [], [], []
    for a in w.public:
        setup.append(f"  const long long {a.name}_n = {w.size(a.numel)};")
        setup.append(f"  CUdeviceptr {a.name} = memory({a.name}_n * {a.dtype.nbytes});")
        if a.role == "input":
            upload.append(f'  fill({a.name}, read_file("{a.name}.bin", {a.name}_n * {a.dtype.nbytes}));')
        else:
            upload.append(
                f'  check(cuMemsetD8({a.name}, 0xFF, {a.name}_n * {a.dtype.nbytes}), "cuMemsetD8");  // NaN'
            )
            check.append(
                f'  wrong += compare<{_HOST[a.dtype.name]}>("{a.name}", {a.name}, {a.name}_n, {a.dtype.unit_roundoff!r});'
            )
    tensors = "".join(f", {a.name}" for a in w.public)
    lines = "\n".join((*setup, *upload))
    return f"""\
// Runs `{w.name}` on the inputs in data/ and compares with what float64 gave. Exit code 0: right, 1: wrong, 2: no result.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#include "{w.name}.h"

static std::string folder = "data";

static void check(CUresult code, const char* what) {{
  if (!code) return;
  const char* text = nullptr;
  cuGetErrorString(code, &text);
  fprintf(stderr, "%s: %s (%d)\\n", what, text ? text : "unknown error", (int)code);
  exit(2);
}}

static std::vector<char> read_file(const char* name, size_t bytes) {{
  std::string path = folder + "/" + name;
  std::vector<char> content(bytes);
  FILE* file = fopen(path.c_str(), "rb");
  if (!file || fread(content.data(), 1, bytes, file) != bytes) {{
    fprintf(stderr, "%s can't be read\\n", path.c_str());
    exit(2);
  }}
  fclose(file);
  return content;
}}

static CUdeviceptr memory(size_t bytes) {{
  CUdeviceptr p = 0;
  check(cuMemAlloc(&p, bytes ? bytes : 1), "cuMemAlloc");
  return p;
}}

static void fill(CUdeviceptr p, const std::vector<char>& content) {{
  check(cuMemcpyHtoD(p, content.data(), content.size()), "cuMemcpyHtoD");
}}

struct bf16 {{ uint16_t bits; }};
struct f16 {{ uint16_t bits; }};
template <class T> static inline double value(T x) {{ return (double)x; }}
static inline double value(bf16 x) {{
  uint32_t wide = (uint32_t)x.bits << 16;
  float f;
  memcpy(&f, &wide, 4);
  return f;
}}
static inline double value(f16 x) {{
  int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
  double v = exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
             : exponent    ? ldexp(1024 + fraction, exponent - 25)
                           : ldexp(fraction, -24);
  return x.bits & 0x8000 ? -v : v;
}}

// A result may be off by a few roundings to its own type and to fp32 inside, of its value and of a typical value.
template <class T> static int compare(const char* name, CUdeviceptr p, long long n, double unit) {{
  std::vector<T> got(n);
  check(cuMemcpyDtoH(got.data(), p, n * sizeof(T)), "cuMemcpyDtoH");
  std::vector<char> content = read_file((std::string(name) + ".bin").c_str(), n * sizeof(double));
  const double* want = (const double*)content.data();
  double squares = 0, worst = 0;
  long long finite = 0;
  for (long long i = 0; i < n; ++i)
    if (isfinite(want[i])) squares += want[i] * want[i], ++finite;
  const double typical = finite ? sqrt(squares / finite) : 0;
  const double allowed = unit > 0 ? {own_roundings} * unit + {inner_roundings} * ldexp(1, -24) : 0;
  long long wrong = 0;
  for (long long i = 0; i < n; ++i) {{
    const double g = value(got[i]), off = fabs(g - want[i]), size = fabs(want[i]) + typical;
    if (g == want[i] || (isnan(g) && isnan(want[i]))) continue;
    if (!isfinite(want[i]) || !(off <= allowed * size)) ++wrong;
    if (size > 0 && off / size > worst) worst = off / size;
  }}
  printf("%s: %lld of %lld values wrong, worst error %.1e, allowed %.1e\\n", name, wrong, n, worst, allowed);
  return wrong != 0;
}}

int main(int count, char** arguments) {{
  if (count > 1) folder = arguments[1];
{declared}  CUdevice device;
  CUcontext context;
  check(cuInit(0), "cuInit");
  check(cuDeviceGet(&device, 0), "cuDeviceGet");
  check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
{lines}
  CUdeviceptr scratch = memory({w.name}_scratch_bytes({given.removeprefix(", ")}));
  {w.name}_kernels* kernels = nullptr;
  check({w.name}_load(&kernels), "{w.name}_load");
  check({w.name}_launch(kernels{tensors}, scratch{given}, nullptr), "{w.name}_launch");
  check(cuCtxSynchronize(), "the kernels");
  int wrong = 0;
{chr(10).join(check)}
  {w.name}_unload(kernels);
  puts(wrong ? "WRONG" : "right");
  return wrong ? 1 : 0;
}}
"""


_HOST = {
    "float32": "float",
    "bfloat16": "bf16",
    "float16": "f16",
    "int64": "long long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "unsigned char",
}


def readme(w: Words, file: str, sources: Sequence[str]) -> str:
    tensors = "\n".join(f"| `{a.name}` | {a.dtype.name} | {w.shape(a)} |" for a in w.public)
    sizes = (
        "\n".join(f"- `{n}`: {w.meanings[s]}" for s, n in w.symbols.items())
        or "All sizes are constants of the kernels."
    )
    codes = " ".join(f"-gencode arch=compute_{a[3:]},code={a}" for a in w.archs)
    calls = ", ".join(["kernels", *(a.name for a in w.public), "scratch", *w.symbols.values(), "stream"])
    return f"""\
# {w.name}

CUDA kernels that onepass generated from `{w.name}` in `{file.rpartition("/")[2]}`, for {", ".join(w.archs)}. Nothing here
needs onepass or PyTorch: the CUDA driver (`libcuda.so.1`) and its header `cuda.h` are enough.

| file | what it is |
|---|---|
| {", ".join(f"`{s}`" for s in sources)} | the kernels, each a whole text without an `#include` |
| `kernel_*_sm_*.cubin`, `kernel_*.fatbin` | their machine code (the fat binary only where it could be made) |
| `{w.name}.h`, `{w.name}.cpp`, `cubins.h` | the launcher, with the machine code inside |
| `self_test.cpp`, `data/` | a test: inputs, and the results that float64 gave |

## Build and test

```sh
nvcc -O2 -o self_test self_test.cpp {w.name}.cpp -lcuda
./self_test            # prints `right`; exit code 0 right, 1 wrong, 2 no result
```

Without nvcc any C++ compiler does, given the folder of `cuda.h`: `g++ -O2 -I$CUDA_HOME/include -o self_test self_test.cpp
{w.name}.cpp -l:libcuda.so.1`.

To compile the kernels anew: `nvcc -std=c++17 -fatbin {codes} {" ".join(sources[:1])}`.

## Use

```cpp
{w.name}_kernels* kernels;
{w.name}_load(&kernels);  // once for a context
{w.name}_launch({calls});
```

| tensor | type | shape |
|---|---|---|
{tensors}

{sizes}

Tensors are contiguous and start at multiples of 16 bytes (what `cuMemAlloc` and PyTorch's allocator give); a launch of
others is refused with `CUDA_ERROR_MISALIGNED_ADDRESS`, or takes narrower accesses where the kernel has them. `scratch` is
device memory of `{w.name}_scratch_bytes(…)` bytes.
"""
