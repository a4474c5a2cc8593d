// onepass-check: x=randint(64,high=8) y=out(1) grid=1 block=64
__device__ int counter = 0;
__global__ void count(const int* x, int* y) {
  counter += x[threadIdx.x];  // FAULT: global-race
  __syncthreads();
  if (threadIdx.x == 0) y[0] = counter;
}
