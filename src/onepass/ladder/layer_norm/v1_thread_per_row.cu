// v1: one block of one thread a row.
// Difference from the rung below: none, this is the first.
// Bytes a row: reads 2 * 4 * cols of x (one pass for the statistics, one for the result) and 2 * 4 * cols of weight and
//   bias, writes 4 * cols; from memory 8 * cols, as long as the second pass finds the row in a cache.
// Limit expected to bind: latency. A thread asks for 4 bytes and waits; a multiprocessor holds 32 such blocks.
// Requires: nothing.
// Fails: rows whose mean is large against their deviation. The variance is the mean of squares minus the square of the
//   mean, the difference of two large numbers.
// onepass-check: rows=6 cols=1024 x_g=randn(rows,cols) weight_g=randn(cols) bias_g=randn(cols) y_g=out(rows,cols)
// onepass-check: grid=rows block=1 ref=reference.py:check_layer_norm
// onepass-check[large_mean]: x_g=randn(rows,cols,mean=1000) rtol=1e-3

constexpr float EPS = 1e-5f;

extern "C" __global__ void layer_norm(const float* __restrict__ x_g,       // [rows, cols]
                                      const float* __restrict__ weight_g,  // [cols]
                                      const float* __restrict__ bias_g,    // [cols]
                                      float* __restrict__ y_g,             // [rows, cols]
                                      int rows, int cols) {
  const long long row = blockIdx.x;
  if (row >= rows) return;
  x_g += row * cols;
  y_g += row * cols;

  float sum = 0.0f, squares = 0.0f;
  for (int c = 0; c < cols; ++c) {
    const float x = x_g[c];
    sum += x;
    squares += x * x;
  }
  const float mean = sum / cols;
  const float rstd = rsqrtf(squares / cols - mean * mean + EPS);

  for (int c = 0; c < cols; ++c) y_g[c] = (x_g[c] - mean) * rstd * weight_g[c] + bias_g[c];
}
