// WRONG ON PURPOSE: a shuffle under a divergent branch. Not a rung to copy.
// Difference from v3: the loop of the tree in v2 was kept, with its `if (tid < offset)` (here for the lane of a warp), and a shuffle was put into it. The
//   mask says that 32 lanes take part; the branch lets 16, 8, 4, 2 and 1 of them through. What the others hand over is
//   undefined: a wrong sum on one device, a hang on another, the right sum by luck on a third.
// Bytes a row: as v3.
// Limit expected to bind: none, the result is not defined.
// Requires: never to be run on a device. The emulator stops at the shuffle and names its line.
// Fails: every input.
// onepass-check: rows=6 cols=1024 x_g=randn(rows,cols) weight_g=randn(cols) bias_g=randn(cols) y_g=out(rows,cols)
// onepass-check: grid=rows block=256 ref=reference.py:check_layer_norm
// onepass-check[large_mean]: x_g=randn(rows,cols,mean=1000) rtol=1e-3

constexpr float EPS = 1e-5f;
constexpr int THREADS = 256, WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS)
layer_norm(const float* __restrict__ x_g,       // [rows, cols]
           const float* __restrict__ weight_g,  // [cols]
           const float* __restrict__ bias_g,    // [cols]
           float* __restrict__ y_g,             // [rows, cols]
           int rows, int cols) {
  __shared__ float sum_s[WARPS], squares_s[WARPS];
  const long long row = blockIdx.x;
  const int tid = threadIdx.x, lane = tid % 32;
  x_g += row * cols;
  y_g += row * cols;

  float sum = 0.0f, squares = 0.0f;
  for (int c = tid; c < cols; c += THREADS) {
    const float x = x_g[c];
    sum += x;
    squares += x * x;
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    if (lane < offset) {
      sum += __shfl_down_sync(0xffffffffu, sum, offset);
      squares += __shfl_down_sync(0xffffffffu, squares, offset);
    }
  }
  if (lane == 0) {
    sum_s[tid / 32] = sum;
    squares_s[tid / 32] = squares;
  }
  __syncthreads();
  sum = squares = 0.0f;
  for (int warp = 0; warp < WARPS; ++warp) {
    sum += sum_s[warp];
    squares += squares_s[warp];
  }
  const float mean = sum / cols;
  const float rstd = rsqrtf(squares / cols - mean * mean + EPS);

  for (int c = tid; c < cols; c += THREADS) y_g[c] = (x_g[c] - mean) * rstd * weight_g[c] + bias_g[c];
}
