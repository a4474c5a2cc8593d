// One step past the first array lands in the second: no address is wrong, the index is.
// onepass-check: x=randn(64) y=out(64) grid=1 block=64
__global__ void shift(const float* x, float* y) {
  __shared__ float a[64], b[64];
  const int t = threadIdx.x;
  a[t] = x[t];
  b[t] = 0.0f;
  __syncthreads();
  y[t] = a[t + 1] + b[t];  // FAULT: out-of-bounds
}
