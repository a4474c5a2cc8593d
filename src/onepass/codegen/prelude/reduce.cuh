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
  // What the lanes before this one give, after `total`, which then has all lanes' values too. The order is that of the
  // lanes: pairs of neighbours in a warp, then warp after warp.
  template <class Op, class V> __device__ __forceinline__ V before(V v, V& total) {
    enum : int { span = T < 32 ? T : 32 };
    static_assert(sizeof(V) <= 4 * W, "the scratch was sized for narrower values");
    const int lane = threadIdx.x % span;
    V all = v;
#pragma unroll
    for (int d = 1; d < span; d *= 2) {
      const V lower = __shfl_up_sync(0xffffffffu, all, d, span);
      if (lane >= d) all = Op::of(lower, all);
    }
    const V inside = __shfl_up_sync(0xffffffffu, all, 1, span);
    V start = total;
    if constexpr (T > 32) {
      const int warp = threadIdx.x / 32, first = warp / warps * warps;
      V* s = (V*)(scratch + half * (K * R * warps * W));
      if (lane == 31) s[warp] = all;
      __syncthreads();
#pragma unroll
      for (int w = 0; w < warps; ++w) {
        const V one = s[first + w];
        if (first + w < warp) start = Op::of(start, one);
        total = Op::of(total, one);
      }
      half ^= 1;
    } else {
      total = Op::of(total, __shfl_sync(0xffffffffu, all, span - 1, span));
    }
    return lane == 0 ? start : Op::of(start, inside);
  }
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

// Two reductions of a row that is seen part after part: `add` takes a part's, of which the second is of values shifted by
// `shift` of the part's first. Parts are added in their order, so that results do not depend on who reduced which.

// A sum, and the sum of the squares of what lies between each value and the mean.
struct centred {
  float count, mean, squares;
  static __device__ __forceinline__ centred none() { return centred{0.0f, 0.0f, 0.0f}; }
  static __device__ __forceinline__ float shift(float sum, float n) { return sum / n; }
  __device__ __forceinline__ void add(float sum, float own, float n) {
    const float all = count + n, share = n / all, away = sum / n - mean;
    squares += own + away * away * count * share;
    mean = count > 0.0f ? mean + away * share : sum / n;
    count = all;
  }
  __device__ __forceinline__ float first() const { return mean * count; }
  __device__ __forceinline__ float second() const { return squares; }
};
// The largest value, and the sum of the exponentials of what lies between each value and it.
struct shifted {
  float largest, sum;
  static __device__ __forceinline__ shifted none() { return shifted{-INFINITY_F, 0.0f}; }
  // A part without a number above -inf adds nothing; it is the row without one that has no softmax.
  static __device__ __forceinline__ float shift(float max, float) { return max == -INFINITY_F ? 0.0f : max; }
  __device__ __forceinline__ void add(float max, float own, float) {
    const float all = op_max(largest, max);
    sum = sum * factor(largest, all) + own * factor(max, all);
    largest = all;
  }
  __device__ __forceinline__ float first() const { return largest; }
  __device__ __forceinline__ float second() const { return largest == -INFINITY_F ? NAN_F : sum; }

 private:
  static __device__ __forceinline__ float factor(float from, float to) { return from == to ? 1.0f : op_exp(from - to); }
};

#if __CUDA_ARCH__ >= 900
// Reductions over a row that C blocks of a thread-block cluster share, T threads each, T a power of two from 32 on. Each
// warp hands its value to every block, then each warp of each block combines the C * T / 32 values in the order of the
// cluster: all end with the same bits. Scratch: 2 * C * T / 32 floats, in halves that take turns as those of `groups` do.
// Nobody reads another block's memory, so a block may end as soon as it has passed the last barrier.
template <int C, int T>
struct cluster_groups {
  enum : int { warps = T / 32, values = C * warps };
  float* scratch;
  int half;
  bool begun;  // every block of the cluster is known to run, so that its memory may be written

  // As early as can be: what it waits for happens while the row is on its way.
  __device__ __forceinline__ explicit cluster_groups(float* s) : scratch(s), half(0), begun(false) {
    ptx_cluster_arrive_relaxed();
  }
  __device__ __forceinline__ float sum(float v) { return reduce<add_op>(v); }
  __device__ __forceinline__ float prod(float v) { return reduce<mul_op>(v); }
  __device__ __forceinline__ float max(float v) { return reduce<max_op>(v); }
  __device__ __forceinline__ float min(float v) { return reduce<min_op>(v); }

 private:
  template <class Op> __device__ __forceinline__ float reduce(float v) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* s = scratch + half * values;
    v = warp_reduce<Op, 32>(v);
    if (!begun) ptx_cluster_wait();
    begun = true;
    if (lane < C) ptx_cluster_store4(s + ptx_cluster_rank() * warps + warp, lane, v);
    __syncwarp();
    ptx_cluster_arrive();
    ptx_cluster_wait();
    half ^= 1;
    constexpr int P = values < 32 ? values : 32;
    v = s[lane % P];
#pragma unroll
    for (int i = 1; i < values / P; ++i) v = Op::of(v, s[i * P + lane]);
    return warp_reduce<Op, P>(v);
  }
};
#endif
