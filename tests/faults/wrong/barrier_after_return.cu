// The last block is not full, and its idle threads leave before the barrier.
// onepass-check: n=100 x=randn(n) y=out(n) grid=2 block=64
__global__ void scale(const float* x, float* y, int n) {
  __shared__ float factor;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  if (threadIdx.x == 0) factor = 2.0f;
  __syncthreads();  // FAULT: barrier-divergence
  y[i] = factor * x[i];
}
