// What a hand-written kernel finds in CUDA's own headers: vector types, half and bfloat16, math, more atomics and warp
// functions. Generated kernels do without: they bring what they need in their prelude.
#pragma once
#include <type_traits>

// Vectors. The host compiler must not take them apart (-fno-tree-sra), so that one access stays one.
#define ONEPASS_THREE(type, name) struct name##3 { type x, y, z; };
#define ONEPASS_VECTOR(type, name, align2, align4)                                                   \
  struct name##1 { type x; };                                                                        \
  struct alignas(align2) name##2 { type x, y; };                                                     \
  ONEPASS_THREE(type, name)                                                                          \
  struct alignas(align4) name##4 { type x, y, z, w; };                                               \
  ONEPASS_HOST name##1 make_##name##1(type x) { return {x}; }                                        \
  ONEPASS_HOST name##2 make_##name##2(type x, type y) { return {x, y}; }                             \
  ONEPASS_HOST name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                  \
  ONEPASS_HOST name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
ONEPASS_VECTOR(signed char, char, 2, 4)
ONEPASS_VECTOR(unsigned char, uchar, 2, 4)
ONEPASS_VECTOR(short, short, 4, 8)
ONEPASS_VECTOR(unsigned short, ushort, 4, 8)
ONEPASS_VECTOR(int, int, 8, 16)
#undef ONEPASS_THREE
#define ONEPASS_THREE(type, name) using name##3 = Index3;  // threadIdx is a uint3
ONEPASS_VECTOR(unsigned, uint, 8, 16)
#undef ONEPASS_THREE
#define ONEPASS_THREE(type, name) struct name##3 { type x, y, z; };
ONEPASS_VECTOR(long long, longlong, 16, 16)
ONEPASS_VECTOR(unsigned long long, ulonglong, 16, 16)
ONEPASS_VECTOR(float, float, 8, 16)
ONEPASS_VECTOR(double, double, 16, 16)
#undef ONEPASS_VECTOR
#undef ONEPASS_THREE
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;

// ---- 16-bit floats: every operation rounds once from fp32, as the device's does ----

template <bool brain>
struct onepass_narrow {
  unsigned short bits;
  onepass_narrow() = default;
  ONEPASS_MEMBER onepass_narrow(float v) : bits((unsigned short)(brain ? onepass_bf16_bits(v) : onepass_f16_bits(v))) {}
  ONEPASS_MEMBER onepass_narrow(double v) : onepass_narrow(float(v)) {}
  ONEPASS_MEMBER onepass_narrow(int v) : onepass_narrow(float(v)) {}
  ONEPASS_MEMBER onepass_narrow(unsigned v) : onepass_narrow(float(v)) {}
  ONEPASS_MEMBER operator float() const {
    return brain ? __uint_as_float(unsigned(bits) << 16) : onepass_f16_value(bits);
  }
  friend ONEPASS_MEMBER onepass_narrow operator+(onepass_narrow a, onepass_narrow b) { return float(a) + float(b); }
  friend ONEPASS_MEMBER onepass_narrow operator-(onepass_narrow a, onepass_narrow b) { return float(a) - float(b); }
  friend ONEPASS_MEMBER onepass_narrow operator*(onepass_narrow a, onepass_narrow b) { return float(a) * float(b); }
  friend ONEPASS_MEMBER onepass_narrow operator/(onepass_narrow a, onepass_narrow b) { return float(a) / float(b); }
  friend ONEPASS_MEMBER onepass_narrow operator-(onepass_narrow a) { return -float(a); }
  friend ONEPASS_MEMBER bool operator<(onepass_narrow a, onepass_narrow b) { return float(a) < float(b); }
  friend ONEPASS_MEMBER bool operator>(onepass_narrow a, onepass_narrow b) { return float(a) > float(b); }
  friend ONEPASS_MEMBER bool operator<=(onepass_narrow a, onepass_narrow b) { return float(a) <= float(b); }
  friend ONEPASS_MEMBER bool operator>=(onepass_narrow a, onepass_narrow b) { return float(a) >= float(b); }
  friend ONEPASS_MEMBER bool operator==(onepass_narrow a, onepass_narrow b) { return float(a) == float(b); }
  friend ONEPASS_MEMBER bool operator!=(onepass_narrow a, onepass_narrow b) { return float(a) != float(b); }
  ONEPASS_MEMBER onepass_narrow& operator+=(onepass_narrow b) { return *this = *this + b; }
  ONEPASS_MEMBER onepass_narrow& operator-=(onepass_narrow b) { return *this = *this - b; }
  ONEPASS_MEMBER onepass_narrow& operator*=(onepass_narrow b) { return *this = *this * b; }
  ONEPASS_MEMBER onepass_narrow& operator/=(onepass_narrow b) { return *this = *this / b; }
};
template <bool brain>
struct alignas(4) onepass_narrow2 {
  onepass_narrow<brain> x, y;
};
using __half = onepass_narrow<false>;
using __nv_bfloat16 = onepass_narrow<true>;
using __half2 = onepass_narrow2<false>;
using __nv_bfloat162 = onepass_narrow2<true>;
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

ONEPASS_HOST __half __float2half(float v) { return v; }
ONEPASS_HOST __half __float2half_rn(float v) { return v; }
ONEPASS_HOST __half __double2half(double v) { return float(v); }
ONEPASS_HOST float __half2float(__half v) { return v; }
ONEPASS_HOST __nv_bfloat16 __float2bfloat16(float v) { return v; }
ONEPASS_HOST __nv_bfloat16 __float2bfloat16_rn(float v) { return v; }
ONEPASS_HOST float __bfloat162float(__nv_bfloat16 v) { return v; }
ONEPASS_HOST __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
ONEPASS_HOST __half2 __float22half2_rn(float2 v) { return {v.x, v.y}; }
ONEPASS_HOST __half2 __float2half2_rn(float v) { return {v, v}; }
ONEPASS_HOST float2 __half22float2(__half2 v) { return {v.x, v.y}; }
ONEPASS_HOST __half2 __halves2half2(__half x, __half y) { return {x, y}; }
ONEPASS_HOST __half2 __half2half2(__half v) { return {v, v}; }
ONEPASS_HOST __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
ONEPASS_HOST __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {v.x, v.y}; }
ONEPASS_HOST __nv_bfloat162 __float2bfloat162_rn(float v) { return {v, v}; }
ONEPASS_HOST float2 __bfloat1622float2(__nv_bfloat162 v) { return {v.x, v.y}; }
ONEPASS_HOST __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
ONEPASS_HOST __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 v) { return {v, v}; }
ONEPASS_HOST unsigned short __half_as_ushort(__half v) { return v.bits; }
ONEPASS_HOST unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
ONEPASS_HOST __half __ushort_as_half(unsigned short v) { return onepass_bits<__half>(v); }
ONEPASS_HOST __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) { return onepass_bits<__nv_bfloat16>(v); }

#define ONEPASS_NARROW template <bool brain> ONEPASS_HOST
#define ONEPASS_1 onepass_narrow<brain>
#define ONEPASS_2 onepass_narrow2<brain>
ONEPASS_NARROW float __low2float(ONEPASS_2 v) { return v.x; }
ONEPASS_NARROW float __high2float(ONEPASS_2 v) { return v.y; }
ONEPASS_NARROW ONEPASS_1 __low2half(ONEPASS_2 v) { return v.x; }
ONEPASS_NARROW ONEPASS_1 __high2half(ONEPASS_2 v) { return v.y; }
ONEPASS_NARROW ONEPASS_1 __low2bfloat16(ONEPASS_2 v) { return v.x; }
ONEPASS_NARROW ONEPASS_1 __high2bfloat16(ONEPASS_2 v) { return v.y; }
#define ONEPASS_BINARY(name, expression)                                             \
  ONEPASS_NARROW ONEPASS_1 name(ONEPASS_1 a, ONEPASS_1 b) { return expression; }     \
  ONEPASS_NARROW ONEPASS_2 name##2(ONEPASS_2 a, ONEPASS_2 b) { return {name(a.x, b.x), name(a.y, b.y)}; }
ONEPASS_BINARY(__hadd, a + b)
ONEPASS_BINARY(__hsub, a - b)
ONEPASS_BINARY(__hmul, a * b)
ONEPASS_BINARY(__hmax, __builtin_fmaxf(a, b))
ONEPASS_BINARY(__hmin, __builtin_fminf(a, b))
#undef ONEPASS_BINARY
ONEPASS_NARROW ONEPASS_1 __hdiv(ONEPASS_1 a, ONEPASS_1 b) { return a / b; }
ONEPASS_NARROW ONEPASS_2 __h2div(ONEPASS_2 a, ONEPASS_2 b) { return {a.x / b.x, a.y / b.y}; }
ONEPASS_NARROW ONEPASS_1 __hneg(ONEPASS_1 a) { return -a; }
ONEPASS_NARROW ONEPASS_1 __habs(ONEPASS_1 a) { return __builtin_fabsf(a); }
ONEPASS_NARROW bool __hgt(ONEPASS_1 a, ONEPASS_1 b) { return a > b; }
ONEPASS_NARROW bool __hlt(ONEPASS_1 a, ONEPASS_1 b) { return a < b; }
ONEPASS_NARROW bool __hge(ONEPASS_1 a, ONEPASS_1 b) { return a >= b; }
ONEPASS_NARROW bool __hle(ONEPASS_1 a, ONEPASS_1 b) { return a <= b; }
ONEPASS_NARROW bool __heq(ONEPASS_1 a, ONEPASS_1 b) { return a == b; }
#define ONEPASS_COMPARE(name, op)                                                                    \
  ONEPASS_NARROW ONEPASS_2 __h##name##2(ONEPASS_2 a, ONEPASS_2 b) {                                  \
    return {float(float(a.x) op float(b.x)), float(float(a.y) op float(b.y))};                       \
  }                                                                                                  \
  ONEPASS_NARROW bool __hb##name##2(ONEPASS_2 a, ONEPASS_2 b) {                                      \
    return float(a.x) op float(b.x) && float(a.y) op float(b.y);                                     \
  }
ONEPASS_COMPARE(gt, >)
ONEPASS_COMPARE(lt, <)
ONEPASS_COMPARE(ge, >=)
ONEPASS_COMPARE(le, <=)
ONEPASS_COMPARE(eq, ==)
ONEPASS_COMPARE(ne, !=)
#undef ONEPASS_COMPARE
ONEPASS_NARROW bool __hne(ONEPASS_1 a, ONEPASS_1 b) { return a != b; }
ONEPASS_NARROW ONEPASS_1 __hmax_nan(ONEPASS_1 a, ONEPASS_1 b) { return a != a ? a : b != b ? b : __hmax(a, b); }
ONEPASS_NARROW ONEPASS_1 __hmin_nan(ONEPASS_1 a, ONEPASS_1 b) { return a != a ? a : b != b ? b : __hmin(a, b); }
ONEPASS_NARROW ONEPASS_2 __hneg2(ONEPASS_2 a) { return {-a.x, -a.y}; }
ONEPASS_NARROW ONEPASS_2 __habs2(ONEPASS_2 a) { return {__habs(a.x), __habs(a.y)}; }
ONEPASS_NARROW ONEPASS_2 __lowhigh2highlow(ONEPASS_2 a) { return {a.y, a.x}; }
ONEPASS_NARROW ONEPASS_2 __lows2half2(ONEPASS_2 a, ONEPASS_2 b) { return {a.x, b.x}; }
ONEPASS_NARROW ONEPASS_2 __highs2half2(ONEPASS_2 a, ONEPASS_2 b) { return {a.y, b.y}; }
ONEPASS_NARROW ONEPASS_2 __low2half2(ONEPASS_2 a) { return {a.x, a.x}; }
ONEPASS_NARROW ONEPASS_2 __high2half2(ONEPASS_2 a) { return {a.y, a.y}; }
ONEPASS_NARROW bool __hisnan(ONEPASS_1 a) { return a != a; }
// In double the product of two is exact. The sum, and what fp32 leaves of it, are rounded to odd: a last bit that stands for
// all that is lost keeps the rounding to 16 bits the only one.
ONEPASS_HOST double onepass_sum_to_odd(double a, double b) {
  const double sum = a + b, second = sum - a, lost = (a - (sum - second)) + (b - second);
  const long long bits = __double_as_longlong(sum);
  if (!(lost < 0 || lost > 0) || bits & 1) return sum;  // NaN where the sum is no number
  return __longlong_as_double((lost > 0) == (sum > 0) ? bits + 1 : bits - 1);
}
ONEPASS_HOST float onepass_float_to_odd(double v) {
  const float near = float(v);
  const unsigned bits = __float_as_uint(near);
  if (near == v || near != near || isinf(near) || bits & 1) return near;
  return __uint_as_float((near < v) == (v > 0) ? bits + 1 : bits - 1);
}
ONEPASS_NARROW ONEPASS_1 __hfma(ONEPASS_1 a, ONEPASS_1 b, ONEPASS_1 c) {
  return onepass_float_to_odd(onepass_sum_to_odd(double(float(a)) * float(b), float(c)));
}
ONEPASS_NARROW ONEPASS_2 __hfma2(ONEPASS_2 a, ONEPASS_2 b, ONEPASS_2 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
ONEPASS_NARROW ONEPASS_2 operator+(ONEPASS_2 a, ONEPASS_2 b) { return __hadd2(a, b); }
ONEPASS_NARROW ONEPASS_2 operator-(ONEPASS_2 a, ONEPASS_2 b) { return __hsub2(a, b); }
ONEPASS_NARROW ONEPASS_2 operator*(ONEPASS_2 a, ONEPASS_2 b) { return __hmul2(a, b); }
ONEPASS_NARROW ONEPASS_1 hexp(ONEPASS_1 a) { return __builtin_expf(a); }
ONEPASS_NARROW ONEPASS_1 hlog(ONEPASS_1 a) { return __builtin_logf(a); }
ONEPASS_NARROW ONEPASS_1 hsqrt(ONEPASS_1 a) { return __builtin_sqrtf(a); }
ONEPASS_NARROW ONEPASS_1 hrsqrt(ONEPASS_1 a) { return 1.0f / __builtin_sqrtf(a); }
ONEPASS_NARROW ONEPASS_1 hrcp(ONEPASS_1 a) { return 1.0f / float(a); }
ONEPASS_NARROW ONEPASS_1 hexp2(ONEPASS_1 a) { return __builtin_exp2f(a); }
ONEPASS_NARROW ONEPASS_1 hlog2(ONEPASS_1 a) { return __builtin_log2f(a); }
ONEPASS_NARROW ONEPASS_1 hsin(ONEPASS_1 a) { return __builtin_sinf(a); }
ONEPASS_NARROW ONEPASS_1 hcos(ONEPASS_1 a) { return __builtin_cosf(a); }
ONEPASS_NARROW ONEPASS_1 htanh(ONEPASS_1 a) { return __builtin_tanhf(a); }
ONEPASS_NARROW ONEPASS_1 hfloor(ONEPASS_1 a) { return __builtin_floorf(a); }
ONEPASS_NARROW ONEPASS_1 hceil(ONEPASS_1 a) { return __builtin_ceilf(a); }
ONEPASS_NARROW ONEPASS_1 hrint(ONEPASS_1 a) { return __builtin_rintf(a); }
ONEPASS_NARROW ONEPASS_1 htrunc(ONEPASS_1 a) { return __builtin_truncf(a); }
#define ONEPASS_PAIRED(name) ONEPASS_NARROW ONEPASS_2 h2##name(ONEPASS_2 a) { return {h##name(a.x), h##name(a.y)}; }
ONEPASS_PAIRED(exp) ONEPASS_PAIRED(exp2) ONEPASS_PAIRED(log) ONEPASS_PAIRED(log2) ONEPASS_PAIRED(sqrt)
ONEPASS_PAIRED(rsqrt) ONEPASS_PAIRED(rcp) ONEPASS_PAIRED(sin) ONEPASS_PAIRED(cos) ONEPASS_PAIRED(tanh)
ONEPASS_PAIRED(floor) ONEPASS_PAIRED(ceil) ONEPASS_PAIRED(rint) ONEPASS_PAIRED(trunc)
#undef ONEPASS_PAIRED
#undef ONEPASS_NARROW
#undef ONEPASS_1
#undef ONEPASS_2

// ---- math: CUDA's errors are not modelled here, the host's library answers ----

#define ONEPASS_BOTH1(name)                                               \
  ONEPASS_HOST float name(float x) { return __builtin_##name##f(x); }     \
  ONEPASS_HOST double name(double x) { return __builtin_##name(x); }
#define ONEPASS_ALL1(name) ONEPASS_BOTH1(name) ONEPASS_HOST float name##f(float x) { return __builtin_##name##f(x); }
#define ONEPASS_BOTH2(name)                                                                \
  ONEPASS_HOST float name(float x, float y) { return __builtin_##name##f(x, y); }          \
  ONEPASS_HOST double name(double x, double y) { return __builtin_##name(x, y); }
ONEPASS_ALL1(exp) ONEPASS_ALL1(exp2) ONEPASS_ALL1(expm1) ONEPASS_ALL1(log) ONEPASS_ALL1(log2) ONEPASS_ALL1(log10)
ONEPASS_ALL1(log1p) ONEPASS_ALL1(sin) ONEPASS_ALL1(cos) ONEPASS_ALL1(tan) ONEPASS_ALL1(asin) ONEPASS_ALL1(acos)
ONEPASS_ALL1(atan) ONEPASS_ALL1(sinh) ONEPASS_ALL1(cosh) ONEPASS_ALL1(tanh) ONEPASS_ALL1(erf) ONEPASS_ALL1(erfc)
ONEPASS_ALL1(cbrt) ONEPASS_ALL1(round) ONEPASS_ALL1(lgamma) ONEPASS_ALL1(tgamma) ONEPASS_ALL1(nearbyint)
ONEPASS_BOTH1(fabs) ONEPASS_BOTH1(floor) ONEPASS_BOTH1(ceil) ONEPASS_BOTH1(trunc) ONEPASS_BOTH1(rint) ONEPASS_BOTH1(sqrt)
ONEPASS_BOTH2(fmin) ONEPASS_BOTH2(fmax) ONEPASS_BOTH2(fmod) ONEPASS_BOTH2(pow) ONEPASS_BOTH2(copysign)
ONEPASS_BOTH2(atan2) ONEPASS_BOTH2(hypot) ONEPASS_BOTH2(fdim)
#undef ONEPASS_BOTH1
#undef ONEPASS_BOTH2
#undef ONEPASS_ALL1
ONEPASS_HOST float atan2f(float x, float y) { return __builtin_atan2f(x, y); }
ONEPASS_HOST float hypotf(float x, float y) { return __builtin_hypotf(x, y); }
ONEPASS_HOST float fdimf(float x, float y) { return __builtin_fdimf(x, y); }
ONEPASS_HOST float ldexpf(float x, int e) { return __builtin_ldexpf(x, e); }
ONEPASS_HOST double pow(double x, int y) { return __builtin_pow(x, y); }
ONEPASS_HOST float pow(float x, int y) { return __builtin_powf(x, float(y)); }
ONEPASS_HOST float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
ONEPASS_HOST double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
ONEPASS_HOST float rsqrtf(float x) { return float(1.0 / __builtin_sqrt(double(x))); }
ONEPASS_HOST float rsqrt(float x) { return rsqrtf(x); }
ONEPASS_HOST double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
ONEPASS_HOST float exp10f(float x) { return __builtin_powf(10.0f, x); }
ONEPASS_HOST float normcdff(float x) { return 0.5f * __builtin_erfcf(-x * 0.70710678f); }
ONEPASS_HOST void sincosf(float x, float* s, float* c) { *s = __builtin_sinf(x), *c = __builtin_cosf(x); }
ONEPASS_HOST float __expf(float x) { return __builtin_expf(x); }
ONEPASS_HOST float __exp10f(float x) { return exp10f(x); }
ONEPASS_HOST float __logf(float x) { return __builtin_logf(x); }
ONEPASS_HOST float __log2f(float x) { return __builtin_log2f(x); }
ONEPASS_HOST float __log10f(float x) { return __builtin_log10f(x); }
ONEPASS_HOST float __sinf(float x) { return __builtin_sinf(x); }
ONEPASS_HOST float __cosf(float x) { return __builtin_cosf(x); }
ONEPASS_HOST float __tanf(float x) { return __builtin_tanf(x); }
ONEPASS_HOST float __powf(float x, float y) { return __builtin_powf(x, y); }
ONEPASS_HOST float __fdividef(float x, float y) { return x / y; }
ONEPASS_HOST float __fdiv_rn(float x, float y) { return x / y; }
ONEPASS_HOST float __frcp_rn(float x) { return 1.0f / x; }
ONEPASS_HOST float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
ONEPASS_HOST float __frsqrt_rn(float x) { return rsqrtf(x); }
ONEPASS_HOST float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
// A volatile in between keeps the compiler from contracting: these exist to round on their own.
ONEPASS_HOST float __fadd_rn(float x, float y) { volatile float r = x + y; return r; }
ONEPASS_HOST float __fsub_rn(float x, float y) { volatile float r = x - y; return r; }
ONEPASS_HOST float __fmul_rn(float x, float y) { volatile float r = x * y; return r; }
ONEPASS_HOST bool isfinite(float x) { return __builtin_isfinite(x); }
ONEPASS_HOST bool isfinite(double x) { return __builtin_isfinite(x); }
ONEPASS_HOST bool isnan(double x) { return x != x; }
ONEPASS_HOST bool isinf(double x) { return __builtin_isinf(x); }
ONEPASS_HOST float abs(float x) { return __builtin_fabsf(x); }
ONEPASS_HOST double abs(double x) { return __builtin_fabs(x); }
ONEPASS_HOST int abs(int x) { return x < 0 ? -x : x; }
ONEPASS_HOST long long llabs(long long x) { return x < 0 ? -x : x; }
ONEPASS_HOST float min(float a, float b) { return __builtin_fminf(a, b); }
ONEPASS_HOST float max(float a, float b) { return __builtin_fmaxf(a, b); }
ONEPASS_HOST double min(double a, double b) { return __builtin_fmin(a, b); }
ONEPASS_HOST double max(double a, double b) { return __builtin_fmax(a, b); }
template <class A, class B, class C = typename std::common_type<A, B>::type>
ONEPASS_HOST C min(A a, B b) { return C(a) < C(b) ? C(a) : C(b); }
template <class A, class B, class C = typename std::common_type<A, B>::type>
ONEPASS_HOST C max(A a, B b) { return C(a) > C(b) ? C(a) : C(b); }
ONEPASS_HOST float __int2float_rn(int v) { return float(v); }
ONEPASS_HOST float __uint2float_rn(unsigned v) { return float(v); }
ONEPASS_HOST int __float2int_rz(float v) { return int(v); }
ONEPASS_HOST int __float2int_rd(float v) { return int(__builtin_floorf(v)); }
ONEPASS_HOST int __float2int_ru(float v) { return int(__builtin_ceilf(v)); }
ONEPASS_HOST int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
ONEPASS_HOST int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
ONEPASS_HOST int __ffsll(long long v) { return __builtin_ffsll(v); }
ONEPASS_HOST unsigned __brev(unsigned v) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r = r << 1 | (v >> i & 1);
  return r;
}
ONEPASS_HOST int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
ONEPASS_HOST int __mul24(int a, int b) { return a * b; }

// What <cmath> and <algorithm> put into std; they themselves would declare the functions above once more.
namespace std {
using ::abs;  using ::ceil;  using ::copysign;  using ::cos;  using ::cosh;  using ::erf;  using ::erfc;  using ::exp;
using ::exp2;  using ::expm1;  using ::fabs;  using ::floor;  using ::fma;  using ::fmax;  using ::fmin;  using ::fmod;
using ::hypot;  using ::isfinite;  using ::isinf;  using ::isnan;  using ::log;  using ::log10;  using ::log1p;
using ::log2;  using ::max;  using ::min;  using ::pow;  using ::rint;  using ::round;  using ::sin;  using ::sinh;
using ::sqrt;  using ::tan;  using ::tanh;  using ::trunc;
}  // namespace std

// Byte by byte: every access is watched.
ONEPASS_HOST void* memcpy(void* to, const void* from, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) static_cast<volatile char*>(to)[i] = static_cast<const volatile char*>(from)[i];
  return to;
}
ONEPASS_HOST void* memset(void* to, int byte, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) static_cast<volatile char*>(to)[i] = char(byte);
  return to;
}

// ---- memory with a hint ----

#define ONEPASS_HINTED(load, store)                                        \
  template <class T> ONEPASS_HOST T load(const T* p) { return *p; }        \
  template <class T> ONEPASS_HOST void store(T* p, T v) { *p = v; }
ONEPASS_HINTED(__ldcs, __stcs)
ONEPASS_HINTED(__ldcg, __stcg)
ONEPASS_HINTED(__ldca, __stwb)
ONEPASS_HINTED(__ldcv, __stwt)
#undef ONEPASS_HINTED

// ---- more atomics, warp functions and barriers ----

#define ONEPASS_ATOMIC(name, expression)                                                                      \
  template <class T> ONEPASS_HOST T name(T* p, onepass_same<T> v) { return onepass_atomic(p, [=](T old) { return T(expression); }); }
ONEPASS_ATOMIC(atomicSub, old - v)
ONEPASS_ATOMIC(atomicAnd, old & v)
ONEPASS_ATOMIC(atomicOr, old | v)
ONEPASS_ATOMIC(atomicXor, old ^ v)
ONEPASS_ATOMIC(atomicAdd_block, old + v)
ONEPASS_ATOMIC(atomicAdd_system, old + v)
#undef ONEPASS_ATOMIC
ONEPASS_HOST unsigned atomicDec(unsigned* p, unsigned limit) {
  return onepass_atomic(p, [=](unsigned old) { return old == 0 || old > limit ? limit : old - 1; });
}
#define ONEPASS_REDUCE(name, type, operation)                            \
  ONEPASS_HOST type name(unsigned mask, type v, ONEPASS_SITE) {          \
    return type(onepass_exchange(mask, operation, unsigned(v), 0, site)); \
  }
ONEPASS_REDUCE(__reduce_add_sync, unsigned, exchange_add)
ONEPASS_REDUCE(__reduce_add_sync, int, exchange_add)
ONEPASS_REDUCE(__reduce_min_sync, unsigned, exchange_umin)
ONEPASS_REDUCE(__reduce_min_sync, int, exchange_min)
ONEPASS_REDUCE(__reduce_max_sync, unsigned, exchange_umax)
ONEPASS_REDUCE(__reduce_max_sync, int, exchange_max)
ONEPASS_REDUCE(__reduce_and_sync, unsigned, exchange_and)
ONEPASS_REDUCE(__reduce_or_sync, unsigned, exchange_or)
ONEPASS_REDUCE(__reduce_xor_sync, unsigned, exchange_xor)
#undef ONEPASS_REDUCE
template <class T>
ONEPASS_HOST unsigned __match_any_sync(unsigned mask, T v, ONEPASS_SITE) {
  uint64_t word = 0;
  __builtin_memcpy(&word, &v, sizeof v);
  return unsigned(onepass_exchange(mask, exchange_match, word, 0, site));
}
ONEPASS_HOST int __syncthreads_count(int p, ONEPASS_SITE) { return int(onepass_barrier_count(site, p != 0)); }
ONEPASS_HOST int __syncthreads_or(int p, ONEPASS_SITE) { return onepass_barrier_count(site, p != 0) != 0; }
ONEPASS_HOST int __syncthreads_and(int p, ONEPASS_SITE) { return onepass_barrier_count(site, p == 0) == 0; }
ONEPASS_HOST void __threadfence_system() { onepass_fence(); }
ONEPASS_HOST void __nanosleep(unsigned) {}
#define __builtin_assume(x) ((void)0)

// ---- what headers of C and CUDA define ----

#define assert(condition) ((condition) ? (void)0 : __trap())
#define printf(...) ((void)0)
#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define CUDART_INF_F (__builtin_inff())
#define CUDART_NAN_F (__builtin_nanf(""))
#define CUDART_INF (__builtin_inf())
#define M_PI 3.14159265358979323846
#define M_SQRT1_2 0.70710678118654752440
#define M_SQRT2 1.41421356237309504880
#define M_2_SQRTPI 1.12837916709551257390
#undef __noinline__
#define __noinline__ __attribute__((noinline))
#define __inline_hint__

extern unsigned char onepass_dynamic_shared[];
template <class T>
ONEPASS_HOST T* onepass_dynamic() {
  return reinterpret_cast<T*>(onepass_dynamic_shared);
}

// ---- what the launcher asks of a kernel's parameters ----

enum OnepassElement : uint32_t { element_other, element_signed, element_unsigned, element_float, element_half, element_bf16, element_bool };
struct OnepassParameter {
  uint32_t pointer, read_only, element, element_bytes, bytes;
};
template <class T> struct onepass_base { typedef T type; };
#define ONEPASS_BASE(type_, name)                           \
  template <> struct onepass_base<name##1> { typedef type_ type; }; \
  template <> struct onepass_base<name##2> { typedef type_ type; }; \
  template <> struct onepass_base<name##3> { typedef type_ type; }; \
  template <> struct onepass_base<name##4> { typedef type_ type; };
ONEPASS_BASE(signed char, char) ONEPASS_BASE(unsigned char, uchar) ONEPASS_BASE(short, short)
ONEPASS_BASE(unsigned short, ushort) ONEPASS_BASE(int, int) ONEPASS_BASE(unsigned, uint)
ONEPASS_BASE(long long, longlong) ONEPASS_BASE(unsigned long long, ulonglong) ONEPASS_BASE(float, float)
ONEPASS_BASE(double, double)
template <> struct onepass_base<__half2> { typedef __half type; };
template <> struct onepass_base<__nv_bfloat162> { typedef __nv_bfloat16 type; };
#undef ONEPASS_BASE
template <class T>
constexpr OnepassElement onepass_element() {
  return std::is_same<T, bool>::value             ? element_bool
         : std::is_same<T, __half>::value         ? element_half
         : std::is_same<T, __nv_bfloat16>::value  ? element_bf16
         : std::is_floating_point<T>::value       ? element_float
         : !std::is_integral<T>::value            ? element_other
         : std::is_signed<T>::value               ? element_signed
                                                  : element_unsigned;
}
template <class P>
constexpr OnepassParameter onepass_parameter() {
  using Pointee = typename std::remove_pointer<P>::type;
  using Whole = typename std::remove_cv<Pointee>::type;
  using Element = typename onepass_base<typename std::conditional<std::is_void<Whole>::value, char, Whole>::type>::type;
  return {std::is_pointer<P>::value, std::is_const<Pointee>::value,
          std::is_void<Whole>::value ? element_other : onepass_element<Element>(), sizeof(Element), sizeof(P)};
}
// Of a count and not of types: a type of the kernel's own would hide the variable from the launcher.
template <unsigned count_>
struct OnepassParameters {
  uint64_t count;
  OnepassParameter each[count_ + 1];
};
template <class... P>
constexpr OnepassParameters<sizeof...(P)> onepass_parameters(void (*)(P...)) {
  return {sizeof...(P), {onepass_parameter<P>()..., OnepassParameter{}}};
}
