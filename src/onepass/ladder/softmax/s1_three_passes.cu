// s1: three passes, as the definition reads: the largest, the sum of exp(x - largest), the quotients.
// Difference from the rung below: none, this is the first.
// Bytes a row: reads 3 * 4 * cols of x, writes 4 * cols; from memory 8 * cols, as long as the later passes find the row in
//   a cache.
// Limit expected to bind: latency: each pass waits for its loads, and a reduction stands between two passes.
// Requires: nothing.
// Fails: nothing. The largest is taken off first, so exp never overflows.
// onepass-check: rows=6 cols=1024 x_g=randn(rows,cols) y_g=out(rows,cols) grid=rows block=256 ref=reference.py:check_softmax
// onepass-check[large_values]: x_g=randn(rows,cols,mean=200,std=5)

constexpr int THREADS = 256, WARPS = THREADS / 32;

__device__ __forceinline__ float warp_max(float v) {
  for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
  return v;
}
__device__ __forceinline__ float warp_sum(float v) {
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}

extern "C" __global__ void __launch_bounds__(THREADS)
softmax(const float* __restrict__ x_g,  // [rows, cols]
        float* __restrict__ y_g,        // [rows, cols]
        int rows, int cols) {
  __shared__ float largest_s[WARPS], sum_s[WARPS];
  const long long row = blockIdx.x;
  const int tid = threadIdx.x;
  x_g += row * cols;
  y_g += row * cols;

  float largest = __int_as_float(0xff800000);  // -infinity
  for (int c = tid; c < cols; c += THREADS) largest = fmaxf(largest, x_g[c]);
  largest = warp_max(largest);
  if (tid % 32 == 0) largest_s[tid / 32] = largest;
  __syncthreads();
  for (int warp = 0; warp < WARPS; ++warp) largest = fmaxf(largest, largest_s[warp]);

  float sum = 0.0f;
  for (int c = tid; c < cols; c += THREADS) sum += __expf(x_g[c] - largest);
  sum = warp_sum(sum);
  if (tid % 32 == 0) sum_s[tid / 32] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int warp = 0; warp < WARPS; ++warp) sum += sum_s[warp];

  const float scale = 1.0f / sum;
  for (int c = tid; c < cols; c += THREADS) y_g[c] = __expf(x_g[c] - largest) * scale;
}
