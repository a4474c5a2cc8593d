// onepass-check: n=64 x=randn(n) y=out(n) grid=1 block=n ref=references.py:gelu
#include <math.h>
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * float(M_SQRT1_2))); }
__global__ void k(const float* x, float* y) {
  float v = gelu(x[threadIdx.x]);
  if (isnan(v) || isinf(v) || !isfinite(v)) v = CUDART_NAN_F;
  y[threadIdx.x] = std::max(std::min(v, 1e30f), -1e30f) + ::fmaxf(0.f, -0.f) * std::exp(0.0f);
}
