// onepass-check: x=randn(256) part=out(4) y=out(1) grid=4 block=64 ref=references.py:last_y
__device__ unsigned int finished = 0;
__global__ void last_y(const float* x, volatile float* part, float* y) {
  __shared__ bool last;
  __shared__ float s[2];
  float v = x[blockIdx.x * 64 + threadIdx.x];
  for (int o = 16; o; o >>= 1) v += __shfl_down_sync(~0u, v, o);
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
    part[blockIdx.x] = s[0] + s[1];
    __threadfence();
    last = atomicInc(&finished, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (last) {
    if (threadIdx.x == 0) {
      float all = 0.f;
      for (unsigned b = 0; b < gridDim.x; ++b) all += part[b];
      *y = all;
      finished = 0;
    }
  }
}
