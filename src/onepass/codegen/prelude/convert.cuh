// Conversions between what kernels compute with: float, double, i64 and bool.
ONEPASS_INLINE float to_f(float v) { return v; }
ONEPASS_INLINE float to_f(double v) { return (float)v; }
ONEPASS_INLINE float to_f(i64 v) { return (float)v; }
ONEPASS_INLINE float to_f(bool v) { return v ? 1.0f : 0.0f; }
ONEPASS_INLINE double to_d(double v) { return v; }
ONEPASS_INLINE double to_d(float v) { return v; }
ONEPASS_INLINE double to_d(i64 v) { return (double)v; }
ONEPASS_INLINE double to_d(bool v) { return v ? 1.0 : 0.0; }
ONEPASS_INLINE i64 to_i(double v) { return (i64)v; }
ONEPASS_INLINE i64 to_i(i64 v) { return v; }
ONEPASS_INLINE i64 to_i(float v) { return (i64)v; }
ONEPASS_INLINE i64 to_i(bool v) { return v; }
ONEPASS_INLINE bool to_b(bool v) { return v; }
ONEPASS_INLINE bool to_b(float v) { return v != 0.0f; }
ONEPASS_INLINE bool to_b(double v) { return v != 0.0; }
ONEPASS_INLINE bool to_b(i64 v) { return v != 0; }
ONEPASS_INLINE bool op_not(bool v) { return !v; }
ONEPASS_INLINE i64 op_abs(i64 v) { return v < 0 ? -v : v; }
ONEPASS_INLINE i64 op_relu(i64 v) { return v > 0 ? v : 0; }
ONEPASS_INLINE i64 op_where(bool m, i64 a, i64 b) { return m ? a : b; }

// One stored element as a compute value, and back.
template <class T> ONEPASS_INLINE i64 stored_int(T v) { return (i64)v; }
ONEPASS_INLINE i64 stored_int(b8 v) { return v.bits; }
ONEPASS_INLINE bool stored_bool(b8 v) { return v.bits != 0; }
template <class T> struct from_value {
  static __device__ __forceinline__ T of(float v) { return from_float<T>(v); }
  static __device__ __forceinline__ T of(double v) { return (T)v; }
  static __device__ __forceinline__ T of(i64 v) { return (T)v; }
};
template <> struct from_value<b8> {
  static __device__ __forceinline__ b8 of(bool v) { return b8{(unsigned char)v}; }
};

// E neighbouring elements of which only those from `first` on and below `left` are there, in accesses of W elements, each
// wholly there or not at all; the rest are zero.
template <Hint H, int E, int W, class T>
ONEPASS_INLINE vec<T, E> load_part(const T* p, int left, int first = 0) {
  if constexpr (W == E) {
    vec<T, E> v = {};
    if (left > 0 && first <= 0) v = load<H, E>(p);
    return v;
  } else {
    vec<T, E> v = {};
#pragma unroll
    for (int j = 0; j < E / W; ++j) {
      if (j * W < left && j * W >= first) {
        const vec<T, W> q = load<H, W>(p + j * W);
#pragma unroll
        for (int i = 0; i < W; ++i) v.set(j * W + i, q.get(i));
      }
    }
    return v;
  }
}
template <Hint H, int E, int W, class T>
ONEPASS_INLINE void store_part(T* p, const vec<T, E>& v, int left) {
  if constexpr (W == E) {
    if (left > 0) store<H, E>(p, v);
  } else {
#pragma unroll
    for (int j = 0; j < E / W; ++j) {
      if (j * W < left) {
        vec<T, W> q = {};
#pragma unroll
        for (int i = 0; i < W; ++i) q.set(i, v.get(j * W + i));
        store<H, W>(p + j * W, q);
      }
    }
  }
}
// One element, E times.
template <Hint H, int E, class T>
ONEPASS_INLINE vec<T, E> load_same(const T* p) {
  const T x = load<H, 1>(p).get(0);
  vec<T, E> v = {};
#pragma unroll
  for (int i = 0; i < E; ++i) v.set(i, x);
  return v;
}
template <Hint H, int E, class T>
ONEPASS_INLINE vec<T, E> load_strided(const T* p, i64 step, int left, int first = 0) {
  vec<T, E> v = {};
#pragma unroll
  for (int i = 0; i < E; ++i)
    if (i < left && i >= first) v.set(i, load<H, 1>(p + i * step).get(0));
  return v;
}
template <Hint H, int E, class T>
ONEPASS_INLINE void store_strided(T* p, i64 step, const vec<T, E>& v, int left) {
#pragma unroll
  for (int i = 0; i < E; ++i) {
    if (i < left) {
      vec<T, 1> q = {};
      q.set(0, v.get(i));
      store<H, 1>(p + i * step, q);
    }
  }
}

// E floats of shared memory, 16 bytes at a time where E allows.
template <int E>
ONEPASS_INLINE vec<float, E> shared_load(const float* p) {
  vec<float, E> v;
  if constexpr (E % 4 == 0) {
#pragma unroll
    for (int i = 0; i < E / 4; ++i) {
      const u32x4 q = ((const u32x4*)p)[i];
      v.w[4 * i] = q.x; v.w[4 * i + 1] = q.y; v.w[4 * i + 2] = q.z; v.w[4 * i + 3] = q.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < E; ++i) v.set(i, p[i]);
  }
  return v;
}
template <int E>
ONEPASS_INLINE void shared_store(float* p, const float (&x)[E]) {
  if constexpr (E % 4 == 0) {
#pragma unroll
    for (int i = 0; i < E / 4; ++i)
      ((u32x4*)p)[i] = u32x4{__float_as_uint(x[4 * i]), __float_as_uint(x[4 * i + 1]), __float_as_uint(x[4 * i + 2]),
                             __float_as_uint(x[4 * i + 3])};
  } else {
#pragma unroll
    for (int i = 0; i < E; ++i) p[i] = x[i];
  }
}

// Position i as a row and a column of rows of n: 32-bit division where it is enough.
ONEPASS_INLINE void divide(i64 i, i64 n, i64& quotient, i64& rest) {
  if ((i | n) < 0x7fffffffll) {
    const unsigned q = (unsigned)i / (unsigned)n;
    quotient = q;
    rest = (unsigned)i - q * (unsigned)n;
  } else {
    quotient = i / n;
    rest = i - quotient * n;
  }
}

// A row number from data: outside the table the launch is stopped, as PyTorch's own embedding does.
ONEPASS_INLINE void check_index(i64 index, i64 rows) {
  if ((unsigned long long)index >= (unsigned long long)rows) __trap();
}

// The pointer, known only once `value` is: keeps loads from being issued long before there are registers for them.
// `zero` is an argument that is always 0; an empty asm would not do, ptxas moves loads across it.
template <class P>
ONEPASS_INLINE P* after(P* p, float value, i64 zero) { return p + (__float_as_int(value) & (int)zero); }
template <class P>
ONEPASS_INLINE P* after(P* p, i64 value, i64 zero) { return p + (value & zero); }
template <class P>
ONEPASS_INLINE P* after(P* p, double value, i64 zero) { return p + (bits_as<i64>(value) & zero); }

// The same value, or vector, which the compiler can't know to be the same: it computes anew what is made of it, where it
// would have kept the results in registers. `zero` is as above, `value` any that is only known later.
ONEPASS_INLINE float again(float value, i64 zero) { return __int_as_float(__float_as_int(value) ^ (int)zero); }
template <class T, int W>
ONEPASS_INLINE vec<T, W> again(vec<T, W> v, float value, i64 zero) {
#pragma unroll
  for (int i = 0; i < vec<T, W>::words; ++i) v.w[i] ^= __float_as_uint(value) & (unsigned)zero;
  return v;
}
