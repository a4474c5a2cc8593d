// onepass-check: n=128 x=randn(n) y=out(n) grid=1 block=n ref=references.py:prefix
__device__ float warp_scan(float v) {
  const int lane = threadIdx.x & 31;
  for (int o = 1; o < 32; o <<= 1) {
    const float up = __shfl_up_sync(0xffffffff, v, o);
    if (lane >= o) v += up;
  }
  return v;
}
__global__ void prefix(const float* x, float* y) {
  __shared__ float ends[32];
  float v = warp_scan(x[threadIdx.x]);
  if ((threadIdx.x & 31) == 31) ends[threadIdx.x >> 5] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    float e = threadIdx.x < blockDim.x / 32 ? ends[threadIdx.x] : 0.f;
    e = warp_scan(e);
    ends[threadIdx.x] = e;
  }
  __syncthreads();
  if (threadIdx.x >= 32) v += ends[(threadIdx.x >> 5) - 1];
  y[threadIdx.x] = v;
}
