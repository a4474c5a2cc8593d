// onepass-check: n=64 x=randn(n,4) y=out(n,4) grid=1 block=n ref=references.py:twice
__global__ void twice(const float* x, float* y, int n) {
  float r[4];
  memcpy(r, x + 4 * threadIdx.x, sizeof r);
  for (int k = 0; k < 4; ++k) r[k] *= 2;
  memcpy(y + 4 * threadIdx.x, r, sizeof(r));
}
