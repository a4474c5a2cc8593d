// onepass-check: n=64 y=out(n) grid=1 block=64
__device__ float down(float x, int n) { return n == 0 ? x : down(x * 0.5f + n, n + 1) + 1.0f; }  // FAULT: stack-overflow
__global__ void endless(float* y, int n) {
  y[threadIdx.x] = down(1.0f, n);
}
