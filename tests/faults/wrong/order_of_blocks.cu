// Each block adds its part without an atomic to what it hopes is there already.
// onepass-check: x=randn(256) y=zeros(4) grid=4 block=64
__global__ void chain(const float* x, float* y) {  // FAULT: order-dependent
  if (threadIdx.x == 0) {
    const float before = blockIdx.x ? y[blockIdx.x - 1] : 0.0f;
    y[blockIdx.x] = before + x[blockIdx.x];
  }
}
