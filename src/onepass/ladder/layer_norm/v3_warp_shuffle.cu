// v3: warps join their sums by shuffles.
// Difference from the rung below: the 32 lanes of a warp add up through registers, in 5 steps without a barrier; one value
//   a warp goes through shared memory, behind the only barrier. Every thread then adds the 8 values itself.
// Bytes a row: as v2.
// Limit expected to bind: memory.
// Requires: nothing.
// Fails: rows whose mean is large against their deviation, as v1.
// onepass-check: rows=6 cols=1024 x_g=randn(rows,cols) weight_g=randn(cols) bias_g=randn(cols) y_g=out(rows,cols)
// onepass-check: grid=rows block=256 ref=reference.py:check_layer_norm
// onepass-check[large_mean]: x_g=randn(rows,cols,mean=1000) rtol=1e-3

constexpr float EPS = 1e-5f;
constexpr int THREADS = 256, WARPS = THREADS / 32;

__device__ __forceinline__ float warp_sum(float v) {  // every lane takes part: the mask says so, and no branch leads here
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_down_sync(0xffffffffu, v, offset);
  return v;  // of the warp, in lane 0
}

extern "C" __global__ void __launch_bounds__(THREADS)
layer_norm(const float* __restrict__ x_g,       // [rows, cols]
           const float* __restrict__ weight_g,  // [cols]
           const float* __restrict__ bias_g,    // [cols]
           float* __restrict__ y_g,             // [rows, cols]
           int rows, int cols) {
  __shared__ float sum_s[WARPS], squares_s[WARPS];
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
  sum = warp_sum(sum);
  squares = warp_sum(squares);
  if (tid % 32 == 0) {
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
