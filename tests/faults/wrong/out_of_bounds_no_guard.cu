// onepass-check: n=1000 x=randn(n) y=out(n) grid=4 block=256
__global__ void scale(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = 2.0f * x[i];  // FAULT: out-of-bounds
}
