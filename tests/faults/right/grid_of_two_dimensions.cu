// onepass-check: h=19 w=45 x=randn(h,w) y=out(h,w) grid=(3,3) block=(16,8) ref=references.py:twice
__global__ void twice(const float* x, float* y, int h, int w) {
  const dim3 at(blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y);
  const uint3 b = blockIdx;
  if (at.x < w && at.y < h) y[at.y * w + at.x] = 2.0f * x[at.y * w + at.x] + 0.0f * b.x;
}
