// Reductions over groups of T lanes, T a power of two from 1 to 1024; a block holds R = threads / T groups.
// The tree is fixed: butterfly over the lanes of a warp, then over the warps of the group in the same way. Every lane
// ends with the same bits, because the two operands of each step are the same two numbers on both sides.
struct add_op { template <class V> static __device__ __forceinline__ V of(V a, V b) { return a + b; } };
struct mul_op { template <class V> static __device__ __forceinline__ V of(V a, V b) { return a * b; } };
struct max_op { template <class V> static __device__ __forceinline__ V of(V a, V b) { return op_max(a, b); } };
struct min_op { template <class V> static __device__ __forceinline__ V of(V a, V b) { return op_min(a, b); } };

template <class Op, int T, class V>
ONEPASS_INLINE V warp_reduce(V v) {
#pragma unroll
  for (int d = T / 2; d > 0; d /= 2) v = Op::of(v, __shfl_xor_sync(0xffffffffu, v, d));
  return v;
}

// Values are float, double or i64. Scratch in shared memory: 2 * K * threads / 32 slots of W words for T > 32 (K = 2 if sum2 is used, else 1), none otherwise.
// Two halves take turns, so that a reduction needs one barrier: who writes a half again has passed the barrier of
// the reduction between, which every reader of that half reached after reading.
template <int T, int R, int K = 1, int W = 1>
struct groups {
  enum : int { warps = T / 32 };
  float* scratch;
  int half;

  __device__ __forceinline__ explicit groups(float* s) : scratch(s), half(0) {}

  template <class Op, class V> __device__ __forceinline__ V reduce(V v) {
    V a[1] = {v};
    reduce_all<Op, 1>(a);
    return a[0];
  }
  template <class V> __device__ __forceinline__ V sum(V v) { return reduce<add_op>(v); }
  template <class V> __device__ __forceinline__ V prod(V v) { return reduce<mul_op>(v); }
  template <class V> __device__ __forceinline__ V max(V v) { return reduce<max_op>(v); }
  template <class V> __device__ __forceinline__ V min(V v) { return reduce<min_op>(v); }
  // Two sums for the price of one barrier.
  __device__ __forceinline__ void sum2(float& a, float& b) {
    float v[2] = {a, b};
    reduce_all<add_op, 2>(v);
    a = v[0];
    b = v[1];
  }

 private:
  template <class Op, int N, class V> __device__ __forceinline__ void reduce_all(V (&v)[N]) {
    static_assert(N <= K && sizeof(V) <= 4 * W, "the scratch was sized for fewer or narrower values");
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = warp_reduce<Op, (T < 32 ? T : 32)>(v[i]);
    if constexpr (T > 32) {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
      V* s = (V*)(scratch + half * (K * R * warps * W));
      if (lane == 0) {
#pragma unroll
        for (int i = 0; i < N; ++i) s[i * (R * warps) + warp] = v[i];
      }
      __syncthreads();
      const int first = warp / warps * warps;
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = warp_reduce<Op, warps>(s[i * (R * warps) + first + lane % warps]);
      half ^= 1;
    }
  }
};
