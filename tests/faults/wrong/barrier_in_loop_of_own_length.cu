// onepass-check: n=70 x=randn(n) y=out(1) grid=1 block=64
__global__ void sum(const float* x, float* y, int n) {
  __shared__ float s[64];
  const int t = threadIdx.x;
  s[t] = 0.0f;
  for (int i = t; i < n; i += 64) {
    s[t] += x[i];
    __syncthreads();  // FAULT: barrier-divergence
  }
  __syncthreads();  // FAULT: barrier-divergence
  if (t == 0) y[0] = s[0] + s[1];
}
