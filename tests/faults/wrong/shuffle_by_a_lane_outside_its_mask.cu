// onepass-check: x=randn(32) y=out(32) grid=1 block=32
__global__ void pairs(const float* x, float* y) {
  y[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, x[threadIdx.x], 1);  // FAULT: missing-lane
}
