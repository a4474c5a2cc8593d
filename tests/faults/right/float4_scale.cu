// onepass-check: n=1000 x=randn(n) y=out(n) factor=2.5 grid=2 block=128 ref=references.py:scale
#include "vector_types.h"
__global__ void __launch_bounds__(128) scale(const float4* __restrict__ x, float4* __restrict__ y, int n, float factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n / 4) return;
  float4 v = x[i];
  v.x *= factor, v.y *= factor, v.z *= factor, v.w *= factor;
  y[i] = v;
}
