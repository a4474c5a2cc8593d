// Columns past the last full stride are left out.
// onepass-check: rows=3 cols=300 x=randn(rows,cols,mean=1) y=out(rows) grid=rows block=32 ref=../right/references.py:row_sum
__global__ void row_sum(const float* x, float* y, int cols) {  // FAULT: wrong-result
  float sum = 0.0f;
  for (int trip = 0; trip < cols / 32; ++trip) sum += x[blockIdx.x * cols + trip * 32 + threadIdx.x];
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
