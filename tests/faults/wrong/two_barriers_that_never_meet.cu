// onepass-check: n=64 y=out(n) grid=1 block=n
__global__ void halves(float* y) {
  if (threadIdx.x < 32) {
    __syncthreads();  // FAULT: barrier-divergence
    y[threadIdx.x] = 1.0f;
  } else {
    __syncthreads();  // FAULT: barrier-divergence
    y[threadIdx.x] = 2.0f;
  }
}
