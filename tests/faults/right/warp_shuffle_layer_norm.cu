// One block a row, shuffles inside warps and one value a warp through shared memory.
// onepass-check: rows=3 cols=1000 x=randn(rows,cols) gamma=rand(cols) beta=randn(cols) y=out(rows,cols) eps=1e-5
// onepass-check: grid=rows block=256 ref=references.py:layer_norm
// onepass-check[large-mean]: x=randn(rows,cols,mean=1000)
// onepass-check[short]: cols=3
#include <cuda_runtime.h>

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_down_sync(0xffffffff, v, offset);
  return v;
}

__device__ float block_sum(float v, float* scratch) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  v = warp_sum(v);
  if (lane == 0) scratch[warp] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / 32 ? scratch[lane] : 0.0f;
  if (warp == 0) v = warp_sum(v);
  if (threadIdx.x == 0) scratch[32] = v;
  __syncthreads();
  const float total = scratch[32];
  __syncthreads();
  return total;
}

__global__ void layer_norm(const float* __restrict__ x, const float* __restrict__ gamma, const float* __restrict__ beta,
                           float* __restrict__ y, int rows, int cols, float eps) {
  __shared__ float scratch[33];
  const float* row = x + (size_t)blockIdx.x * cols;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += __ldg(row + i);
  const float mean = block_sum(sum, scratch) / cols;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) squares += (row[i] - mean) * (row[i] - mean);
  const float rstd = rsqrtf(block_sum(squares, scratch) / cols + eps);
  for (int i = threadIdx.x; i < cols; i += blockDim.x)
    y[(size_t)blockIdx.x * cols + i] = (row[i] - mean) * rstd * gamma[i] + beta[i];
}
