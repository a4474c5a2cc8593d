// onepass-check: n=1000 x=randn(n) y=out(n) factor=2.5 grid=8 block=128 ref=references.py:scale
#include <cuda_bf16.h>
__global__ void scale(const __nv_bfloat16* x, nv_bfloat16* y, int n, float factor) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = __float2bfloat16(__bfloat162float(x[i]) * factor);
}
