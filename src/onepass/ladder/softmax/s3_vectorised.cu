// s3: 16 bytes a load and a store.
// Difference from the rung below: float4 instead of float: a quarter of the memory instructions, and four elements are joined
//   before they meet the running pair.
// Bytes a row: as s2.
// Limit expected to bind: memory.
// Requires: cols a multiple of 4, and all pointers at multiples of 16 bytes.
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
  const int vectors = cols / 4;
  const float4* const x4_g = reinterpret_cast<const float4*>(x_g + row * cols);  // [cols / 4]
  float4* const y4_g = reinterpret_cast<float4*>(y_g + row * cols);              // [cols / 4]

  Pair p{LOWEST, 0.0f};
  for (int v = tid; v < vectors; v += THREADS) {
    const float4 x = x4_g[v];
    const float largest = fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
    const float sum = __expf(x.x - largest) + __expf(x.y - largest) + __expf(x.z - largest) + __expf(x.w - largest);
    p = join(p, Pair{largest, sum});
  }
  p = warp_join(p);
  if (tid % 32 == 0) {
    largest_s[tid / 32] = p.largest;
    sum_s[tid / 32] = p.sum;
  }
  __syncthreads();
  p = Pair{largest_s[0], sum_s[0]};
  for (int warp = 1; warp < WARPS; ++warp) p = join(p, Pair{largest_s[warp], sum_s[warp]});

  const float scale = 1.0f / p.sum;
  for (int v = tid; v < vectors; v += THREADS) {
    const float4 x = x4_g[v];
    y4_g[v] = make_float4(__expf(x.x - p.largest) * scale, __expf(x.y - p.largest) * scale,
                          __expf(x.z - p.largest) * scale, __expf(x.w - p.largest) * scale);
  }
}
