// onepass-check: n=512 x=randn(n) y=out(n) grid=2 block=128 ref=references.py:half_polynomial
#include <cuda_fp16.h>
// x * x * 0.5 + 1 in half2, with its own rounding at each step.
__global__ void polynomial(const __half2* x, __half2* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n / 2) return;
  const __half2 v = x[i];
  const __half2 square = __hmul2(v, v);
  __half2 result = __hfma2(square, __float2half2_rn(0.5f), __half2half2(__float2half(1.0f)));
  __half low = __low2half(result), high = __high2half(result);
  if (low > __float2half(60000.0f)) low = __hmax(low, high);
  result = __halves2half2(low, high);
  y[i] = result;
}
