// What a lane without a value brings into a reduction.
ONEPASS_INLINE float nothing(add_op) { return 0.0f; }
ONEPASS_INLINE float nothing(mul_op) { return 1.0f; }
ONEPASS_INLINE float nothing(max_op) { return -INFINITY_F; }
ONEPASS_INLINE float nothing(min_op) { return INFINITY_F; }

// Reductions over rows that teams of P blocks of a grid share, B threads each, B a power of two from 64 on. All blocks must be
// resident, which a cooperative launch promises: they wait for each other.
//
// Exchanges are numbered from 1 on, the same in all blocks of a team, over all rows that it takes. In each a block reduces
// what its threads have, one thread writes that with the exchange's number where the team's other blocks read it, and a warp
// waits for P words of that number. It combines them in the order of the parts, the same tree in each block: the same bits.
//
// Words of even and of odd numbers lie apart, 2 * P a team. So a word is written again two exchanges later, when everyone
// has read it: who writes the word of exchange n + 2 has seen every block's of n + 1, and a block writes that once its warp has
// seen the words of n (the reduction inside the block, before the word is written, has a barrier). Words must be zero
// before the grid begins, or a word that another launch left could have the number that is waited for.
//
// Scratch: 2 * B / 32 floats for the block's own reduction and 2 for results, in halves that take turns as those of `groups`.
template <int P, int B>
struct grid_groups {
  groups<B, 1> block;
  float* result;
  unsigned long long* words;
  int part;
  unsigned number;

  __device__ __forceinline__ grid_groups(float* s, unsigned long long* w)
      : block(s), result(s + 2 * (B / 32)), words(w + blockIdx.x / P * (2 * P)), part(blockIdx.x % P), number(0) {}
  __device__ __forceinline__ float sum(float v) { return reduce<add_op>(v); }
  __device__ __forceinline__ float prod(float v) { return reduce<mul_op>(v); }
  __device__ __forceinline__ float max(float v) { return reduce<max_op>(v); }
  __device__ __forceinline__ float min(float v) { return reduce<min_op>(v); }

 private:
  template <class Op> __device__ __forceinline__ float reduce(float v) {
    v = block.template reduce<Op>(v);
    ++number;
    unsigned long long* const w = words + number % 2 * P;
    if (threadIdx.x == 0) ptx_grid_put(w + part, number, v);
    if (threadIdx.x < 32) {
      v = nothing(Op());
      for (int i = threadIdx.x; i < P; i += 32) {
        unsigned long long word = ptx_grid_get(w + i);
        while (word >> 32 != number) word = ptx_grid_get(w + i);
        v = Op::of(v, __uint_as_float((unsigned)word));
      }
      v = warp_reduce<Op, 32>(v);
      if (threadIdx.x == 0) result[number % 2] = v;
    }
    __syncthreads();
    return result[number % 2];
  }
};
