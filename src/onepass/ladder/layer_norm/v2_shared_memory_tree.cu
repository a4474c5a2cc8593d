// v2: a block of 256 threads a row, a tree in shared memory.
// Difference from the rung below: 256 threads share a row. Each adds up every 256th element, sum and sum of squares
//   together, and a tree in shared memory joins the 256 partial sums: 8 barriers in its loop and one before it.
// Bytes a row: as v1. Neighbouring threads read neighbouring elements, 128 bytes a warp and load.
// Limit expected to bind: memory, less what the 9 barriers of a row cost.
// Requires: nothing.
// Fails: rows whose mean is large against their deviation, as v1.
// onepass-check: rows=6 cols=1024 x_g=randn(rows,cols) weight_g=randn(cols) bias_g=randn(cols) y_g=out(rows,cols)
// onepass-check: grid=rows block=256 ref=reference.py:check_layer_norm
// onepass-check[large_mean]: x_g=randn(rows,cols,mean=1000) rtol=1e-3

constexpr float EPS = 1e-5f;
constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
layer_norm(const float* __restrict__ x_g,       // [rows, cols]
           const float* __restrict__ weight_g,  // [cols]
           const float* __restrict__ bias_g,    // [cols]
           float* __restrict__ y_g,             // [rows, cols]
           int rows, int cols) {
  __shared__ float sum_s[THREADS], squares_s[THREADS];
  const long long row = blockIdx.x;
  const int tid = threadIdx.x;
  x_g += row * cols;
  y_g += row * cols;

  float sum = 0.0f, squares = 0.0f;
  for (int c = tid; c < cols; c += THREADS) {
    const float x = x_g[c];
    sum += x;
    squares += x * x;
  }
  sum_s[tid] = sum;
  squares_s[tid] = squares;
  __syncthreads();
  for (int offset = THREADS / 2; offset > 0; offset /= 2) {
    if (tid < offset) {
      sum_s[tid] += sum_s[tid + offset];
      squares_s[tid] += squares_s[tid + offset];
    }
    __syncthreads();  // outside the branch: every thread of the block must reach it
  }
  const float mean = sum_s[0] / cols;
  const float rstd = rsqrtf(squares_s[0] / cols - mean * mean + EPS);

  for (int c = tid; c < cols; c += THREADS) y_g[c] = (x_g[c] - mean) * rstd * weight_g[c] + bias_g[c];
}
