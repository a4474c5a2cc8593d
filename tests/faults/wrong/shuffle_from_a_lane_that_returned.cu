// The sum reads lanes 20 to 31, which have returned: what it gets is undefined, and it is used.
// onepass-check: x=randn(20) y=out(1) n=20 grid=1 block=32
__global__ void sum(const float* x, float* y, int n) {
  if (threadIdx.x >= n) return;
  float v = x[threadIdx.x];
  for (int offset = 16; offset > 0; offset >>= 1) {
    v += __shfl_down_sync(0xffffffffu, v, offset);  // FAULT: missing-lane
  }
  if (threadIdx.x == 0) y[0] = v;
}
