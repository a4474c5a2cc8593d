// Each block adds its part to what it hopes the block before has written.
// onepass-check: x=randn(256) y=zeros(4) grid=4 block=64
__global__ void chain(const float* x, float* y) {
  if (threadIdx.x == 0) {
    const float before = blockIdx.x ? y[blockIdx.x - 1] : 0.0f;  // FAULT: global-race
    y[blockIdx.x] = before + x[blockIdx.x];                      // FAULT: global-race
  }
}
