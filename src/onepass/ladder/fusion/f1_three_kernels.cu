// f1: three kernels, one an operation, as eager PyTorch runs them.
// Difference from the rung below: none, this is the first.
// Bytes a row: GELU reads 4 * cols and writes 4 * cols, Add reads 8 * cols and writes 4 * cols, LayerNorm reads 4 * cols and
//   writes 4 * cols: 28 * cols, and 2 * 4 * cols of weight and bias from a cache.
// Limit expected to bind: memory, in each of the three; two results go out to memory and come back.
// Requires: COLS, the row length, when compiled: a multiple of 4 and at most 32768; all pointers at multiples of 16 bytes.
// Fails: nothing.
// onepass-check: rows=6 cols=1024
// onepass-check[layer_norm]: kernel=layer_norm x_g=randn(rows,cols) weight_g=randn(cols) bias_g=randn(cols)
// onepass-check[layer_norm]: y_g=out(rows,cols) grid=rows block=128 ref=reference.py:check_layer_norm
// onepass-check[large_mean]: kernel=layer_norm x_g=randn(rows,cols,mean=1000) weight_g=randn(cols) bias_g=randn(cols)
// onepass-check[large_mean]: y_g=out(rows,cols) grid=rows block=128 ref=reference.py:check_layer_norm rtol=1e-3
// onepass-check[gelu]: kernel=gelu x_g=randn(rows,cols) gelu_g=out(rows,cols)
// onepass-check[gelu]: grid=(rows*cols//4+255)//256 block=256 ref=reference.py:check_gelu
// onepass-check[add]: kernel=add gelu_g=randn(rows,cols) residual_g=randn(rows,cols) h_g=out(rows,cols)
// onepass-check[add]: grid=(rows*cols//4+255)//256 block=256 ref=reference.py:check_add

#ifndef COLS
#define COLS 1024
#endif

constexpr float EPS = 1e-5f;
constexpr int VECTORS = COLS / 4;
// Vectors a lane: two keep enough bytes in flight for short rows; long ones need more, or there are too few blocks.
constexpr int MOST = COLS <= 1024 ? 2 : COLS <= 4096 ? 4 : 8;
__host__ __device__ constexpr int lanes() {
  int n = 32;
  while (n * MOST < VECTORS) n *= 2;
  return n;
}
constexpr int LANES = lanes(), WARPS = LANES / 32;      // that share a row
constexpr int STEPS = (VECTORS + LANES - 1) / LANES;    // vectors that a lane holds
constexpr int THREADS = LANES > 128 ? LANES : 128, ROWS = THREADS / LANES;

static_assert(COLS % 4 == 0 && LANES <= 1024, "the row does not fit");

// gelu(x) = x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3). Far below zero exp is infinite and the result 0.
__device__ __forceinline__ float gelu_of(float x) {
  const float twice_u = x * (1.5957691216f + 0.0713548162726f * x * x);
  return __fdividef(x, 1.0f + __expf(-twice_u));
}
// The sum over the lanes of a row, in each of them. `sum_s` is used once a kernel: one barrier is enough.
__device__ __forceinline__ float row_sum(float v, float* sum_s) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  if constexpr (WARPS > 1) {
    const int warp = threadIdx.x / 32, first = warp / WARPS * WARPS;
    if (threadIdx.x % 32 == 0) sum_s[warp] = v;
    __syncthreads();
    v = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) v += sum_s[first + w];
  }
  return v;
}

// Two blocks' worth of 512 threads resident: 64 registers a thread at most.
extern "C" __global__ void __launch_bounds__(THREADS, THREADS < 1024 ? 1024 / THREADS : 1)
layer_norm(const float* __restrict__ x_g,       // [rows, COLS]
           const float* __restrict__ weight_g,  // [COLS]
           const float* __restrict__ bias_g,    // [COLS]
           float* __restrict__ y_g,             // [rows, COLS]
           int rows, int cols) {
  __shared__ float sum_s[THREADS / 32], squares_s[THREADS / 32];
  const int lane = threadIdx.x % LANES;
  const long long at = (long long)blockIdx.x * ROWS + threadIdx.x / LANES;
  const bool live = at < rows;
  const long long row = live ? at : rows - 1;  // lanes without a row repeat the last one: barriers need them
  const float4* const x4_g = reinterpret_cast<const float4*>(x_g) + row * VECTORS;
  const float4* const weight4_g = reinterpret_cast<const float4*>(weight_g);
  const float4* const bias4_g = reinterpret_cast<const float4*>(bias_g);
  float4* const y4_g = reinterpret_cast<float4*>(y_g) + row * VECTORS;

  float4 x_r[STEPS];
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    const int v = k * LANES + lane;
    x_r[k] = v < VECTORS ? __ldcs(x4_g + v) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }

  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < STEPS; ++k) sum += (x_r[k].x + x_r[k].y) + (x_r[k].z + x_r[k].w);
  const float mean = row_sum(sum, sum_s) * (1.0f / COLS);

  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    if (k * LANES + lane < VECTORS) {
      x_r[k] = make_float4(x_r[k].x - mean, x_r[k].y - mean, x_r[k].z - mean, x_r[k].w - mean);
      squares += (x_r[k].x * x_r[k].x + x_r[k].y * x_r[k].y) + (x_r[k].z * x_r[k].z + x_r[k].w * x_r[k].w);
    }
  }
  const float rstd = rsqrtf(row_sum(squares, squares_s) * (1.0f / COLS) + EPS);

#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    const int v = k * LANES + lane;
    if (live && v < VECTORS) {
      const float4 w = weight4_g[v], b = bias4_g[v];
      __stcs(y4_g + v, make_float4(x_r[k].x * rstd * w.x + b.x, x_r[k].y * rstd * w.y + b.y,
                                   x_r[k].z * rstd * w.z + b.z, x_r[k].w * rstd * w.w + b.w));
    }
  }
}

// One float4 a thread.
extern "C" __global__ void __launch_bounds__(256)
gelu(const float* __restrict__ x_g,  // [rows, COLS]
     float* __restrict__ gelu_g,     // [rows, COLS]
     int rows, int cols) {
  const long long v = (long long)blockIdx.x * 256 + threadIdx.x;
  if (v >= (long long)rows * VECTORS) return;
  const float4 x = __ldcs(reinterpret_cast<const float4*>(x_g) + v);
  __stcs(reinterpret_cast<float4*>(gelu_g) + v, make_float4(gelu_of(x.x), gelu_of(x.y), gelu_of(x.z), gelu_of(x.w)));
}

extern "C" __global__ void __launch_bounds__(256)
add(const float* __restrict__ gelu_g,      // [rows, COLS]
    const float* __restrict__ residual_g,  // [rows, COLS]
    float* __restrict__ h_g,               // [rows, COLS]
    int rows, int cols) {
  const long long v = (long long)blockIdx.x * 256 + threadIdx.x;
  if (v >= (long long)rows * VECTORS) return;
  const float4 a = __ldcs(reinterpret_cast<const float4*>(gelu_g) + v);
  const float4 r = __ldcs(reinterpret_cast<const float4*>(residual_g) + v);
  __stcs(reinterpret_cast<float4*>(h_g) + v, make_float4(a.x + r.x, a.y + r.y, a.z + r.z, a.w + r.w));
}
