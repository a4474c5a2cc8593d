// The zero is stored while others add already.
// onepass-check: x=randint(64,high=8) y=out(1) grid=1 block=64
__global__ void count(const int* x, int* y) {
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;  // FAULT: shared-race
  atomicAdd(&total, x[threadIdx.x]);  // FAULT: shared-race
  __syncthreads();
  if (threadIdx.x == 0) y[0] = total;
}
