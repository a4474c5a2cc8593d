// The op_* functions on 16 lanes. An error is the largest relative error against float64 over the whole domain, in
// units of 2^-24 (one unit: half an ulp of fp32 at worst); tests/cpu/test_prelude_math.py holds each to what it says.
// A form ending in `_h` is short and good enough for a bf16 or fp16 result: at most 2e-5 unless it says otherwise.
// Coefficients are near-minimax fits (reweighted least squares in float64, then rounded to fp32).
// "Flushes": a result below 2^-125 becomes 0, which an fp32 sum or a 16-bit store does not see.

ONEPASS_FN nf n_poly(nf, float c0) { return n_splat(c0); }
template <class... C>
ONEPASS_FN nf n_poly(nf x, float c0, C... rest) {  // c0 + x * (c1 + x * ...)
  return n_fma(n_poly(x, rest...), x, n_splat(c0));
}

ONEPASS_FN nf n_abs(nf x) { return n_float(n_bits(x) & 0x7fffffff); }

// Adding 1.5 * 2^23 rounds to the nearest integer, which then stands in the low bits of the sum.
#define ONEPASS_MAGIC 0x1.8p23f
#define ONEPASS_MAGIC_BITS 0x4b400000

// 2^t, flushes. 2^(n-1) times twice the polynomial, so that 2^127 .. 2^128 stay in range; t <= -126 gives 0 and
// t >= 128 infinity; a NaN passes both bounds.
ONEPASS_FN nf n_scale_2(nf twice, nf magic_n) { return twice * n_float((n_bits(magic_n) + 126) << 23); }
ONEPASS_FN nf n_exp2_flush(nf t) {  // 2 units
  t = n_max(n_splat(-126.0f), n_min(n_splat(128.0f), t));
  nf m = t + ONEPASS_MAGIC;
  nf r = t - (m - ONEPASS_MAGIC);
  return n_scale_2(n_poly(r, 2.0f, 2 * 0.693147182f, 2 * 0.240226477f, 2 * 0.0555033237f, 2 * 0.00961843692f,
                          2 * 0.0013398875f, 2 * 0.00015353362f), m);
}
ONEPASS_FN nf n_exp2_poly_h(nf r) {
  return n_poly(r, 2.0f, 2 * 0.693124175f, 2 * 0.240240991f, 2 * 0.0559064262f, 2 * 0.00958285294f);
}
ONEPASS_FN nf n_exp2_flush_h(nf t) {  // 2.9e-6
  t = n_max(n_splat(-126.0f), n_min(n_splat(128.0f), t));
  nf m = t + ONEPASS_MAGIC;
  nf r = t - (m - ONEPASS_MAGIC);
  return n_scale_2(n_exp2_poly_h(r), m);
}

// e^x = 2^n e^r, r = x - n ln 2 in two steps; the first constant has 10 bits, so that n times it is exact.
#define ONEPASS_LN2_HI 0.693359375f
#define ONEPASS_LN2_LO -2.12194440e-4f
#define ONEPASS_LOG2E 1.44269504f
ONEPASS_FN nf n_exp_reduced(nf x, nf m) {
  nf n = m - ONEPASS_MAGIC;
  return n_fma(n, n_splat(-ONEPASS_LN2_LO), n_fma(n, n_splat(-ONEPASS_LN2_HI), x));
}
ONEPASS_FN nf n_exp_poly(nf r) {
  return n_poly(r, 2.0f, 2.0f, 2 * 0.49999994f, 2 * 0.166665211f, 2 * 0.041668389f, 2 * 0.00836871658f,
                2 * 0.00138145988f);
}
ONEPASS_FN nf n_exp_flush(nf x) {  // 2 units
  x = n_max(n_splat(-87.6f), n_min(n_splat(88.73f), x));
  nf m = n_fma(x, n_splat(ONEPASS_LOG2E), n_splat(ONEPASS_MAGIC));
  return n_scale_2(n_exp_poly(n_exp_reduced(x, m)), m);
}
ONEPASS_FN nf n_exp_flush_h(nf x) {  // 5.4e-6
  x = n_max(n_splat(-87.6f), n_min(n_splat(88.73f), x));
  nf m = n_fma(x, n_splat(ONEPASS_LOG2E), n_splat(ONEPASS_MAGIC));
  return n_scale_2(n_poly(n_exp_reduced(x, m), 2.0f, 2.0f, 2 * 0.5000512f, 2 * 0.16753532f, 2 * 0.0412776694f), m);
}

// Full range: the power of two is applied in two halves, so that a denormal result is rounded once.
ONEPASS_FN nf n_scale_full(nf twice, nf m) {
  ni n = n_bits(m) - ONEPASS_MAGIC_BITS;
  ni half = n >> 1;
  return twice * n_float((half + 126) << 23) * n_float((n - half + 127) << 23);
}
ONEPASS_FN nf n_exp(nf x) {  // 2 units; denormal results to half their ulp
  x = n_max(n_splat(-104.5f), n_min(n_splat(88.8f), x));
  nf m = n_fma(x, n_splat(ONEPASS_LOG2E), n_splat(ONEPASS_MAGIC));
  return n_scale_full(n_exp_poly(n_exp_reduced(x, m)), m);
}
ONEPASS_FN nf n_exp2(nf t) {
  t = n_max(n_splat(-151.0f), n_min(n_splat(128.5f), t));
  nf m = t + ONEPASS_MAGIC;
  nf r = t - (m - ONEPASS_MAGIC);
  return n_scale_full(n_poly(r, 2.0f, 2 * 0.693147182f, 2 * 0.240226477f, 2 * 0.0555033237f, 2 * 0.00961843692f,
                             2 * 0.0013398875f, 2 * 0.00015353362f), m);
}
ONEPASS_FN nf n_signed(nf x, nf s) {  // |x| with the sign of s, of -0 too
  ni sign = n_splat_i(-0x7fffffff - 1);
  return n_float((n_bits(x) & ~sign) | (n_bits(s) & sign));
}
ONEPASS_FN nf n_expm1(nf x) {  // 3 units: 2^n (e^r - 1) + (2^n - 1), at half scale
  nf given = x;
  x = n_max(n_splat(-17.4f), n_min(n_splat(88.8f), x));
  nf m = n_fma(x, n_splat(ONEPASS_LOG2E), n_splat(ONEPASS_MAGIC));
  nf r = n_exp_reduced(x, m);
  nf q = n_poly(r, 0.49999997f, 0.166665435f, 0.0416672006f, 0.00836652052f, 0.00138825213f);
  nf e = n_fma(r * r, q, r);
  nf s = n_float((n_bits(m) + 126) << 23);
  nf h = n_fma(s, e, s - 0.5f);
  return n_signed(h + h, given);
}

// log(u + c) for a correction c far smaller than u: u = 2^e m, m in [0.707, 1.414), f = m - 1.
struct n_log_parts {
  nf f, e;
};
ONEPASS_FN n_log_parts n_split_log(nf u) {
  ni tiny = u < 0x1p-126f;
  u = tiny ? u * 0x1p23f : u;
  ni e = (n_bits(u) - 0x3f3504f3) >> 23;
  nf f = n_float(n_bits(u) - (e << 23)) - 1.0f;
  return {f, __builtin_convertvector(e - (tiny & 23), nf)};
}
ONEPASS_FN nf n_log1p_cubic(nf f) {  // (log(1 + f) - f + f^2 / 2) / f^3
  return n_poly(f, 0.333333313f, -0.250008196f, 0.200012267f, -0.166233569f, 0.142017588f, -0.131601825f,
                0.12761575f, -0.0763449296f);
}
ONEPASS_FN nf n_log_special(nf u, nf r) {  // u = 0: -inf, below: NaN, inf: inf
  nf inf = n_splat(__builtin_inff());
  r = (u > 0.0f) ? r : ((u == 0.0f) ? -inf : n_splat(__builtin_nanf("")));
  return (u == inf) ? inf : r;
}
ONEPASS_FN nf n_log_sum(n_log_parts s) {
  nf f2 = s.f * s.f;
  nf r = n_fma(f2 * s.f, n_log1p_cubic(s.f), s.e * ONEPASS_LN2_LO);
  r = n_fma(f2, n_splat(-0.5f), r);
  return n_fma(s.e, n_splat(ONEPASS_LN2_HI), s.f + r);
}
ONEPASS_FN nf n_log(nf x) { return n_log_special(x, n_log_sum(n_split_log(x))); }  // 2 units
ONEPASS_FN nf n_log2(nf x) {  // 3 units
  n_log_parts s = n_split_log(x);
  nf f2 = s.f * s.f;
  nf y = s.f + n_fma(f2, n_splat(-0.5f), f2 * s.f * n_log1p_cubic(s.f));
  return n_log_special(x, n_fma(y, n_splat(ONEPASS_LOG2E), s.e));
}
ONEPASS_FN nf n_log1p(nf x) {  // 3 units: log of u = fl(1 + x), with what the rounding lost put back into f
  nf u = 1.0f + x;
  nf c = (x > 1.0f) ? 1.0f - (u - x) : x - (u - 1.0f);
  n_log_parts s = n_split_log(u);
  ni shift = 127 - __builtin_convertvector(s.e, ni);
  s.f += c * n_float(((shift > 0) ? shift : (ni){}) << 23);
  return n_signed(n_log_special(u, n_log_sum(s)), x);
}

// tanh and erf as x P(x^2) / Q(x^2), constant past the point where fp32 cannot tell the result from 1, and never past
// 1 (sqrt(1 - tanh^2) must not be NaN).
ONEPASS_FN nf n_clamp_1(nf x) { return n_max(n_splat(-1.0f), n_min(n_splat(1.0f), x)); }
ONEPASS_FN nf n_tanh(nf x) {  // 4 units
  x = n_max(n_splat(-9.02f), n_min(n_splat(9.02f), x));
  nf z = x * x;
  nf p = n_poly(z, 1.0f, 0.130828261f, 0.00310263201f, 1.11403697e-05f, -2.01680397e-08f, 5.25000599e-11f,
                -8.41579207e-14f);
  nf q = n_poly(z, 1.0f, 0.464161545f, 0.0244899113f, 0.000254421204f);
  return n_clamp_1(x * p / q);
}
ONEPASS_FN nf n_tanh_h(nf x) {  // 6.4e-6
  x = n_max(n_splat(-9.02f), n_min(n_splat(9.02f), x));
  nf z = x * x;
  nf p = n_poly(z, 0.99999398f, 0.120544516f, 0.00206359616f, 3.0114611e-06f);
  return n_clamp_1(x * p / n_poly(z, 1.0f, 0.453839451f, 0.0200520847f, 0.000120069904f));
}
ONEPASS_FN nf n_erf(nf x) {  // 4 units
  x = n_max(n_splat(-3.95f), n_min(n_splat(3.95f), x));
  nf z = x * x;
  nf p = n_poly(z, 1.12837923f, 0.185168803f, 0.0542747639f, 0.00384336314f, 0.000377937831f, 4.64046798e-06f,
                -1.29672175e-08f);
  nf q = n_poly(z, 1.0f, 0.497434974f, 0.113910921f, 0.0154437078f, 0.00130406232f, 6.26928158e-05f);
  return n_clamp_1(x * p / q);
}
ONEPASS_FN nf n_erf_h(nf x) {  // 3.2e-6
  x = n_max(n_splat(-3.95f), n_min(n_splat(3.95f), x));
  nf z = x * x;
  nf p = n_poly(z, 1.12838209f, 0.121350959f, 0.0397637412f, -0.000528267294f, -2.63198799e-05f);
  return n_clamp_1(x * p / n_poly(z, 1.0f, 0.440936029f, 0.0820029154f, 0.00689767022f, -0.000302993227f));
}

// sigmoid and its kin divide once and stay right at the ends: e^-x overflows to infinity and the quotient is 0.
ONEPASS_FN nf n_sigmoid(nf x) { return 1.0f / (1.0f + n_exp_flush(-x)); }
ONEPASS_FN nf n_sigmoid_h(nf x) { return 1.0f / (1.0f + n_exp2_flush_h(x * -ONEPASS_LOG2E)); }
ONEPASS_FN nf n_silu(nf x) { return x / (1.0f + n_exp_flush(-x)); }
ONEPASS_FN nf n_silu_h(nf x) { return x / (1.0f + n_exp2_flush_h(x * -ONEPASS_LOG2E)); }

// GELU, tanh form: 0.5 x (1 + tanh u) = x / (1 + e^(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3). The quotient keeps the
// relative error in the negative tail, where 1 + tanh u cancels.
#define ONEPASS_GELU_A (-2.0f * 0.797884561f * 1.44269504f)
#define ONEPASS_GELU_B (ONEPASS_GELU_A * 0.044715f)
ONEPASS_FN nf n_gelu_tanh_exponent(nf x) {
  return x * n_fma(x * x, n_splat(ONEPASS_GELU_B), n_splat(ONEPASS_GELU_A));
}
ONEPASS_FN nf n_gelu_tanh(nf x) { return x / (1.0f + n_exp2_flush(n_gelu_tanh_exponent(x))); }
ONEPASS_FN nf n_gelu_tanh_h(nf x) { return x / (1.0f + n_exp2_flush_h(n_gelu_tanh_exponent(x))); }

// GELU, erf form: max(x, 0) - |x| Phi(-|x|), with Phi(-a) = e^(-a^2/2) g(a) and g a quotient of polynomials. The
// exponential has no clamps, a has: at 13.22 the power of two is 0, and beyond is what PyTorch gives for infinities.
// The chain of instructions that wait for each other sets the pace: g, the division with it, is worked out beside the
// exponential, and takes the power of two (Zen 3: 34 cycles as e * p / q, 24 like this; 2026-11-30).
#define ONEPASS_GELU_END 13.22f
ONEPASS_FN nf n_gelu_sum(nf x, nf g, nf e) { return n_fma(-g, e, n_max(n_splat(0.0f), x)); }
ONEPASS_FN nf n_gelu_erf(nf x) {
  nf w = n_abs(n_min(n_splat(ONEPASS_GELU_END), x));
  nf a = n_min(n_splat(ONEPASS_GELU_END), w);
  nf h = a * -0.5f;
  nf m = n_fma(a * (-0.5f * ONEPASS_LOG2E), a, n_splat(ONEPASS_MAGIC));
  nf n = m - ONEPASS_MAGIC;  // rounding a^2 first would cost the tail 100 units
  nf r = n_fma(n, n_splat(-ONEPASS_LN2_LO), n_fma(h, a, n * -ONEPASS_LN2_HI));
  nf p = n_poly(a, 0.5f, 0.438295007f, 0.183235154f, 0.0406332277f, 0.00411630701f);
  nf q = n_poly(a, 1.0f, 1.67447495f, 1.20250332f, 0.46947068f, 0.101858839f, 0.0103179319f);
  return n_gelu_sum(x, n_scale_2(w * (p / q), m), n_exp_poly(r));
}
ONEPASS_FN nf n_gelu_erf_h(nf x) {
  nf w = n_abs(n_min(n_splat(ONEPASS_GELU_END), x));
  nf a = n_min(n_splat(ONEPASS_GELU_END), w);
  nf h = a * (-0.5f * ONEPASS_LOG2E);
  nf m = n_fma(h, a, n_splat(ONEPASS_MAGIC));
  nf r = n_fma(h, a, ONEPASS_MAGIC - m);
  nf p = n_poly(a, 0.499999791f, 0.362875372f, 0.120051846f, 0.0171712302f);
  nf q = n_poly(a, 1.0f, 1.5236156f, 0.955928504f, 0.300730616f, 0.0430466123f);
  return n_gelu_sum(x, n_scale_2(w * (p / q), m), n_exp2_poly_h(r));
}
ONEPASS_FN nf n_log1p_unit(nf x) {  // for 0 <= x <= 1, where nothing is special
  nf u = 1.0f + x;
  nf c = x - (u - 1.0f);
  ni big = u > 1.41421354f;
  nf f = (big ? u * 0.5f : u) - 1.0f;
  return n_log_sum({f + (big ? c * 0.5f : c), big ? n_splat(1.0f) : n_splat(0.0f)});
}
ONEPASS_FN nf n_softplus(nf x) {  // 3 units, flushes
  return n_max(n_splat(0.0f), x) + n_log1p_unit(n_exp_flush(-n_abs(x)));
}
#define ONEPASS_LIFT(OP, NAME) \
  ONEPASS_FN vf OP(vf a) {     \
    vf r;                      \
    ONEPASS_LIFT_PARTS(NAME)   \
    return r;                  \
  }
#if ONEPASS_NATIVE == 16
#define ONEPASS_LIFT_PARTS(F) r.p[0] = F(a.p[0]);
#elif ONEPASS_NATIVE == 8
#define ONEPASS_LIFT_PARTS(F) r.p[0] = F(a.p[0]), r.p[1] = F(a.p[1]);
#else
#define ONEPASS_LIFT_PARTS(F) \
  r.p[0] = F(a.p[0]), r.p[1] = F(a.p[1]), r.p[2] = F(a.p[2]), r.p[3] = F(a.p[3]);
#endif
ONEPASS_LIFT(op_exp, n_exp)
ONEPASS_LIFT(op_exp2, n_exp2)
ONEPASS_LIFT(op_expm1, n_expm1)
ONEPASS_LIFT(op_log, n_log)
ONEPASS_LIFT(op_log2, n_log2)
ONEPASS_LIFT(op_log1p, n_log1p)
ONEPASS_LIFT(op_tanh, n_tanh)
ONEPASS_LIFT(op_erf, n_erf)
ONEPASS_LIFT(op_sigmoid, n_sigmoid)
ONEPASS_LIFT(op_silu, n_silu)
ONEPASS_LIFT(op_gelu_tanh, n_gelu_tanh)
ONEPASS_LIFT(op_gelu_erf, n_gelu_erf)
ONEPASS_LIFT(op_softplus, n_softplus)
ONEPASS_LIFT(op_exp_flush, n_exp_flush)
ONEPASS_LIFT(op_exp_h, n_exp_flush_h)
ONEPASS_LIFT(op_exp2_h, n_exp2_flush_h)
ONEPASS_LIFT(op_expm1_h, n_expm1)
ONEPASS_LIFT(op_log_h, n_log)
ONEPASS_LIFT(op_log2_h, n_log2)
ONEPASS_LIFT(op_log1p_h, n_log1p)
ONEPASS_LIFT(op_tanh_h, n_tanh_h)
ONEPASS_LIFT(op_erf_h, n_erf_h)
ONEPASS_LIFT(op_sigmoid_h, n_sigmoid_h)
ONEPASS_LIFT(op_silu_h, n_silu_h)
ONEPASS_LIFT(op_gelu_tanh_h, n_gelu_tanh_h)
ONEPASS_LIFT(op_gelu_erf_h, n_gelu_erf_h)
ONEPASS_LIFT(op_softplus_h, n_softplus)

ONEPASS_FN vf op_recip(vf a) { return vf(1.0f) / a; }           // correctly rounded
ONEPASS_FN vf op_rsqrt(vf a) { return vf(1.0f) / op_sqrt(a); }  // 2 units

// Rounding: adding 2^23 to a magnitude below it rounds to the nearest even integer.
ONEPASS_FN nf n_round(nf x) {
  nf a = n_abs(x);
  nf r = (a + 0x1p23f) - 0x1p23f;
  ni sign = n_bits(x) & (-0x7fffffff - 1);
  return (a < 0x1p23f) ? n_float(n_bits(r) | sign) : x;
}
ONEPASS_FN nf n_keep_sign(nf r, nf x) {  // floor(-0) and ceil(-0.5) are -0
  return n_float(n_bits(r) | (n_bits(x) & (-0x7fffffff - 1)));
}
ONEPASS_FN nf n_floor(nf x) {
  nf r = n_round(x);
  return n_keep_sign((r > x) ? r - 1.0f : r, x);
}
ONEPASS_FN nf n_ceil(nf x) {
  nf r = n_round(x);
  return n_keep_sign((r < x) ? r + 1.0f : r, x);
}
ONEPASS_FN nf n_trunc(nf x) {
  nf a = n_abs(x);
  nf r = n_round(a);
  return n_keep_sign((r > a) ? r - 1.0f : r, x);
}
ONEPASS_LIFT(op_round, n_round)
ONEPASS_LIFT(op_floor, n_floor)
ONEPASS_LIFT(op_ceil, n_ceil)
ONEPASS_LIFT(op_trunc, n_trunc)
