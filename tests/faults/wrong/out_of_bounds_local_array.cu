// onepass-check: x=randn(256) y=out(8) n=12 grid=1 block=8
__device__ void load(float* to, const float* from, int count) {
  for (int i = 0; i < count; ++i) to[i] = from[i];
}
__global__ void rows(const float* x, float* y, int n) {  // FAULT: out-of-bounds
  float r[8];
  load(r, x + threadIdx.x * 7, n);
  float sum = 0.0f;
  for (int i = 0; i < 8; ++i) sum += r[i];
  y[threadIdx.x] = sum;
}
