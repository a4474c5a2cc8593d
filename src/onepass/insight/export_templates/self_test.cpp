// Runs `${name}` on the inputs in data/ and compares with what float64 gave. Exit code 0: right, 1: wrong, 2: no result.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#include "${name}.h"

static std::string folder = "data";

static void check(CUresult code, const char* what) {
  if (!code) return;
  const char* text = nullptr;
  cuGetErrorString(code, &text);
  fprintf(stderr, "%s: %s (%d)\n", what, text ? text : "unknown error", (int)code);
  exit(2);
}

static std::vector<char> read_file(const char* name, size_t bytes) {
  std::string path = folder + "/" + name;
  std::vector<char> content(bytes);
  FILE* file = fopen(path.c_str(), "rb");
  if (!file || fread(content.data(), 1, bytes, file) != bytes) {
    fprintf(stderr, "%s can't be read\n", path.c_str());
    exit(2);
  }
  fclose(file);
  return content;
}

static CUdeviceptr memory(size_t bytes) {
  CUdeviceptr p = 0;
  check(cuMemAlloc(&p, bytes ? bytes : 1), "cuMemAlloc");
  return p;
}

static void fill(CUdeviceptr p, const std::vector<char>& content) {
  check(cuMemcpyHtoD(p, content.data(), content.size()), "cuMemcpyHtoD");
}

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };
template <class T> static inline double value(T x) { return (double)x; }
static inline double value(bf16 x) {
  uint32_t wide = (uint32_t)x.bits << 16;
  float f;
  memcpy(&f, &wide, 4);
  return f;
}
static inline double value(f16 x) {
  int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
  double v = exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
             : exponent    ? ldexp(1024 + fraction, exponent - 25)
                           : ldexp(fraction, -24);
  return x.bits & 0x8000 ? -v : v;
}

// A result may be off by a share of its own and of a typical magnitude, and by what its type can't tell from 0.
template <class T>
static int compare(const char* name, CUdeviceptr p, long long n, double share, double typical, double least) {
  std::vector<T> got(n);
  check(cuMemcpyDtoH(got.data(), p, n * sizeof(T)), "cuMemcpyDtoH");
  std::vector<char> content = read_file((std::string(name) + ".bin").c_str(), n * sizeof(double));
  const double* want = (const double*)content.data();
  double worst = 0;
  long long wrong = 0;
  for (long long i = 0; i < n; ++i) {
    const double g = value(got[i]), off = fabs(g - want[i]), size = fabs(want[i]) + typical;
    if (g == want[i] || (isnan(g) && isnan(want[i]))) continue;
    if (!isfinite(want[i]) || !(off <= share * size + least)) ++wrong;
    if (size > 0 && off / size > worst) worst = off / size;
  }
  printf("%s: %lld of %lld values wrong, worst error %.1e, allowed %.1e\n", name, wrong, n, worst, share);
  return wrong != 0;
}

int main(int count, char** arguments) {
  if (count > 1) folder = arguments[1];
${declared}  CUdevice device;
  CUcontext context;
  check(cuInit(0), "cuInit");
  check(cuDeviceGet(&device, 0), "cuDeviceGet");
  check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
${lines}
  CUdeviceptr scratch = memory(${name}_scratch_bytes(${sizes_alone}));
  ${name}_kernels* kernels = nullptr;
  check(${name}_load(&kernels), "${name}_load");
  check(${name}_launch(kernels${tensors}, scratch${sizes}, nullptr), "${name}_launch");
  check(cuCtxSynchronize(), "the kernels");
  int wrong = 0;
${compares}
  ${name}_unload(kernels);
  puts(wrong ? "WRONG" : "right");
  return wrong ? 1 : 0;
}
