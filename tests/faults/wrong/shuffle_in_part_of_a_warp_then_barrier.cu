// onepass-check: x=randn(64) y=out(64) grid=1 block=64
__global__ void pairs(const float* x, float* y) {
  __shared__ float s[64];
  float v = x[threadIdx.x];
  if (threadIdx.x % 32 >= 4) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);  // FAULT: missing-lane
  }
  s[threadIdx.x] = v;
  __syncthreads();
  y[threadIdx.x] = s[63 - threadIdx.x];
}
