// onepass-check: n=64 x=randn(n,2) y=out(n,2) grid=1 block=n rtol=0.02 ref=references.py:exponential
#include <cuda_bf16.h>
__global__ void exponential(const __nv_bfloat162* x, __nv_bfloat162* y) {
  y[threadIdx.x] = h2exp(x[threadIdx.x]);
}
