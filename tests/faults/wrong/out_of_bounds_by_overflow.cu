// rows * cols does not fit 32 bits.
// onepass-check: row=70000 cols=70000 x=randn(64) y=out(64) grid=1 block=64
__global__ void pick(const float* x, float* y, unsigned row, unsigned cols) {
  y[threadIdx.x] = x[row * cols / cols - row + threadIdx.x];  // FAULT: out-of-bounds
}
