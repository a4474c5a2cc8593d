// Each element becomes the mean of itself and its neighbour, in place: a neighbour may be new already.
// onepass-check: x=randn(65) grid=1 block=64
__global__ void smooth(float* x) {
  const int i = threadIdx.x;
  x[i] = 0.5f * (x[i] + x[i + 1]);  // FAULT: global-race
}
