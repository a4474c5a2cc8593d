// Lanes 8 to 15 get undefined values from outside the mask, and nobody reads what they make of them.
// onepass-check: x=randn(16) y=out(1) grid=1 block=32 ref=references.py:half_sums
__global__ void half_sum(const float* x, float* y) {
  if (threadIdx.x >= 16) return;
  float v = x[threadIdx.x];
  for (int offset = 8; offset > 0; offset >>= 1) v += __shfl_down_sync(0x0000ffffu, v, offset);
  if (threadIdx.x == 0) y[0] = v;
}
