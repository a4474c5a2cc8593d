// A sum by a tree in shared memory, one barrier a step.
// onepass-check: rows=5 cols=300 x=randn(rows,cols) y=out(rows) grid=rows block=64 ref=references.py:row_sum
// onepass-check[large]: x=randn(rows,cols,mean=100)
#include <cuda_runtime.h>

extern "C" __global__ void row_sum(const float* __restrict__ x, float* __restrict__ y, int cols) {
  __shared__ float s[64];
  const int t = threadIdx.x;
  float sum = 0.0f;
  for (int i = t; i < cols; i += blockDim.x) sum += x[blockIdx.x * cols + i];
  s[t] = sum;
  __syncthreads();
  for (int offset = blockDim.x / 2; offset > 0; offset >>= 1) {
    if (t < offset) s[t] += s[t + offset];
    __syncthreads();
  }
  if (t == 0) y[blockIdx.x] = s[0];
}
