// Sixteen lanes on every machine: `vf` is 16 floats, `vm` a mask of 16 ints (0 or -1). A lane count that did not
// depend on the machine keeps the reduction tree, hence the bits, the same on AVX-512, AVX2, SSE and NEON.
//
// Both are structs of native registers and not one 64-byte vector: GCC keeps a vector wider than the machine's
// registers in memory and compares it lane by lane (measured with GCC 12 on AVX2: about 10 times slower).
// There is no #include: parsing the standard headers would take longer than compiling the kernel.

#define ONEPASS_FN static inline __attribute__((always_inline))
#define ONEPASS_COLD static __attribute__((noinline, cold))
#define INFINITY_F __builtin_inff()
#define LEAST_I64 (-0x7fffffffffffffffll - 1)
#define GREATEST_I64 0x7fffffffffffffffll
#define NAN_F __builtin_nanf("")

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define ONEPASS_NATIVE 16
#define ONEPASS_PARTS(X) X(0)
#elif defined(__AVX2__) && defined(__FMA__)
#define ONEPASS_NATIVE 8
#define ONEPASS_PARTS(X) X(0) X(1)
#else
#define ONEPASS_NATIVE 4
#define ONEPASS_PARTS(X) X(0) X(1) X(2) X(3)
#endif
#define ONEPASS_PART_COUNT (16 / ONEPASS_NATIVE)

typedef long long i64;
typedef int i32;
typedef short i16;
typedef signed char i8;
typedef unsigned char u8;
typedef bool b8;  // a bool tensor's byte, 0 or 1; a type of its own so that it overloads apart from u8

typedef float nf __attribute__((vector_size(ONEPASS_NATIVE * 4)));      // the machine's own register of floats
typedef i32 ni __attribute__((vector_size(ONEPASS_NATIVE * 4)));
typedef unsigned nu __attribute__((vector_size(ONEPASS_NATIVE * 4)));
typedef unsigned short nh __attribute__((vector_size(ONEPASS_NATIVE * 2)));  // as many 16-bit values
typedef float nf_half __attribute__((vector_size(ONEPASS_NATIVE * 2)));      // half as many floats
typedef double nd __attribute__((vector_size(ONEPASS_NATIVE * 4)));          // half as many doubles

ONEPASS_FN nf n_splat(float s) { return s - (nf){}; }  // s - 0 is s for every s, NaN and -0 too
ONEPASS_FN ni n_splat_i(i32 s) { return s - (ni){}; }
ONEPASS_FN ni n_bits(nf x) { return (ni)x; }
ONEPASS_FN nf n_float(ni x) { return (nf)x; }

// Fused multiply-add is written where it is wanted and nowhere else (see hostcc: -ffp-contract=off).
ONEPASS_FN nf n_fma(nf a, nf b, nf c) {
#if ONEPASS_NATIVE == 16 && !defined(__clang__)
  return __builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4);
#elif ONEPASS_NATIVE == 8 && !defined(__clang__)
  return __builtin_ia32_vfmaddps256(a, b, c);
#elif defined(__clang__) && __has_builtin(__builtin_elementwise_fma)
  return __builtin_elementwise_fma(a, b, c);
#elif defined(__clang__)
#pragma STDC FP_CONTRACT ON
  return a * b + c;
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
  nf r;
  for (int i = 0; i < ONEPASS_NATIVE; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
#else
  return a * b + c;
#endif
}

ONEPASS_FN nf n_sqrt(nf a) {
#if ONEPASS_NATIVE == 16 && !defined(__clang__)
  return __builtin_ia32_sqrtps512_mask(a, a, (unsigned short)-1, 4);
#elif ONEPASS_NATIVE == 8
  return __builtin_ia32_sqrtps256(a);
#else
  nf r;
  for (int i = 0; i < ONEPASS_NATIVE; i++) r[i] = __builtin_sqrtf(a[i]);
  return r;
#endif
}

// The later operand when either is NaN: one instruction on x86, which GCC does not find by itself.
ONEPASS_FN nf n_max(nf a, nf b) {
#if ONEPASS_NATIVE == 16 && !defined(__clang__)
  return __builtin_ia32_maxps512_mask(a, b, a, (unsigned short)-1, 4);
#elif ONEPASS_NATIVE == 8 && !defined(__clang__)
  return __builtin_ia32_maxps256(a, b);
#else
  return a > b ? a : b;
#endif
}
ONEPASS_FN nf n_min(nf a, nf b) {
#if ONEPASS_NATIVE == 16 && !defined(__clang__)
  return __builtin_ia32_minps512_mask(a, b, a, (unsigned short)-1, 4);
#elif ONEPASS_NATIVE == 8 && !defined(__clang__)
  return __builtin_ia32_minps256(a, b);
#else
  return a < b ? a : b;
#endif
}

struct vm {
  ni p[ONEPASS_PART_COUNT];
};

struct vf {
  nf p[ONEPASS_PART_COUNT];
  vf() = default;
  __attribute__((always_inline)) vf(float s) {
#define X(i) p[i] = n_splat(s);
    ONEPASS_PARTS(X)
#undef X
  }
};

#define ONEPASS_EACH(R, EXPR)      \
  {                                \
    R r;                           \
    ONEPASS_PARTS(EXPR) return r;  \
  }

#define X(i) r.p[i] = a.p[i] + b.p[i];
ONEPASS_FN vf operator+(vf a, vf b) ONEPASS_EACH(vf, X)
#undef X
#define X(i) r.p[i] = a.p[i] - b.p[i];
ONEPASS_FN vf operator-(vf a, vf b) ONEPASS_EACH(vf, X)
#undef X
#define X(i) r.p[i] = a.p[i] * b.p[i];
ONEPASS_FN vf operator*(vf a, vf b) ONEPASS_EACH(vf, X)
#undef X
#define X(i) r.p[i] = a.p[i] / b.p[i];
ONEPASS_FN vf operator/(vf a, vf b) ONEPASS_EACH(vf, X)
#undef X
#define X(i) r.p[i] = -a.p[i];
ONEPASS_FN vf operator-(vf a) ONEPASS_EACH(vf, X)
#undef X
#define X(i) r.p[i] = a.p[i] < b.p[i];
ONEPASS_FN vm operator<(vf a, vf b) ONEPASS_EACH(vm, X)
#undef X
#define X(i) r.p[i] = a.p[i] <= b.p[i];
ONEPASS_FN vm operator<=(vf a, vf b) ONEPASS_EACH(vm, X)
#undef X
#define X(i) r.p[i] = a.p[i] > b.p[i];
ONEPASS_FN vm operator>(vf a, vf b) ONEPASS_EACH(vm, X)
#undef X
#define X(i) r.p[i] = a.p[i] >= b.p[i];
ONEPASS_FN vm operator>=(vf a, vf b) ONEPASS_EACH(vm, X)
#undef X
#define X(i) r.p[i] = a.p[i] == b.p[i];
ONEPASS_FN vm operator==(vf a, vf b) ONEPASS_EACH(vm, X)
#undef X
#define X(i) r.p[i] = a.p[i] != b.p[i];
ONEPASS_FN vm operator!=(vf a, vf b) ONEPASS_EACH(vm, X)
#undef X
#define X(i) r.p[i] = a.p[i] & b.p[i];
ONEPASS_FN vm operator&(vm a, vm b) ONEPASS_EACH(vm, X)
#undef X
#define X(i) r.p[i] = a.p[i] | b.p[i];
ONEPASS_FN vm operator|(vm a, vm b) ONEPASS_EACH(vm, X)
#undef X
#define X(i) r.p[i] = a.p[i] ^ b.p[i];
ONEPASS_FN vm operator^(vm a, vm b) ONEPASS_EACH(vm, X)
#undef X
#define X(i) r.p[i] = ~a.p[i];
ONEPASS_FN vm operator~(vm a) ONEPASS_EACH(vm, X)
ONEPASS_FN vm operator!(vm a) ONEPASS_EACH(vm, X)
#undef X
ONEPASS_FN vm operator&&(vm a, vm b) { return a & b; }
ONEPASS_FN vm operator||(vm a, vm b) { return a | b; }
ONEPASS_FN vm operator==(vm a, vm b) { return ~(a ^ b); }
ONEPASS_FN vm operator!=(vm a, vm b) { return a ^ b; }
ONEPASS_FN vm operator<(vm a, vm b) { return ~a & b; }  // false is less than true
ONEPASS_FN vm operator<=(vm a, vm b) { return ~a | b; }
ONEPASS_FN vm operator>(vm a, vm b) { return a & ~b; }
ONEPASS_FN vm operator>=(vm a, vm b) { return a | ~b; }

#define X(i) r.p[i] = m.p[i] ? a.p[i] : b.p[i];
ONEPASS_FN vf op_where(vm m, vf a, vf b) ONEPASS_EACH(vf, X)
ONEPASS_FN vm op_where(vm m, vm a, vm b) ONEPASS_EACH(vm, X)
#undef X
#define X(i) r.p[i] = n_fma(a.p[i], b.p[i], c.p[i]);
ONEPASS_FN vf op_fma(vf a, vf b, vf c) ONEPASS_EACH(vf, X)  // a * b + c, rounded once
#undef X
#define X(i) r.p[i] = n_sqrt(a.p[i]);
ONEPASS_FN vf op_sqrt(vf a) ONEPASS_EACH(vf, X)  // correctly rounded
#undef X
#define X(i) r.p[i] = n_float(n_bits(a.p[i]) & 0x7fffffff);
ONEPASS_FN vf op_abs(vf a) ONEPASS_EACH(vf, X)
#undef X
ONEPASS_FN vf op_neg(vf a) { return -a; }
ONEPASS_FN vm op_isnan(vf a) { return a != a; }

// NaN if either is NaN, as torch.maximum; the first operand of equals.
#define X(i) r.p[i] = (a.p[i] != a.p[i]) ? a.p[i] : n_max(a.p[i], b.p[i]);
ONEPASS_FN vf op_max(vf a, vf b) ONEPASS_EACH(vf, X)
#undef X
#define X(i) r.p[i] = (a.p[i] != a.p[i]) ? a.p[i] : n_min(a.p[i], b.p[i]);
ONEPASS_FN vf op_min(vf a, vf b) ONEPASS_EACH(vf, X)
#undef X

// The later operand when either is NaN: one instruction. `fast_max(bound, x)` lets a NaN in x pass.
#define X(i) r.p[i] = n_max(a.p[i], b.p[i]);
ONEPASS_FN vf fast_max(vf a, vf b) ONEPASS_EACH(vf, X)
#undef X
#define X(i) r.p[i] = n_min(a.p[i], b.p[i]);
ONEPASS_FN vf fast_min(vf a, vf b) ONEPASS_EACH(vf, X)
#undef X
ONEPASS_FN vf op_relu(vf a) { return fast_max(0.0f, a); }

#define X(i) r.p[i] = n_float((n_bits(a.p[i]) & 0x7fffffff) | (n_bits(s.p[i]) & n_splat_i(-0x7fffffff - 1)));
ONEPASS_FN vf copy_sign(vf a, vf s) ONEPASS_EACH(vf, X)
#undef X

// A mask as numbers (1.0 or 0.0), numbers as a mask (NaN is true, as in C), and the first n lanes.
#define X(i) r.p[i] = n_float(n_bits(n_splat(1.0f)) & m.p[i]);
ONEPASS_FN vf to_float(vm m) ONEPASS_EACH(vf, X)
#undef X
ONEPASS_FN vm to_mask(vf a) { return a != vf(0.0f); }
ONEPASS_FN vf op_sign(vf a) {  // sign(NaN) is 0, as torch
  return to_float(a > vf(0.0f)) - to_float(a < vf(0.0f));
}

ONEPASS_FN vf lane_index() {
  vf r;
  for (int i = 0; i < 16; i++) r.p[i / ONEPASS_NATIVE][i % ONEPASS_NATIVE] = (float)i;
  return r;
}
ONEPASS_FN vm lanes(i64 n) { return lane_index() < vf((float)n); }

// Horizontal reductions: lane i meets lane i + 8, then i + 4, i + 2, i + 1, on every machine.
#ifdef __clang__
#define ONEPASS_SHUFFLE(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define ONEPASS_SHUFFLE(v, ...) __builtin_shuffle(v, (ni){__VA_ARGS__})
#endif
#if ONEPASS_NATIVE == 16
#define ONEPASS_ROTATE_8(v) ONEPASS_SHUFFLE(v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define ONEPASS_ROTATE_4(v) ONEPASS_SHUFFLE(v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define ONEPASS_ROTATE_2(v) ONEPASS_SHUFFLE(v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define ONEPASS_ROTATE_1(v) ONEPASS_SHUFFLE(v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif ONEPASS_NATIVE == 8
#define ONEPASS_ROTATE_4(v) ONEPASS_SHUFFLE(v, 4, 5, 6, 7, 0, 1, 2, 3)
#define ONEPASS_ROTATE_2(v) ONEPASS_SHUFFLE(v, 2, 3, 0, 1, 6, 7, 4, 5)
#define ONEPASS_ROTATE_1(v) ONEPASS_SHUFFLE(v, 1, 0, 3, 2, 5, 4, 7, 6)
#else
#define ONEPASS_ROTATE_2(v) ONEPASS_SHUFFLE(v, 2, 3, 0, 1)
#define ONEPASS_ROTATE_1(v) ONEPASS_SHUFFLE(v, 1, 0, 3, 2)
#endif

#if ONEPASS_NATIVE == 16
#define ONEPASS_FOLD(OP, a)                        \
  nf v = a.p[0];                                   \
  v = OP(v, ONEPASS_ROTATE_8(v));                  \
  v = OP(v, ONEPASS_ROTATE_4(v));
#elif ONEPASS_NATIVE == 8
#define ONEPASS_FOLD(OP, a)                        \
  nf v = OP(a.p[0], a.p[1]);                       \
  v = OP(v, ONEPASS_ROTATE_4(v));
#else
#define ONEPASS_FOLD(OP, a) nf v = OP(OP(a.p[0], a.p[2]), OP(a.p[1], a.p[3]));
#endif
#define ONEPASS_HORIZONTAL(OP, a)                  \
  {                                                \
    ONEPASS_FOLD(OP, a)                            \
    v = OP(v, ONEPASS_ROTATE_2(v));                \
    v = OP(v, ONEPASS_ROTATE_1(v));                \
    return v[0];                                   \
  }
ONEPASS_FN nf n_add(nf a, nf b) { return a + b; }
ONEPASS_FN nf n_nan_max(nf a, nf b) { return (a != a) ? a : n_max(a, b); }
ONEPASS_FN nf n_nan_min(nf a, nf b) { return (a != a) ? a : n_min(a, b); }
ONEPASS_FN nf n_mul(nf a, nf b) { return a * b; }

// A vector's running total, in the order of its elements; `total` is what stands before, and then what stands behind.
#define ONEPASS_RUNNING(name, OP)                                          \
  template <class V, class S> ONEPASS_FN V running_##name(V v, S& total) { \
    S t[sizeof(V) / sizeof(S)];                                            \
    __builtin_memcpy(t, &v, sizeof(V));                                    \
    for (S& x : t) x = total = total OP x;                                 \
    __builtin_memcpy(&v, t, sizeof(V));                                    \
    return v;                                                              \
  }
ONEPASS_RUNNING(sum, +)
ONEPASS_RUNNING(prod, *)

ONEPASS_FN float hsum(vf a) ONEPASS_HORIZONTAL(n_add, a)
ONEPASS_FN float hprod(vf a) ONEPASS_HORIZONTAL(n_mul, a)
ONEPASS_FN float hmax(vf a) ONEPASS_HORIZONTAL(n_nan_max, a)
ONEPASS_FN float hmin(vf a) ONEPASS_HORIZONTAL(n_nan_min, a)
