// onepass-check: x=randn(32) y=out(32) grid=1 block=32
__global__ void both(const float* x, float* y) {
  float v = x[threadIdx.x];
  if (threadIdx.x % 2) {
    v = 2.0f * __shfl_xor_sync(0xffffffffu, v, 2);  // FAULT: warp-divergence
  } else {
    v = __shfl_xor_sync(0xffffffffu, v + 1.0f, 4);  // FAULT: warp-divergence
  }
  y[threadIdx.x] = v;
}
