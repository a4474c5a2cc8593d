// onepass-check: x=randn(40) y=out(40) n=40 grid=1 block=64
__global__ void any_negative(const float* x, float* y, int n) {
  __shared__ int any[64];
  const int t = threadIdx.x;
  if (t < n) {
    any[t] = __any_sync(0xffffffffu, x[t] < 0.0f);  // FAULT: missing-lane
  }
  __syncthreads();
  if (t < n) y[t] = any[0];
}
