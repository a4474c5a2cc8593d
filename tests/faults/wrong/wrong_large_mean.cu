// Mean of squares minus square of the mean: right at a mean of 0, wrong at 1000.
// onepass-check: rows=2 cols=512 x=randn(rows,cols) y=out(rows) grid=rows block=32 ref=../right/references.py:row_variance
// onepass-check[large-mean]: x=randn(rows,cols,mean=1000)
__global__ void row_variance(const float* x, float* y, int cols) {  // FAULT: wrong-result
  float sum = 0.0f, squares = 0.0f;
  for (int i = threadIdx.x; i < cols; i += 32) {
    const float v = x[blockIdx.x * cols + i];
    sum += v;
    squares += v * v;
  }
  for (int o = 16; o > 0; o >>= 1) {
    sum += __shfl_xor_sync(0xffffffffu, sum, o);
    squares += __shfl_xor_sync(0xffffffffu, squares, o);
  }
  const float mean = sum / cols;
  if (threadIdx.x == 0) y[blockIdx.x] = squares / cols - mean * mean;
}
