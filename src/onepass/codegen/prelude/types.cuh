// Storage types and how they become float and back. Arithmetic is always float.
#define ONEPASS_INLINE __device__ __forceinline__
#define INFINITY_F __int_as_float(0x7f800000)
#define LEAST_I64 (-0x7fffffffffffffffll - 1)
#define GREATEST_I64 0x7fffffffffffffffll
#define NAN_F __int_as_float(0x7fc00000)

typedef long long i64;
typedef int i32;
typedef short i16;
typedef signed char i8;
typedef unsigned char u8;
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };
struct e4m3 { unsigned char bits; };  // 8-bit floats, as PyTorch's float8_e4m3fn and float8_e5m2
struct e5m2 { unsigned char bits; };
struct b8 { unsigned char bits; };  // bool: 0 or 1, one byte

// The same bits as another type of the same size.
template <class To, class From>
ONEPASS_INLINE To bits_as(From v) {
  static_assert(sizeof(To) == sizeof(From), "sizes differ");
  union { From from; To to; } u;
  u.from = v;
  return u.to;
}

// Two bf16 in one word, `lo` in the low half, rounded to nearest even; NaN stays NaN.
ONEPASS_INLINE unsigned pack_bf16(float lo, float hi) {
#if __CUDA_ARCH__ >= 800
  return ptx_cvt_bf16x2(hi, lo);
#else
  unsigned word = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float v = i ? hi : lo;
    const unsigned u = __float_as_uint(v);
    const unsigned rounded = v != v ? 0x7fffu : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    word |= rounded << (16 * i);
  }
  return word;
#endif
}
ONEPASS_INLINE unsigned pack_f16(float lo, float hi) { return ptx_cvt_f16x2(hi, lo); }

ONEPASS_INLINE float to_float(float v) { return v; }
ONEPASS_INLINE float to_float(double v) { return (float)v; }
ONEPASS_INLINE float to_float(bf16 v) { return __uint_as_float((unsigned)v.bits << 16); }
ONEPASS_INLINE float to_float(f16 v) { return ptx_f16_low(v.bits); }
// NaN is all ones; the exponent is moved by a product that is exact.
ONEPASS_INLINE float to_float(e4m3 v) {
  const unsigned magnitude = v.bits & 0x7fu;
  const float x = magnitude == 0x7fu ? NAN_F : __uint_as_float(magnitude << 20) * 0x1p120f;
  return v.bits & 0x80u ? -x : x;
}
ONEPASS_INLINE float to_float(e5m2 v) { return ptx_f16_low((unsigned)v.bits << 8); }  // the upper half of a float16
ONEPASS_INLINE float to_float(i64 v) { return (float)v; }
ONEPASS_INLINE float to_float(i32 v) { return (float)v; }
ONEPASS_INLINE float to_float(i16 v) { return (float)v; }
ONEPASS_INLINE float to_float(i8 v) { return (float)v; }
ONEPASS_INLINE float to_float(u8 v) { return (float)v; }
ONEPASS_INLINE float to_float(b8 v) { return v.bits ? 1.0f : 0.0f; }

// Integers truncate towards zero, as a C cast does.
template <class T> struct float_to { static __device__ __forceinline__ T of(float v) { return (T)v; } };
template <> struct float_to<bf16> {
  static __device__ __forceinline__ bf16 of(float v) { return bf16{(unsigned short)pack_bf16(v, 0.0f)}; }
};
template <> struct float_to<f16> {
  static __device__ __forceinline__ f16 of(float v) { return f16{(unsigned short)pack_f16(v, 0.0f)}; }
};
template <> struct float_to<b8> {
  static __device__ __forceinline__ b8 of(float v) { return b8{(unsigned char)(v != 0.0f)}; }
};
// To nearest even. Below the least normal number the float adder rounds; from `most` on it is what lies beyond: NaN,
// else the largest e4m3, 448, which has no infinity, or e5m2's.
template <unsigned mantissa, unsigned bias, unsigned most>
ONEPASS_INLINE unsigned eight_bits(float v, unsigned beyond) {
  const unsigned u = __float_as_uint(v), sign = u >> 24 & 0x80u, m = u & 0x7fffffffu, drop = 23 - mantissa;
  const unsigned magic = (127 - bias + drop + 1) << 23;
  const unsigned tiny = __float_as_uint(__uint_as_float(m) + __uint_as_float(magic)) - magic;
  const unsigned normal = (m + ((bias - 127) << 23) + (1u << (drop - 1)) - 1 + (m >> drop & 1)) >> drop;
  return sign | (m >= most ? beyond : m < (128 - bias) << 23 ? tiny : normal);
}
template <> struct float_to<e4m3> {
  static __device__ __forceinline__ e4m3 of(float v) { return e4m3{(unsigned char)eight_bits<3, 7, 0x43e80001u>(v, v != v ? 0x7fu : 0x7eu)}; }
};
template <> struct float_to<e5m2> {
  static __device__ __forceinline__ e5m2 of(float v) {
    return e5m2{(unsigned char)eight_bits<2, 15, 143u << 23>(v, v != v ? 0x7fu : 0x7cu)};
  }
};
template <class T> ONEPASS_INLINE T from_float(float v) { return float_to<T>::of(v); }

// To 16 bits and back, for those who want every intermediate rounded as eager PyTorch rounds it.
ONEPASS_INLINE float round_bf16(float v) { return to_float(from_float<bf16>(v)); }
ONEPASS_INLINE float round_e4m3(float v) { return to_float(from_float<e4m3>(v)); }
ONEPASS_INLINE float round_e5m2(float v) { return to_float(from_float<e5m2>(v)); }
ONEPASS_INLINE float round_f16(float v) { return to_float(from_float<f16>(v)); }
