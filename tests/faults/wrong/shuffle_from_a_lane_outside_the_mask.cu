// Lane 0 takes lane 16, which is not in the mask: what it gets is undefined, and it is used.
// onepass-check: x=randn(32) y=out(1) grid=1 block=32
__global__ void half_sum(const float* x, float* y) {
  if (threadIdx.x >= 16) return;
  float v = x[threadIdx.x];
  for (int offset = 16; offset > 0; offset >>= 1) {
    v += __shfl_down_sync(0x0000ffffu, v, offset);  // FAULT: missing-lane
  }
  if (threadIdx.x == 0) y[0] = v;
}
