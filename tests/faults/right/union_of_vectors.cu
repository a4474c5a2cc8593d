// onepass-check: n=64 x=randn(n,8) y=out(n,8) grid=1 block=n ref=references.py:twice
#include <cuda_bf16.h>
union Pack { uint4 raw; __nv_bfloat162 pair[4]; };
__global__ void twice(const __nv_bfloat16* x, __nv_bfloat16* y, int n) {
  Pack p;
  p.raw = reinterpret_cast<const uint4*>(x)[threadIdx.x];
#pragma unroll
  for (int k = 0; k < 4; ++k) p.pair[k] = __hadd2(p.pair[k], p.pair[k]);
  reinterpret_cast<uint4*>(y)[threadIdx.x] = p.raw;
}
