// onepass-check: x=randint(64,high=8) y=out(64) grid=1 block=64
__global__ void count(const int* x, int* y) {
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  atomicAdd(&total, x[threadIdx.x]);  // FAULT: shared-race
  y[threadIdx.x] = total;  // FAULT: shared-race
}
