// onepass-check: x=randn(60) y=out(64) grid=1 block=16
__global__ void copy(const float* x, float* y) {
  memcpy(y + 4 * threadIdx.x, x + 4 * threadIdx.x, 16);  // FAULT: out-of-bounds
}
