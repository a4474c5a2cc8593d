// onepass-check: x=randn(64) y=out(64) grid=1 block=64
__global__ void iterate(const float* x, float* y) {
  __shared__ float s[64];
  const int t = threadIdx.x;
  s[t] = x[t];
  for (int k = 0; k < 8; ++k) {
    if (fabsf(x[t]) < 0.1f * k) break;
    __syncthreads();  // FAULT: barrier-divergence
    s[t] *= 0.5f;
  }
  __syncthreads();  // FAULT: barrier-divergence
  y[t] = s[63 - t];
}
