// onepass-check: n=64 x=randn(n) y=out(n) grid=1 block=n
__global__ void reverse(const float* x, float* y, int n) {
  __shared__ float s[64];
  const int t = threadIdx.x;
  s[t] = x[t];
  if (t < 40) {
    __syncthreads();  // FAULT: barrier-divergence
  }
  __syncthreads();  // FAULT: barrier-divergence
  y[t] = s[63 - t];
}
