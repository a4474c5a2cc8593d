// Rows that start anywhere go through shared memory: in whole vectors between there and global memory, one element at a
// time only at a row's two ends, and by column between there and the lanes. In shared memory a row lies as far past 16
// bytes as in global memory. L lanes hold a row of N elements, of at least 64 bytes.
template <class T>
ONEPASS_INLINE int past_vector(const T* p) { return (int)((unsigned long long)p & 15); }
template <class T>
ONEPASS_INLINE T* staged_place(unsigned char* region, const T* p) { return (T*)(region + past_vector(p)); }

template <class A, class B> struct same_type { enum : bool { value = false }; };
template <class A> struct same_type<A, A> { enum : bool { value = true }; };

template <int L>
ONEPASS_INLINE void group_barrier() {
  if constexpr (L <= 32) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// Element i of the first and the last vector of a row, and whether that vector is one of which the row has a part.
template <int N, class T>
ONEPASS_INLINE int end_element(int past, int i, bool& partial) {
  constexpr int size = (int)sizeof(T), per = 16 / size;
  const int end = past + N * size;
  partial = i < per ? past > 0 : (end & 15) > 0;
  return ((i < per ? 0 : end & ~15) + i % per * size - past) / size;
}

// Begins to copy a row from p to s. What lies beside the row in its first and last vector becomes 0.
template <Hint H, int L, int N, class T>
ONEPASS_INLINE void stage_in(T* s, const T* p, int lane) {
  constexpr int bytes = N * (int)sizeof(T), per = 16 / (int)sizeof(T);
  const int past = past_vector(p);
  char* to = (char*)s - past;
  const char* from = (const char*)p - past;
#pragma unroll
  for (int k = 0; k * L * 16 < bytes + 16; ++k) {
    const int at = (k * L + lane) * 16;
    ptx_copy16_if(to + at, from + at, at >= past && at + 16 <= past + bytes);
  }
#pragma unroll
  for (int k = 0; k * L < 2 * per; ++k) {
    bool partial;
    const int i = k * L + lane, e = end_element<N, T>(past, i, partial);
    const T v = load_if<H, 1>(p + e, partial && i < 2 * per && e >= 0 && e < N).get(0);
    if (partial && i < 2 * per) s[e] = v;
  }
}
// Copies a row from s to p. Every lane's elements must be there.
template <int L, int N, class T>
ONEPASS_INLINE void stage_out(T* p, const T* s, int lane) {
  constexpr int bytes = N * (int)sizeof(T), per = 16 / (int)sizeof(T);
  const int past = past_vector(p);
  char* to = (char*)p - past;
  const char* from = (const char*)s - past;
#pragma unroll
  for (int k = 0; k * L * 16 < bytes + 16; ++k) {
    const int at = (k * L + lane) * 16;
    if (at >= past && at + 16 <= past + bytes) piece<16>::store<stream>(to + at, *(const u32x4*)(from + at));
  }
#pragma unroll
  for (int k = 0; k * L < 2 * per; ++k) {
    bool partial;
    const int i = k * L + lane, e = end_element<N, T>(past, i, partial);
    if (partial && i < 2 * per && e >= 0 && e < N) {
      vec<T, 1> v = {};
      v.set(0, s[e]);
      store<stream, 1>(p + e, v);
    }
  }
}

// W elements of shared memory in one access of at most 8 bytes.
template <int W, class T>
ONEPASS_INLINE vec<T, W> shared_piece(const T* s) {
  vec<T, W> v = {};
  if constexpr (vec<T, W>::bytes == 8) {
    const u32x2 q = *(const u32x2*)s;
    v.w[0] = q.x; v.w[1] = q.y;
  } else if constexpr (vec<T, W>::bytes == 4) {
    v.w[0] = *(const unsigned*)s;
  } else if constexpr (vec<T, W>::bytes == 2) {
    v.w[0] = *(const unsigned short*)s;
  } else {
    v.w[0] = *(const unsigned char*)s;
  }
  return v;
}
template <int W, class T>
ONEPASS_INLINE void shared_put(T* s, const vec<T, W>& v) {
  if constexpr (vec<T, W>::bytes == 8) *(u32x2*)s = u32x2{v.w[0], v.w[1]};
  else if constexpr (vec<T, W>::bytes == 4) *(unsigned*)s = v.w[0];
  else if constexpr (vec<T, W>::bytes == 2) *(unsigned short*)s = (unsigned short)v.w[0];
  else *(unsigned char*)s = (unsigned char)v.w[0];
}

template <class V, class T, int E>
ONEPASS_INLINE vec<V, E> as_vec(const vec<T, E>& v) {
  if constexpr (same_type<V, T>::value) {
    return v;
  } else {
    vec<V, E> r = {};
#pragma unroll
    for (int i = 0; i < E; ++i) r.set(i, element(v, i));
    return r;
  }
}

// A lane's units of E elements in a staged row whose address is a multiple of W elements: those `c` past its first, of
// which the ones below `left` are in the row. 16-bit elements come and go as words of two; where a word begins between two
// elements of a unit (`odd`), the unit's come from one word more.
template <class T, int E, int W>
struct staged_row {
  enum : int { size = (int)sizeof(T), words = W == 1 && size == 2 && E % 2 == 0 };
  char* at;
  bool odd;

  __device__ __forceinline__ staged_row(T* s, int lane) : at((char*)(s + lane * E)), odd(false) {
    if constexpr (words) odd = (unsigned long long)s & 2;
  }
  __device__ __forceinline__ vec<T, E> load(int c, int left) const { return load_as(c, left, odd); }
  __device__ __forceinline__ void store(int c, const vec<T, E>& v, int left) const { store_as(c, v, left, odd); }

  // All K units of a lane of a row of N, with one branch for them all. 16-bit floats may come as floats.
  template <int L, int N, class V, int K>
  __device__ __forceinline__ void load_all(vec<V, E> (&v)[K], int lane) const {
    if (words && !odd) {
#pragma unroll
      for (int k = 0; k < K; ++k) v[k] = as_vec<V>(load_as(k * L * E, N - (k * L + lane) * E, false));
    } else {
#pragma unroll
      for (int k = 0; k < K; ++k) v[k] = as_vec<V>(load_as(k * L * E, N - (k * L + lane) * E, words));
    }
  }
  template <int L, int N, int K>
  __device__ __forceinline__ void store_all(const vec<T, E> (&v)[K], int lane) const {
    if (words && !odd) {
#pragma unroll
      for (int k = 0; k < K; ++k) store_as(k * L * E, v[k], N - (k * L + lane) * E, false);
    } else {
#pragma unroll
      for (int k = 0; k < K; ++k) store_as(k * L * E, v[k], N - (k * L + lane) * E, words);
    }
  }

 private:
  __device__ __forceinline__ vec<T, E> load_as(int c, int left, bool is_odd) const {
    vec<T, E> v = {};
    if constexpr (words) {
      const unsigned* p = (const unsigned*)(at - 2 * is_odd + c * size);
      unsigned q[E / 2 + 1] = {};
#pragma unroll
      for (int i = 0; i <= E / 2; ++i)
        if (left > 0 && 2 * i - is_odd < left && (is_odd || i < E / 2)) q[i] = p[i];
#pragma unroll
      for (int i = 0; i < E / 2; ++i) v.w[i] = is_odd ? q[i] >> 16 | q[i + 1] << 16 : q[i];
    } else {
#pragma unroll
      for (int j = 0; j < E / W; ++j) {
        vec<T, W> q = {};
        if (j * W < left) q = shared_piece<W>((const T*)(at + c * size) + j * W);
#pragma unroll
        for (int i = 0; i < W; ++i) v.set(j * W + i, q.get(i));
      }
    }
    return v;
  }
  __device__ __forceinline__ void store_as(int c, const vec<T, E>& v, int left, bool is_odd) const {
    T* p = (T*)(at + c * size);
    if constexpr (words) {
      if (is_odd && left > 0) p[0] = v.get(0);
#pragma unroll
      for (int i = 0; i < E / 2; ++i) {
        const int e = 2 * i + is_odd;  // the first of two elements that are a word
        if (e + 1 < E && e + 1 < left) {
          *(unsigned*)(p + e) = is_odd ? v.w[i] >> 16 | v.w[i + 1 < E / 2 ? i + 1 : i] << 16 : v.w[i];
        } else if (e < left) {
          p[e] = v.get(is_odd ? 2 * i + 1 : 2 * i);
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < E / W; ++j) {
        vec<T, W> q = {};
#pragma unroll
        for (int i = 0; i < W; ++i) q.set(i, v.get(j * W + i));
        if (j * W < left) shared_put<W>(p + j * W, q);
      }
    }
  }
};
