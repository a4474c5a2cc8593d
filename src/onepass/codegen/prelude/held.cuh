// Vectors that a thread holds in shared memory, for itself alone: no barrier is needed between storing and loading them.
// They lie in pieces of 16 bytes, or of 4 where a vector has fewer, and the pieces of a block's neighbouring threads lie
// side by side: no two threads of a quarter of a warp meet in a bank. A block has B threads; `p` is the vector's place,
// where thread 0's first piece begins.
template <int B, class T, int W>
ONEPASS_INLINE void hold(char* p, const vec<T, W>& v) {
  constexpr int N = vec<T, W>::words;
  if constexpr (N % 4 == 0) {
    u32x4* s = (u32x4*)p + threadIdx.x;
#pragma unroll
    for (int i = 0; i < N / 4; ++i) s[i * B] = u32x4{v.w[4 * i], v.w[4 * i + 1], v.w[4 * i + 2], v.w[4 * i + 3]};
  } else {
    unsigned* s = (unsigned*)p + threadIdx.x;
#pragma unroll
    for (int i = 0; i < N; ++i) s[i * B] = v.w[i];
  }
}
template <int B, class T, int W>
ONEPASS_INLINE vec<T, W> held(const char* p) {
  constexpr int N = vec<T, W>::words;
  vec<T, W> v;
  if constexpr (N % 4 == 0) {
    const u32x4* s = (const u32x4*)p + threadIdx.x;
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      const u32x4 q = s[i * B];
      v.w[4 * i] = q.x; v.w[4 * i + 1] = q.y; v.w[4 * i + 2] = q.z; v.w[4 * i + 3] = q.w;
    }
  } else {
    const unsigned* s = (const unsigned*)p + threadIdx.x;
#pragma unroll
    for (int i = 0; i < N; ++i) v.w[i] = s[i * B];
  }
  return v;
}
// Asks for W elements at g, aligned to 16 bytes, to be held: they are there once `ptx_copies_done` has come back.
template <int B, int W, class T>
ONEPASS_INLINE void hold_copy(char* p, const T* g) {
  static_assert(vec<T, W>::bytes % 16 == 0, "pieces of 16 bytes");
#pragma unroll
  for (int i = 0; i < vec<T, W>::bytes / 16; ++i)
    ptx_copy16_stream((u32x4*)p + i * B + threadIdx.x, (const char*)g + 16 * i);
}
