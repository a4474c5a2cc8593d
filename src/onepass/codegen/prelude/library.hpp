// How library.inc reads on the host, after vd, 16 doubles: each function is done lane by lane.

struct vd {
  double v[16];
  vd() = default;
  __attribute__((always_inline)) vd(double s) {
    for (int i = 0; i < 16; i++) v[i] = s;
  }
};

ONEPASS_FN float lane(vf a, int i) { return a.p[i / ONEPASS_NATIVE][i % ONEPASS_NATIVE]; }
ONEPASS_FN double lane(vd a, int i) { return a.v[i]; }
ONEPASS_FN void set_lane(vf& a, int i, float x) { a.p[i / ONEPASS_NATIVE][i % ONEPASS_NATIVE] = x; }
ONEPASS_FN void set_lane(vd& a, int i, double x) { a.v[i] = x; }
ONEPASS_FN void set_lane(vl& a, int i, i64 x) { a.v[i] = x; }
ONEPASS_FN void set_lane(vm& a, int i, bool x) { a.p[i / ONEPASS_NATIVE][i % ONEPASS_NATIVE] = -(int)x; }

#define ONEPASS_LANES1(R, NAME, V, S, E)                          \
  ONEPASS_FN R NAME(V a) {                                        \
    R r;                                                          \
    for (int i = 0; i < 16; i++) {                                \
      const S x = lane(a, i);                                     \
      set_lane(r, i, E);                                          \
    }                                                             \
    return r;                                                     \
  }
#define ONEPASS_LANES2(R, NAME, V, S, E)                          \
  ONEPASS_FN R NAME(V a, V b) {                                   \
    R r;                                                          \
    for (int i = 0; i < 16; i++) {                                \
      const S x = lane(a, i), y = lane(b, i);                     \
      set_lane(r, i, E);                                          \
    }                                                             \
    return r;                                                     \
  }
ONEPASS_LANES2(vd, operator+, vd, double, x + y)
ONEPASS_LANES2(vd, operator-, vd, double, x - y)
ONEPASS_LANES2(vd, operator*, vd, double, x * y)
ONEPASS_LANES2(vd, operator/, vd, double, x / y)
ONEPASS_LANES1(vd, operator-, vd, double, -x)
ONEPASS_LANES2(vm, operator<, vd, double, x < y)
ONEPASS_LANES2(vm, operator<=, vd, double, x <= y)
ONEPASS_LANES2(vm, operator>, vd, double, x > y)
ONEPASS_LANES2(vm, operator>=, vd, double, x >= y)
ONEPASS_LANES2(vm, operator==, vd, double, x == y)
ONEPASS_LANES2(vm, operator!=, vd, double, x != y)
ONEPASS_FN vd op_where(vm m, vd a, vd b) {
  vd r;
  for (int i = 0; i < 16; i++) r.v[i] = mask_lane(m, i) ? a.v[i] : b.v[i];
  return r;
}
ONEPASS_FN vd op_fma(vd a, vd b, vd c) {
  vd r;
  for (int i = 0; i < 16; i++) r.v[i] = __builtin_fma(a.v[i], b.v[i], c.v[i]);
  return r;
}

#define LIB(f) __builtin_##f
#define ONEPASS_INLINE static inline __attribute__((noinline))
#define ONEPASS_FLOAT1(NAME, E) ONEPASS_LANES1(vf, NAME, vf, float, E)
#define ONEPASS_FLOAT2(NAME, E) ONEPASS_LANES2(vf, NAME, vf, float, E)
#define ONEPASS_DOUBLE1(NAME, E) ONEPASS_LANES1(vd, NAME, vd, double, E)
#define ONEPASS_DOUBLE2(NAME, E) ONEPASS_LANES2(vd, NAME, vd, double, E)
#define ONEPASS_TRUTH_FLOAT(NAME, E) ONEPASS_LANES1(vm, NAME, vf, float, E)
#define ONEPASS_TRUTH_DOUBLE(NAME, E) ONEPASS_LANES1(vm, NAME, vd, double, E)
#define ONEPASS_INT1(NAME, E) ONEPASS_LANES1(vl, NAME, vl, i64, E)
#define ONEPASS_INT2(NAME, E) ONEPASS_LANES2(vl, NAME, vl, i64, E)

ONEPASS_FN vd to_d(vd a) { return a; }
ONEPASS_LANES1(vd, to_d, vf, float, (double)x)
ONEPASS_LANES1(vd, to_d, vl, i64, (double)x)
ONEPASS_FN vd to_d(vm a) { return to_d(to_float(a)); }
ONEPASS_LANES1(vf, to_f, vd, double, (float)x)
ONEPASS_LANES1(vl, to_i, vd, double, (i64)x)
ONEPASS_FN vm to_b(vd a) { return a != vd(0.0); }

// Horizontal reductions in the order of the fp32 ones: lane i meets lane i + 8, then i + 4, i + 2, i + 1.
#define ONEPASS_FOLD_LANES(S, NAME, V, E)       \
  ONEPASS_FN S NAME(V a) {                      \
    for (int d = 8; d > 0; d /= 2)              \
      for (int i = 0; i < d; i++) {             \
        const S x = a.v[i], y = a.v[i + d];     \
        a.v[i] = E;                             \
      }                                         \
    return a.v[0];                              \
  }
ONEPASS_FOLD_LANES(double, hsum, vd, x + y)
ONEPASS_FOLD_LANES(double, hprod, vd, x * y)
ONEPASS_FOLD_LANES(double, hmax, vd, (x != x || x > y ? x : y))
ONEPASS_FOLD_LANES(double, hmin, vd, (x != x || x < y ? x : y))
ONEPASS_FOLD_LANES(i64, hsum, vl, (i64)((unsigned long long)x + (unsigned long long)y))
ONEPASS_FOLD_LANES(i64, hprod, vl, (i64)((unsigned long long)x * (unsigned long long)y))
ONEPASS_FOLD_LANES(i64, hmax, vl, (x > y ? x : y))
ONEPASS_FOLD_LANES(i64, hmin, vl, (x < y ? x : y))

ONEPASS_FN vd load_double_n(const double* p, i64 n) {
  vd r(0.0);
  for (i64 i = 0; i < n; i++) r.v[i] = p[i];
  return r;
}
ONEPASS_FN vd load_double(const double* p) { return load_double_n(p, 16); }
ONEPASS_FN vd load_double_sn(const double* p, i64 step, i64 n) {
  vd r(0.0);
  for (i64 i = 0; i < n; i++) r.v[i] = p[i * step];
  return r;
}
ONEPASS_FN vd load_double_s(const double* p, i64 step) { return load_double_sn(p, step, 16); }
ONEPASS_FN vd load_double_1(const double* p) { return vd(*p); }
ONEPASS_FN void store_n(double* p, vd x, i64 n) {
  for (i64 i = 0; i < n; i++) p[i] = x.v[i];
}
ONEPASS_FN void store(double* p, vd x) { store_n(p, x, 16); }
ONEPASS_FN void store_sn(double* p, i64 step, vd x, i64 n) {
  for (i64 i = 0; i < n; i++) p[i * step] = x.v[i];
}
ONEPASS_FN void store_s(double* p, i64 step, vd x) { store_sn(p, step, x, 16); }
