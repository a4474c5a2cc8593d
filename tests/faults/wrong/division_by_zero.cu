// onepass-check: n=0 y=out(64) grid=1 block=64
__global__ void divide(int* y, int n) {
  y[threadIdx.x] = int(threadIdx.x) / n;  // FAULT: division-by-zero
}
