// onepass-check: n=65 x=randn(n) y=out(1) grid=1 block=n
__device__ float table[64];
__device__ void put(float* to, int i, float v) { to[i] = v; }  // FAULT: out-of-bounds
__global__ void keep(const float* x, float* y, int n) {
  put(table, threadIdx.x, x[threadIdx.x]);
  if (threadIdx.x == 0) y[0] = table[0];
}
