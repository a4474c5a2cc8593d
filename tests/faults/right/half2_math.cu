// onepass-check: n=64 x=randn(n,2) y=out(n,2) grid=1 block=n rtol=0.01 ref=references.py:relu_plus
#include <cuda_fp16.h>
__global__ void relu_plus(const __half2* x, __half2* y) {
  const __half2 zero = __float2half2_rn(0.f);
  __half2 v = x[threadIdx.x];
  v = __hmax2(v, zero);
  v = __hfma2(v, __halves2half2(__float2half(0.5f), __float2half(0.5f)), __float2half2_rn(1.0f));
  if (__hgt(__low2half(v), __high2half(v))) v = __lowhigh2highlow(__lowhigh2highlow(v));
  y[threadIdx.x] = v;
}
