// Two sums in each warp, by a width of 16; then the same with a mask for each half.
// onepass-check: x=randn(112) y=out(7) grid=1 block=128 ref=references.py:half_sums
__global__ void half_sums(const float* x, float* y) {
  const int t = threadIdx.x, lane = t % 32;
  if (t >= 112) return;
  const unsigned mask = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  float v = x[t];
  for (int offset = 8; offset > 0; offset >>= 1) v += __shfl_down_sync(mask, v, offset, 16);
  if (t % 16 == 0) y[t / 16] = v;
}
