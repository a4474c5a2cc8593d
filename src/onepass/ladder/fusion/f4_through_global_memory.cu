// f4: SLOW ON PURPOSE, the reduction goes through global memory.
// Difference from the rung below: each element is added to its row's sum in global memory by an atomic, and the row's block
//   waits for them, instead of adding up in registers and shared memory.
// Bytes a row: as f3 from memory; 2 * cols atomics of 4 bytes, all of a row on one address, which L2 takes one by one.
// Limit expected to bind: atomics in L2.
// Requires: COLS, the row length, when compiled: a multiple of 4 and at most 32768; all pointers at multiples of 16 bytes;
//   sums_g, two floats a row to work in.
// Fails: nothing, but loses digits: a row is added up one by one, 0.06 of a deviation at a mean of
//   1000. Atomics add in any order, so the last bits may differ from run to run.
// onepass-check: rows=6 cols=1024 x_g=randn(rows,cols) residual_g=randn(rows,cols) weight_g=randn(cols) bias_g=randn(cols)
// onepass-check: y_g=out(rows,cols) grid=rows block=128 ref=reference.py:check_with_sums
// onepass-check: sums_g=out(rows,2)
// onepass-check[large_mean]: residual_g=randn(rows,cols,mean=1000) rtol=0.1

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
constexpr int LANES = lanes();                          // that share a row
constexpr int STEPS = (VECTORS + LANES - 1) / LANES;    // vectors that a lane holds
constexpr int THREADS = LANES;  // a block a row: its barriers join the row's threads

static_assert(COLS % 4 == 0 && LANES <= 1024, "the row does not fit");

// gelu(x) = x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3). Far below zero exp is infinite and the result 0.
__device__ __forceinline__ float gelu(float x) {
  const float twice_u = x * (1.5957691216f + 0.0713548162726f * x * x);
  return __fdividef(x, 1.0f + __expf(-twice_u));
}
__device__ __forceinline__ float4 gelu_add(float4 x, float4 r) {
  return make_float4(gelu(x.x) + r.x, gelu(x.y) + r.y, gelu(x.z) + r.z, gelu(x.w) + r.w);
}

__device__ __forceinline__ float part(float4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// The sum over the threads of a row, each element added to one number in global memory. What an atomic leaves is in L2; a
// plain load could find an older value in L1, hence volatile.
__device__ __forceinline__ float row_sum(const float (&v_r)[4 * STEPS], float* sum_g, int lane) {
  if (lane == 0) *(volatile float*)sum_g = 0.0f;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4 * STEPS; ++i)
    if (i / 4 * LANES + lane < VECTORS) atomicAdd(sum_g, v_r[i]);
  __syncthreads();
  return *(volatile const float*)sum_g;
}

// Two blocks' worth of 512 threads resident: 64 registers a thread at most.
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
gelu_add_layer_norm(const float* __restrict__ x_g,         // [rows, COLS]
                    const float* __restrict__ residual_g,  // [rows, COLS]
                    const float* __restrict__ weight_g,    // [COLS]
                    const float* __restrict__ bias_g,      // [COLS]
                    float* sums_g,                         // [rows, 2]: sum, then sum of squares
                    float* __restrict__ y_g,               // [rows, COLS]
                    int rows, int cols) {
  const int lane = threadIdx.x;
  const long long row = blockIdx.x;
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
    x_r[k] = there ? __ldcs(x4_g + v) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    residual_r[k] = there ? __ldcs(residual4_g + v) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
#pragma unroll
  for (int k = 0; k < STEPS; ++k) h_r[k] = gelu_add(x_r[k], residual_r[k]);  // 0 past the end of the row

  float part_r[4 * STEPS];
#pragma unroll
  for (int i = 0; i < 4 * STEPS; ++i) part_r[i] = part(h_r[i / 4], i % 4);
  const float mean = row_sum(part_r, sums_g + 2 * row, lane) * (1.0f / COLS);

#pragma unroll
  for (int k = 0; k < STEPS; ++k)
    h_r[k] = make_float4(h_r[k].x - mean, h_r[k].y - mean, h_r[k].z - mean, h_r[k].w - mean);
#pragma unroll
  for (int i = 0; i < 4 * STEPS; ++i) part_r[i] = part(h_r[i / 4], i % 4) * part(h_r[i / 4], i % 4);
  const float rstd = rsqrtf(row_sum(part_r, sums_g + 2 * row + 1, lane) * (1.0f / COLS) + EPS);

#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    const int v = k * LANES + lane;
    if (v < VECTORS) {
      const float4 w = weight4_g[v], b = bias4_g[v];
      __stcs(y4_g + v, make_float4(h_r[k].x * rstd * w.x + b.x, h_r[k].y * rstd * w.y + b.y,
                                   h_r[k].z * rstd * w.z + b.z, h_r[k].w * rstd * w.w + b.w));
    }
  }
}
