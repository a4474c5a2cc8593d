// Every block writes the same element: the last one wins, whichever that is.
// onepass-check: x=randn(256) y=out(1) grid=4 block=64
__global__ void last(const float* x, float* y) {  // FAULT: order-dependent
  if (threadIdx.x == 0) y[0] = x[blockIdx.x];
}
