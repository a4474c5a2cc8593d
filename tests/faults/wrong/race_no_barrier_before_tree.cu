// onepass-check: rows=2 cols=300 x=randn(rows,cols) y=out(rows) grid=rows block=128
extern "C" __global__ void row_sum(const float* x, float* y, int cols) {
  __shared__ float s[128];
  const int t = threadIdx.x;
  float sum = 0.0f;
  for (int i = t; i < cols; i += blockDim.x) sum += x[blockIdx.x * cols + i];
  s[t] = sum;  // FAULT: shared-race
  for (int offset = 64; offset > 0; offset >>= 1) {
    if (t < offset) s[t] += s[t + offset];  // FAULT: shared-race
    __syncthreads();
  }
  if (t == 0) y[blockIdx.x] = s[0];
}
