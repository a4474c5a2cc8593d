// onepass-check: x=randn(64) y=out(1) grid=1 block=64
__global__ void sum(const float* x, float* y) {
  __shared__ float total;
  atomicAdd(&total, x[threadIdx.x]);  // FAULT: unwritten-shared
  __syncthreads();
  if (threadIdx.x == 0) y[0] = total;
}
