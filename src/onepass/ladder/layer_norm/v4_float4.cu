// v4: 16 bytes a load and a store.
// Difference from the rung below: float4 instead of float, for x, weight, bias and y: a quarter of the memory instructions.
// Bytes a row: as v3; what comes from memory does not change.
// Limit expected to bind: memory.
// Requires: cols a multiple of 4, and all pointers at multiples of 16 bytes.
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
  const int tid = threadIdx.x, vectors = cols / 4;
  const float4* const x4_g = reinterpret_cast<const float4*>(x_g + row * cols);     // [cols / 4]
  const float4* const weight4_g = reinterpret_cast<const float4*>(weight_g);        // [cols / 4]
  const float4* const bias4_g = reinterpret_cast<const float4*>(bias_g);            // [cols / 4]
  float4* const y4_g = reinterpret_cast<float4*>(y_g + row * cols);                 // [cols / 4]

  float sum = 0.0f, squares = 0.0f;
  for (int v = tid; v < vectors; v += THREADS) {
    const float4 x = x4_g[v];
    sum += x.x + x.y + x.z + x.w;
    squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
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

  for (int v = tid; v < vectors; v += THREADS) {
    const float4 x = x4_g[v], w = weight4_g[v], b = bias4_g[v];
    y4_g[v] = make_float4((x.x - mean) * rstd * w.x + b.x, (x.y - mean) * rstd * w.y + b.y,
                          (x.z - mean) * rstd * w.z + b.z, (x.w - mean) * rstd * w.w + b.w);
  }
}
