// The broadcast slot is written again while slow warps still read the round before.
// onepass-check: rows=3 cols=64 x=randn(rows,cols) y=out(rows,cols) grid=1 block=64
__global__ void subtract_first(const float* x, float* y, int rows, int cols) {
  __shared__ float first;
  for (int r = 0; r < rows; ++r) {
    if (threadIdx.x == 0) first = x[r * cols];  // FAULT: shared-race
    __syncthreads();
    y[r * cols + threadIdx.x] = x[r * cols + threadIdx.x] - first;  // FAULT: shared-race
  }
}
