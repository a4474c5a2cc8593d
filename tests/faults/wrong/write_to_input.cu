// onepass-check: x=randn(64) y=out(64) grid=1 block=64
__global__ void relu(const float* x, float* y) {
  float* in_place = const_cast<float*>(x);
  in_place[threadIdx.x] = fmaxf(x[threadIdx.x], 0.0f);  // FAULT: write-to-read-only
  y[threadIdx.x] = x[threadIdx.x];
}
