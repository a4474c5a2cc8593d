// onepass-check: rows=3 cols=100 x=randn(rows,cols) y=out(rows) grid=rows block=128 shared=512 ref=references.py:row_sum
#include <cuda_runtime.h>
extern __shared__ float scratch[];
__global__ void row_sum(const float* __restrict__ x, float* __restrict__ y, int cols) {
  const int t = threadIdx.x;
  scratch[t] = t < cols ? x[blockIdx.x * cols + t] : 0.0f;
  __syncthreads();
  for (int o = blockDim.x / 2; o > 0; o >>= 1) {
    if (t < o) scratch[t] += scratch[t + o];
    __syncthreads();
  }
  if (t == 0) y[blockIdx.x] = scratch[0];
}
