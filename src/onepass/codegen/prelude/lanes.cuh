// Reductions down the lanes of a block whose threads are G rows of L lanes of X neighbours, each with E values side by
// side. L is a power of two. The tree is binary over the lane's number, neighbours first, and the same for every X, G
// and E: the lanes of a warp by shuffles where they lie X apart in it, the others through shared memory. Every lane ends
// with the same bits.
template <int L, int X, int G> struct lanes_of {
  enum : int {
    threads = L * X * G,
    whole = 32 % X == 0 && threads % 32 == 0,  // whether a lane's neighbour is a fixed distance away in its warp
    near = !whole ? 1 : L < 32 / X ? L : 32 / X,
    far = L / near
  };
  float* scratch;  // 16-byte aligned, (far + 1) * G * X * E floats where far > 1

  template <class Op, int N> static __device__ __forceinline__ float tree(const float* p, int step) {
    if constexpr (N == 1) return *p;
    else return Op::of(tree<Op, N / 2>(p, step), tree<Op, N - N / 2>(p + N / 2 * step, step));
  }

  template <class Op, int E> __device__ __forceinline__ void reduce(float (&v)[E]) const {
#pragma unroll
    for (int d = 1; d < near; d *= 2) {
#pragma unroll
      for (int e = 0; e < E; ++e) v[e] = Op::of(v[e], __shfl_xor_sync(0xffffffffu, v[e], d * X));
    }
    if constexpr (far > 1) {
      constexpr int C = G * X * E;
      const int x = threadIdx.x % X, lane = threadIdx.x / X % L, g = threadIdx.x / (X * L);
      const int own = (g * X + x) * E;
      if (lane % near == 0) shared_store<E>(scratch + lane / near * C + own, v);
      __syncthreads();
      for (int c = threadIdx.x; c < C; c += threads) scratch[far * C + c] = tree<Op, far>(scratch + c, C);
      __syncthreads();
      const vec<float, E> all = shared_load<E>(scratch + far * C + own);
#pragma unroll
      for (int e = 0; e < E; ++e) v[e] = all.get(e);
    }
  }
};
