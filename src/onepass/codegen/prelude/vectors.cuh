// A register vector: W neighbouring elements in their storage type, kept as the 32-bit words that loads bring.
// Element indices must be constant after unrolling, so that nothing goes through local memory.
enum Hint {
  stream,  // read once, or written and not read soon; read-only while the kernel runs
  nearby,  // the same, in pieces that share sectors with their neighbours'
  cached,  // row vectors that each row reads again; read-only while the kernel runs
  plain    // memory that this kernel also writes, or that may alias what it writes
};

template <class T, int W>
struct vec {
  enum : int { bytes = W * (int)sizeof(T), words = (bytes + 3) / 4 };
  unsigned w[words];

  __device__ __forceinline__ T get(int i) const {
    T v;
    if constexpr (sizeof(T) == 8) {
      const unsigned long long b = w[2 * i] | (unsigned long long)w[2 * i + 1] << 32;
      v = bits_as<T>(b);
    } else if constexpr (sizeof(T) == 4) {
      v = bits_as<T>(w[i]);
    } else if constexpr (sizeof(T) == 2) {
      v = bits_as<T>((unsigned short)(w[i / 2] >> (16 * (i % 2))));
    } else {
      v = bits_as<T>((unsigned char)(w[i / 4] >> (8 * (i % 4))));
    }
    return v;
  }
  // Elements are set in ascending order: the first of a word clears it.
  __device__ __forceinline__ void set(int i, T v) {
    if constexpr (sizeof(T) == 8) {
      const unsigned long long b = bits_as<unsigned long long>(v);
      w[2 * i] = (unsigned)b;
      w[2 * i + 1] = (unsigned)(b >> 32);
    } else if constexpr (sizeof(T) == 4) {
      w[i] = bits_as<unsigned>(v);
    } else if constexpr (sizeof(T) == 2) {
      const unsigned b = bits_as<unsigned short>(v);
      w[i / 2] = i % 2 ? w[i / 2] | b << 16 : b;
    } else {
      const unsigned b = bits_as<unsigned char>(v);
      w[i / 4] = i % 4 ? w[i / 4] | b << (8 * (i % 4)) : b;
    }
  }
};

// Element i as float: one instruction for bf16, where a conversion of get(i) would take two.
template <class T, int W>
ONEPASS_INLINE float element(const vec<T, W>& v, int i) { return to_float(v.get(i)); }
template <int W>
ONEPASS_INLINE float element(const vec<bf16, W>& v, int i) {
  return __uint_as_float(i % 2 ? v.w[i / 2] & 0xffff0000u : v.w[i / 2] << 16);
}
template <int W>
ONEPASS_INLINE float element(const vec<f16, W>& v, int i) {
  return i % 2 ? ptx_f16_high(v.w[i / 2]) : ptx_f16_low(v.w[i / 2]);
}

template <class T, int W>
ONEPASS_INLINE void unpack(const vec<T, W>& v, float (&out)[W]) {
#pragma unroll
  for (int i = 0; i < W; ++i) out[i] = element(v, i);
}

template <class T> struct packer {
  template <int W> static __device__ __forceinline__ vec<T, W> of(const float (&in)[W]) {
    vec<T, W> v;
#pragma unroll
    for (int i = 0; i < W; ++i) v.set(i, from_float<T>(in[i]));
    return v;
  }
};
// 16-bit floats are rounded two at a time.
#define ONEPASS_PACKER(T, pack_pair)                                                         \
  template <> struct packer<T> {                                                             \
    template <int W> static __device__ __forceinline__ vec<T, W> of(const float (&in)[W]) {  \
      vec<T, W> v;                                                                           \
      _Pragma("unroll") for (int i = 0; i < W; i += 2)                                       \
        v.w[i / 2] = pack_pair(in[i], i + 1 < W ? in[i + 1] : 0.0f);                         \
      return v;                                                                              \
    }                                                                                        \
  };
ONEPASS_PACKER(bf16, pack_bf16)
ONEPASS_PACKER(f16, pack_f16)
#undef ONEPASS_PACKER
template <class T, int W>
ONEPASS_INLINE vec<T, W> pack(const float (&in)[W]) { return packer<T>::of(in); }

// One access of B bytes, B a power of two up to 16.
template <int B> struct piece;
#define ONEPASS_PIECE(B, R)                                                                               \
  template <> struct piece<B> {                                                                           \
    template <Hint H> static __device__ __forceinline__ R load(const void* p) {                           \
      if constexpr (H == stream) return ptx_load##B##_stream(p);                                          \
      else if constexpr (H == nearby) return ptx_load##B##_nearby(p);                                     \
      else if constexpr (H == cached) return ptx_load##B##_cached(p);                                     \
      else return ptx_load##B##_plain(p);                                                                 \
    }                                                                                                     \
    template <Hint H> static __device__ __forceinline__ R load_if(const void* p, bool there) {            \
      if constexpr (H == stream) return ptx_load##B##_stream_if(p, there);                                \
      else if constexpr (H == nearby) return ptx_load##B##_nearby_if(p, there);                           \
      else if constexpr (H == cached) return ptx_load##B##_cached_if(p, there);                           \
      else return ptx_load##B##_plain_if(p, there);                                                       \
    }                                                                                                     \
    template <Hint H> static __device__ __forceinline__ void store(void* p, R v) {                        \
      if constexpr (H == stream) ptx_store##B##_stream(p, v);                                             \
      else ptx_store##B##_plain(p, v);                                                                    \
    }                                                                                                     \
  };
ONEPASS_PIECE(16, u32x4)
ONEPASS_PIECE(8, u32x2)
ONEPASS_PIECE(4, unsigned)
ONEPASS_PIECE(2, unsigned)
ONEPASS_PIECE(1, unsigned)
#undef ONEPASS_PIECE

// W elements from p, which must be aligned to min(16, W * sizeof(T)) bytes; more than 16 bytes are several accesses.
template <Hint H, int W, class T>
ONEPASS_INLINE vec<T, W> load(const T* p) {
  vec<T, W> v;
  constexpr int B = vec<T, W>::bytes;
  const char* at = (const char*)p;
  if constexpr (B >= 16) {
#pragma unroll
    for (int i = 0; i < B / 16; ++i) {
      const u32x4 q = piece<16>::load<H>(at + 16 * i);
      v.w[4 * i] = q.x; v.w[4 * i + 1] = q.y; v.w[4 * i + 2] = q.z; v.w[4 * i + 3] = q.w;
    }
  } else if constexpr (B == 8) {
    const u32x2 q = piece<8>::load<H>(at);
    v.w[0] = q.x; v.w[1] = q.y;
  } else {
    v.w[0] = piece<B>::template load<H>(at);
  }
  return v;
}

// The same where they are `there`, else zeros, without a branch.
template <Hint H, int W, class T>
ONEPASS_INLINE vec<T, W> load_if(const T* p, bool there) {
  vec<T, W> v;
  constexpr int B = vec<T, W>::bytes;
  const char* at = (const char*)p;
  if constexpr (B >= 16) {
#pragma unroll
    for (int i = 0; i < B / 16; ++i) {
      const u32x4 q = piece<16>::load_if<H>(at + 16 * i, there);
      v.w[4 * i] = q.x; v.w[4 * i + 1] = q.y; v.w[4 * i + 2] = q.z; v.w[4 * i + 3] = q.w;
    }
  } else if constexpr (B == 8) {
    const u32x2 q = piece<8>::load_if<H>(at, there);
    v.w[0] = q.x; v.w[1] = q.y;
  } else {
    v.w[0] = piece<B>::template load_if<H>(at, there);
  }
  return v;
}

template <Hint H, int W, class T>
ONEPASS_INLINE void store(T* p, const vec<T, W>& v) {
  constexpr int B = vec<T, W>::bytes;
  char* at = (char*)p;
  if constexpr (B >= 16) {
#pragma unroll
    for (int i = 0; i < B / 16; ++i)
      piece<16>::store<H>(at + 16 * i, u32x4{v.w[4 * i], v.w[4 * i + 1], v.w[4 * i + 2], v.w[4 * i + 3]});
  } else if constexpr (B == 8) {
    piece<8>::store<H>(at, u32x2{v.w[0], v.w[1]});
  } else {
    piece<B>::template store<H>(at, v.w[0]);
  }
}

// E neighbouring elements of a row, of which only those from `first` on and below `left` are there; the rest are zero.
// Accesses of W elements, each wholly there or not at all, without branches.
template <Hint H, int E, int W, class T>
ONEPASS_INLINE vec<T, E> load_row(const T* p, int left, int first = 0) {
  if constexpr (W == E) {
    return load_if<H, E>(p, E <= left && first <= 0);
  } else {
    vec<T, E> v = {};
#pragma unroll
    for (int j = 0; j < E / W; ++j) {
      const vec<T, W> q = load_if<H, W>(p + j * W, (j + 1) * W <= left && j * W >= first);
#pragma unroll
      for (int i = 0; i < W; ++i) v.set(j * W + i, q.get(i));
    }
    return v;
  }
}
// Accesses of E elements; of the last E of a row that E does not divide, one by one.
template <Hint H, int E, class T>
ONEPASS_INLINE vec<T, E> load_ragged(const T* p, int left) {
  vec<T, E> v = load_if<H, E>(p, E <= left), tail = {};
#pragma unroll
  for (int i = 0; i < E; ++i) tail.set(i, load_if<H, 1>(p + i, i < left && left < E).get(0));
#pragma unroll
  for (int i = 0; i < vec<T, E>::words; ++i) v.w[i] |= tail.w[i];
  return v;
}
template <Hint H, int E, class T>
ONEPASS_INLINE void store_ragged(T* p, const vec<T, E>& v, int left) {
  if (E <= left) {
    store<H, E>(p, v);
  } else {
#pragma unroll
    for (int i = 0; i < E; ++i) {
      vec<T, 1> q = {};
      q.set(0, v.get(i));
      if (i < left) store<H, 1>(p + i, q);
    }
  }
}

// E elements of which `left` are there, or all of them.
template <bool Full, Hint H, int E, class T>
ONEPASS_INLINE vec<T, E> load_level(const T* p, long long left) {
  if constexpr (Full) {
    return load<H, E>(p);
  } else {
    return load_row<H, E, 1>(p, left < E ? (int)left : E);
  }
}
template <bool Full, Hint H, int E, class T>
ONEPASS_INLINE void store_level(T* p, const vec<T, E>& v, long long left) {
  if constexpr (Full) {
    store<H, E>(p, v);
  } else {
    store_ragged<H, E>(p, v, left < E ? (int)left : E);
  }
}
// E elements of a row vector from column c on; after its last comes its first. 16-bit elements come as words of two where
// all lie before the end.
template <Hint H, int E, class T>
ONEPASS_INLINE vec<T, E> load_turning(const T* p, int c, int cols) {
  vec<T, E> v = {};
  if (sizeof(T) == 2 && E > 1 && c + E < cols) {
    const int odd = c & 1;
    unsigned q[E / 2 + 1];
#pragma unroll
    for (int i = 0; i < E / 2; ++i) q[i] = load<H, 2>(p + c - odd + 2 * i).w[0];
    q[E / 2] = load_if<H, 2>(p + c - odd + E, odd).w[0];
#pragma unroll
    for (int i = 0; i < E / 2; ++i) v.w[i] = odd ? q[i] >> 16 | q[i + 1] << 16 : q[i];
  } else if (c + E <= cols) {
#pragma unroll
    for (int i = 0; i < E; ++i) v.set(i, load<H, 1>(p + c + i).get(0));
  } else {
#pragma unroll
    for (int i = 0; i < E; ++i) v.set(i, load<H, 1>(p + (c + i < cols ? c + i : c + i - cols)).get(0));
  }
  return v;
}
