// s2: online, the largest and the sum in one pass.
// Difference from the rung below: a sum taken against a largest that turns out too small is put right by exp(old - new): one
//   walk gives both, one barrier joins them.
// Bytes a row: reads 2 * 4 * cols of x, writes 4 * cols; from memory 8 * cols.
// Limit expected to bind: memory.
// Requires: nothing.
// Fails: nothing.
// onepass-check: rows=6 cols=1024 x_g=randn(rows,cols) y_g=out(rows,cols) grid=rows block=256 ref=reference.py:check_softmax
// onepass-check[large_values]: x_g=randn(rows,cols,mean=200,std=5)

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr float LOWEST = -3.402823466e38f;  // finite: LOWEST - LOWEST is 0, where infinity would give NaN

struct Pair {
  float largest, sum;  // sum of exp(x - largest)
};
__device__ __forceinline__ Pair join(Pair a, Pair b) {
  const float largest = fmaxf(a.largest, b.largest);
  return Pair{largest, a.sum * __expf(a.largest - largest) + b.sum * __expf(b.largest - largest)};
}
__device__ __forceinline__ Pair warp_join(Pair p) {
  for (int d = 16; d > 0; d /= 2)
    p = join(p, Pair{__shfl_xor_sync(0xffffffffu, p.largest, d), __shfl_xor_sync(0xffffffffu, p.sum, d)});
  return p;
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

  Pair p{LOWEST, 0.0f};
  for (int c = tid; c < cols; c += THREADS) p = join(p, Pair{x_g[c], 1.0f});
  p = warp_join(p);
  if (tid % 32 == 0) {
    largest_s[tid / 32] = p.largest;
    sum_s[tid / 32] = p.sum;
  }
  __syncthreads();
  p = Pair{largest_s[0], sum_s[0]};
  for (int warp = 1; warp < WARPS; ++warp) p = join(p, Pair{largest_s[warp], sum_s[warp]});

  const float scale = 1.0f / p.sum;
  for (int c = tid; c < cols; c += THREADS) y_g[c] = __expf(x_g[c] - p.largest) * scale;
}
