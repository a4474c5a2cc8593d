// onepass-check: rows=3 cols=32 x=randn(rows,cols) y=out(rows) grid=rows block=32 ref=references.py:row_sum
__global__ void row_sum(const float* x, float* y, int cols) {
  __shared__ float s[32];
  const int t = threadIdx.x;
  s[t] = x[blockIdx.x * cols + t];
  __syncwarp();
  for (int offset = 16; offset > 0; offset >>= 1) {
    float v = 0.0f;
    if (t < offset) v = s[t + offset];
    __syncwarp();
    if (t < offset) s[t] += v;
    __syncwarp();
  }
  if (t == 0) y[blockIdx.x] = s[0];
}
