// onepass-check: x=randn(64) y=out(32) grid=1 block=64
__global__ void halve(const float* x, float* y) {
  __shared__ float s[32];
  s[threadIdx.x / 2] = x[threadIdx.x];  // FAULT: shared-race
  __syncthreads();
  if (threadIdx.x < 32) y[threadIdx.x] = s[threadIdx.x];
}
