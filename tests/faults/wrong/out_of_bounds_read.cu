// onepass-check: n=1000 x=randn(n) y=out(n) grid=4 block=256
__global__ void shift(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  y[i] = x[i] + x[i + 1];  // FAULT: out-of-bounds
}
