// The op_* functions that need a slow path or double arithmetic. Slow paths call the C library lane by lane: exact
// where it matters, and rare.

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
#define ONEPASS_HAS_FMA 1
#else
#define ONEPASS_HAS_FMA 0  // without it the reductions below are not exact, and every call takes the slow path
#endif

ONEPASS_FN bool n_any(ni m) {
  i64 w[ONEPASS_NATIVE / 2], t = 0;
  __builtin_memcpy(w, &m, sizeof w);
  for (int i = 0; i < ONEPASS_NATIVE / 2; i++) t |= w[i];
  return t != 0;
}

ONEPASS_COLD nf n_sin_slow(nf x) {
  for (int i = 0; i < ONEPASS_NATIVE; i++) x[i] = __builtin_sinf(x[i]);
  return x;
}
ONEPASS_COLD nf n_cos_slow(nf x) {
  for (int i = 0; i < ONEPASS_NATIVE; i++) x[i] = __builtin_cosf(x[i]);
  return x;
}
// sin(x + quadrant pi/2). Up to 1e5 the quadrant number has 16 bits, x - n (pi/2) is exact in its first step and the
// three parts of pi/2 hold 74 bits: no cancellation is left. Beyond, and for infinities and NaN, the C library.
ONEPASS_FN nf n_sin_quadrant(nf x, i32 quadrant) {
  nf m = n_fma(x, n_splat(0.636619772f), n_splat(ONEPASS_MAGIC));
  nf n = m - ONEPASS_MAGIC;
  ni q = n_bits(m) + quadrant;
  nf r = n_fma(n, n_splat(-0x1.921fb6p0f), x);
  r = n_fma(n, n_splat(0x1.777a5cp-25f), r);
  r = n_fma(n, n_splat(0x1.ee59dap-50f), r);
  nf z = r * r;
  nf s = n_fma(r * z, n_poly(z, -0.166666672f, 0.00833332911f, -0.000198393085f, 2.71808403e-06f), r);
  nf c = n_fma(z * z, n_poly(z, 0.0416666679f, -0.00138888834f, 2.47994558e-05f, -2.72053938e-07f),
               n_fma(z, n_splat(-0.5f), n_splat(1.0f)));
  nf v = ((q & 1) != 0) ? c : s;
  return n_float(n_bits(v) ^ ((q & 2) << 30));
}
ONEPASS_FN nf n_sin(nf x) {  // 2 units
  if (!ONEPASS_HAS_FMA || __builtin_expect(n_any(~(n_abs(x) <= 1e5f)), 0)) return n_sin_slow(x);
  nf r = n_sin_quadrant(x, 0);
  return (x == 0.0f) ? x : r;  // keeps -0
}
ONEPASS_FN nf n_cos(nf x) {  // 2 units
  if (!ONEPASS_HAS_FMA || __builtin_expect(n_any(~(n_abs(x) <= 1e5f)), 0)) return n_cos_slow(x);
  return n_sin_quadrant(x, 1);
}
ONEPASS_LIFT(op_sin, n_sin)
ONEPASS_LIFT(op_cos, n_cos)
ONEPASS_LIFT(op_sin_h, n_sin)
ONEPASS_LIFT(op_cos_h, n_cos)

// x^y = 2^(y log2 |x|), the product in double: a result of 2^127 multiplies the logarithm's error by 127.
ONEPASS_FN nd n_y_log2(nd m, nd e, nd y) {  // m in [0.707, 1.414); series in ((m - 1) / (m + 1))^2, 4e-12
  nd f = m - 1.0;
  nd s = f / (m + 1.0);
  nd z = s * s;
  nd p = (((0.34074899034999528 * z + 0.41167174534011092) * z + 0.5770836003372416) * z + 0.9617966732662413) * z +
         2.8853900817901419;
  return y * (s * p + e);
}
ONEPASS_FN nf n_pow(nf x, nf y) {  // 3 units
  nf a = n_abs(x);
  n_log_parts parts = n_split_log(a);
  nf m = parts.f + 1.0f, t, lost;
  nf_half mh[2], eh[2], yh[2], th[2], lh[2];
  __builtin_memcpy(mh, &m, sizeof m);
  __builtin_memcpy(eh, &parts.e, sizeof m);
  __builtin_memcpy(yh, &y, sizeof m);
  for (int i = 0; i < 2; i++) {
    nd d = n_y_log2(__builtin_convertvector(mh[i], nd), __builtin_convertvector(eh[i], nd),
                    __builtin_convertvector(yh[i], nd));
    th[i] = __builtin_convertvector(d, nf_half);
    lh[i] = __builtin_convertvector(d - __builtin_convertvector(th[i], nd), nf_half);
  }
  __builtin_memcpy(&t, th, sizeof m);
  __builtin_memcpy(&lost, lh, sizeof m);
  nf inf = n_splat(__builtin_inff()), nan = n_splat(__builtin_nanf(""));
  t = (a == 0.0f) ? -inf * y : ((a == inf) ? inf * y : ((a == 1.0f) ? n_splat(0.0f) : t));
  ni tame = (n_abs(t) < 200.0f) & (a != 1.0f);  // elsewhere the result is 0, 1, infinite or NaN, `lost` perhaps NaN
  nf r = n_exp2(t) * (1.0f + (tame ? lost * 0.693147182f : n_splat(0.0f)));
  nf half = y * 0.5f;
  ni whole = n_round(y) == y;
  ni odd = whole & (n_round(half) != half);
  r = n_float(n_bits(r) | (n_bits(x) & odd & (-0x7fffffff - 1)));
  r = ((x < 0.0f) & (x != -inf) & ~whole) ? nan : r;
  r = ((x != x) | (y != y)) ? nan : r;
  return ((y == 0.0f) | (x == 1.0f)) ? n_splat(1.0f) : r;
}

// C fmod, exact: the quotient is off by one at most while it is below 2^22, and the remainder is then exact.
ONEPASS_COLD nf n_fmod_slow(nf a, nf b) {
  for (int i = 0; i < ONEPASS_NATIVE; i++) a[i] = __builtin_fmodf(a[i], b[i]);
  return a;
}
ONEPASS_FN nf n_fmod(nf a, nf b) {
  nf x = n_abs(a), d = n_abs(b);
  nf q = x / d;
  ni fast = (q < 0x1p22f) & (d < __builtin_inff());
  if (!ONEPASS_HAS_FMA || __builtin_expect(n_any(~fast), 0)) return n_fmod_slow(a, b);
  nf r = n_fma(-n_trunc(q), d, x);
  r = (r < 0.0f) ? r + d : r;
  r = (r >= d) ? r - d : r;
  return n_float(n_bits(r) | (n_bits(a) & (-0x7fffffff - 1)));
}
ONEPASS_FN nf n_remainder(nf a, nf b) {  // the sign of b, as Python's %
  nf r = n_fmod(a, b);
  return ((r != 0.0f) & ((b < 0.0f) ^ (r < 0.0f))) ? r + b : r;
}

#define X(i) r.p[i] = n_pow(a.p[i], b.p[i]);
ONEPASS_FN vf op_pow(vf a, vf b) ONEPASS_EACH(vf, X)
ONEPASS_FN vf op_pow_h(vf a, vf b) ONEPASS_EACH(vf, X)
#undef X
#define X(i) r.p[i] = n_fmod(a.p[i], b.p[i]);
ONEPASS_FN vf op_fmod(vf a, vf b) ONEPASS_EACH(vf, X)
#undef X
#define X(i) r.p[i] = n_remainder(a.p[i], b.p[i]);
ONEPASS_FN vf op_remainder(vf a, vf b) ONEPASS_EACH(vf, X)
#undef X
