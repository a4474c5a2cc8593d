// v6: fused with its neighbours, GELU (tanh form) and Add.
// Difference from the rung below: the row is made on the way in, gelu(x) + residual, instead of being read from where two
//   other kernels put it. Fusing is the only way left to move fewer bytes.
// Bytes a row: reads 4 * cols of x and 4 * cols of residual, once each, and 2 * 4 * cols of weight and bias from a cache;
//   writes 4 * cols. Three kernels would move 28 * cols (2 + 3 + 2 tensors), this one 12 * cols.
// Limit expected to bind: memory.
// Requires: COLS, the row length, when compiled: a multiple of 4 and at most 32768; all pointers at multiples of 16 bytes.
// Fails: nothing.
// onepass-check: rows=6 cols=1024 x_g=randn(rows,cols) residual_g=randn(rows,cols) weight_g=randn(cols) bias_g=randn(cols)
// onepass-check: y_g=out(rows,cols) grid=rows block=128 ref=reference.py:check_gelu_add_layer_norm
// onepass-check[large_mean]: residual_g=randn(rows,cols,mean=1000) rtol=1e-3

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
__device__ __forceinline__ float gelu(float x) {
  const float twice_u = x * (1.5957691216f + 0.0713548162726f * x * x);
  return __fdividef(x, 1.0f + __expf(-twice_u));
}
__device__ __forceinline__ float4 gelu_add(float4 x, float4 r) {
  return make_float4(gelu(x.x) + r.x, gelu(x.y) + r.y, gelu(x.z) + r.z, gelu(x.w) + r.w);
}

// A load of what is read once. L2 keeps the line: what leaves in its place was written, and memory turns around less often
// (1.5 to 5 % on an H200). No CUDA C++ asks for that, PTX does, which the emulator does not read.
__device__ __forceinline__ float4 load_once(const float4* p) {
#ifndef ONEPASS_ON_HOST
#if __CUDA_ARCH__ >= 800
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
  float4 v;
  asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p), "l"(policy));
  return v;
#endif
#endif
  return __ldcs(p);
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
gelu_add_layer_norm(const float* __restrict__ x_g,         // [rows, COLS]
                    const float* __restrict__ residual_g,  // [rows, COLS]
                    const float* __restrict__ weight_g,    // [COLS]
                    const float* __restrict__ bias_g,      // [COLS]
                    float* __restrict__ y_g,               // [rows, COLS]
                    int rows, int cols) {
  __shared__ float sum_s[THREADS / 32], squares_s[THREADS / 32];
  const int lane = threadIdx.x % LANES;
  const long long at = (long long)blockIdx.x * ROWS + threadIdx.x / LANES;
  const bool live = at < rows;
  const long long row = live ? at : rows - 1;  // lanes without a row repeat the last one: barriers need them
  const float4* const x4_g = reinterpret_cast<const float4*>(x_g) + row * VECTORS;
  const float4* const residual4_g = reinterpret_cast<const float4*>(residual_g) + row * VECTORS;
  const float4* const weight4_g = reinterpret_cast<const float4*>(weight_g);
  const float4* const bias4_g = reinterpret_cast<const float4*>(bias_g);
  float4* const y4_g = reinterpret_cast<float4*>(y_g) + row * VECTORS;

  float4 x_r[STEPS], residual_r[STEPS], h_r[STEPS];
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {  // all loads first, so that they are in flight together
    const int v = k * LANES + lane;
    const bool there = v < VECTORS;
    x_r[k] = there ? load_once(x4_g + v) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    residual_r[k] = there ? load_once(residual4_g + v) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
#pragma unroll
  for (int k = 0; k < STEPS; ++k) h_r[k] = gelu_add(x_r[k], residual_r[k]);  // 0 past the end of the row

  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < STEPS; ++k) sum += (h_r[k].x + h_r[k].y) + (h_r[k].z + h_r[k].w);
  const float mean = row_sum(sum, sum_s) * (1.0f / COLS);

  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    if (k * LANES + lane < VECTORS) {
      h_r[k] = make_float4(h_r[k].x - mean, h_r[k].y - mean, h_r[k].z - mean, h_r[k].w - mean);
      squares += (h_r[k].x * h_r[k].x + h_r[k].y * h_r[k].y) + (h_r[k].z * h_r[k].z + h_r[k].w * h_r[k].w);
    }
  }
  const float rstd = rsqrtf(row_sum(squares, squares_s) * (1.0f / COLS) + EPS);

#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    const int v = k * LANES + lane;
    if (live && v < VECTORS) {
      const float4 w = weight4_g[v], b = bias4_g[v];
      __stcs(y4_g + v, make_float4(h_r[k].x * rstd * w.x + b.x, h_r[k].y * rstd * w.y + b.y,
                                   h_r[k].z * rstd * w.z + b.z, h_r[k].w * rstd * w.w + b.w));
    }
  }
}
