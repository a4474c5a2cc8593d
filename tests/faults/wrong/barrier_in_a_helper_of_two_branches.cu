// The same helper with a barrier is called from both sides of a branch that threads of a block decide differently.
// onepass-check: x=randn(64) y=out(64) grid=1 block=64
__device__ float total(float v, float* s) {
  s[threadIdx.x] = v;
  __syncthreads();  // FAULT: barrier-divergence
  float sum = 0.0f;
  for (int i = 0; i < 32; ++i) sum += s[threadIdx.x / 32 * 32 + i];
  return sum;
}
__global__ void two(const float* x, float* y) {
  __shared__ float s[64];
  if (threadIdx.x < 32) y[threadIdx.x] = total(x[threadIdx.x], s);  // FAULT: barrier-divergence
  else y[threadIdx.x] = 2.0f * total(x[threadIdx.x], s);  // FAULT: barrier-divergence
}
