// A functor, a namespace, a macro for device functions, a lambda, a counter that outlives a launch, two kernels.
// onepass-check: rows=6 cols=64 x=randn(rows,cols) y=out(1) grid=rows block=64 kernel=total<Sum>
// onepass-check: ref=references.py:total
// onepass-check[row-sums]: kernel=row_sum y=out(rows) ref=references.py:row_sum
#include <cassert>
#include <math.h>
#define DEVICE __device__ __forceinline__

struct Sum {
  DEVICE float operator()(float a, float b) const { return a + b; }
};

namespace detail {
template <class F>
DEVICE float reduce_warp(float v, F f) {
  for (int o = 16; o > 0; o >>= 1) v = f(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}
}  // namespace detail

__device__ unsigned blocks_done = 0;
__device__ float part[64];

template <class F>
__global__ void total(const float* __restrict__ x, float* y, int cols) {
  __shared__ float s[2];
  __shared__ bool last;
  auto at = [&](int c) { return x[blockIdx.x * cols + c]; };
  const float v = detail::reduce_warp(at(threadIdx.x), F());
  assert(cols == 64);
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
    part[blockIdx.x] = F()(s[0], s[1]);
    __threadfence();
    last = atomicAdd(&blocks_done, 1) == gridDim.x - 1;
    if (last) {
      float sum = 0;
      for (unsigned b = 0; b < gridDim.x; b++) sum += part[b];
      *y = sum;
    }
  }
}

extern "C" {
__global__ void row_sum(const float* x, float* y, int cols) {
  float sum = 0;
  for (int c = threadIdx.x; c < cols; c += 64) sum += x[blockIdx.x * cols + c];
  __shared__ float s[2][32];
  (&s[0][0])[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = detail::reduce_warp(s[0][threadIdx.x] + s[1][threadIdx.x], Sum{});
    if (!threadIdx.x) y[blockIdx.x] = sum;
  }
}
}
