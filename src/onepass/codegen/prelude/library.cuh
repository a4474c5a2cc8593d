// How library.inc reads on a GPU: each function is an overload for one element.
#ifndef LIB  // the emulator has its own
#define LIB(f) f
#endif
#define ONEPASS_FLOAT1(NAME, E) ONEPASS_INLINE float NAME(float x) { return E; }
#define ONEPASS_FLOAT2(NAME, E) ONEPASS_INLINE float NAME(float x, float y) { return E; }
#define ONEPASS_DOUBLE1(NAME, E) ONEPASS_INLINE double NAME(double x) { return E; }
#define ONEPASS_DOUBLE2(NAME, E) ONEPASS_INLINE double NAME(double x, double y) { return E; }
#define ONEPASS_TRUTH_FLOAT(NAME, E) ONEPASS_INLINE bool NAME(float x) { return E; }
#define ONEPASS_TRUTH_DOUBLE(NAME, E) ONEPASS_INLINE bool NAME(double x) { return E; }
#define ONEPASS_INT1(NAME, E) ONEPASS_INLINE i64 NAME(i64 x) { return E; }
#define ONEPASS_INT2(NAME, E) ONEPASS_INLINE i64 NAME(i64 x, i64 y) { return E; }
ONEPASS_INLINE double op_fma(double a, double b, double c) { return LIB(fma)(a, b, c); }
ONEPASS_INLINE double op_where(bool m, double a, double b) { return m ? a : b; }
ONEPASS_INLINE i64 op_max(i64 a, i64 b) { return a > b ? a : b; }
ONEPASS_INLINE i64 op_min(i64 a, i64 b) { return a < b ? a : b; }
