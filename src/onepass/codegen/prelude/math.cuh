// The op_* functions. Without a suffix: a few ulp of fp32, relative error held where results are small. `_h`: for a
// result that is stored as bf16 or fp16. costs.toml has each one's instructions and largest error.
// Tiny results: exp exp2 log sqrt … keep denormals; what costs.toml gives a `floor` may be 0 below it.
// Coefficients come from tools/fit_math.py: minimax in relative error over the interval that stands beside them.

ONEPASS_INLINE float poly(float, float c0) { return c0; }
template <class... C>
ONEPASS_INLINE float poly(float x, float c0, float c1, C... rest) {  // c0 + x * (c1 + x * (...))
  return fmaf(x, poly(x, c1, rest...), c0);
}

// ---- plain ----

ONEPASS_INLINE float op_fma(float a, float b, float c) { return fmaf(a, b, c); }
ONEPASS_INLINE float op_abs(float x) { return fabsf(x); }
ONEPASS_INLINE float op_neg(float x) { return -x; }
ONEPASS_INLINE float op_floor(float x) { return floorf(x); }
ONEPASS_INLINE float op_ceil(float x) { return ceilf(x); }
ONEPASS_INLINE float op_round(float x) { return rintf(x); }  // halves to even
ONEPASS_INLINE float op_trunc(float x) { return truncf(x); }
ONEPASS_INLINE bool op_isnan(float x) { return x != x; }
ONEPASS_INLINE float op_sign(float x) { return x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : 0.0f); }  // NaN gives 0
ONEPASS_INLINE float op_where(bool m, float a, float b) { return m ? a : b; }
ONEPASS_INLINE bool op_where(bool m, bool a, bool b) { return m ? a : b; }
// NaN if either is one.
ONEPASS_INLINE float op_max(float a, float b) {
#if __CUDA_ARCH__ >= 800
  return ptx_max_nan(a, b);
#else
  return a != a ? a : (a < b || b != b ? b : a);
#endif
}
ONEPASS_INLINE float op_min(float a, float b) {
#if __CUDA_ARCH__ >= 800
  return ptx_min_nan(a, b);
#else
  return a != a ? a : (b < a || b != b ? b : a);
#endif
}
ONEPASS_INLINE float op_relu(float x) { return op_max(x, 0.0f); }

// ---- roots and quotients ----

// One Newton step: a norm's whole row carries this error. The step is NaN at zero and infinity, where the guess is right.
ONEPASS_INLINE float op_rsqrt(float x) {
  const float guess = ptx_rsqrt(x), step = fmaf(-x * guess, guess, 1.0f);
  return step == step ? fmaf(0.5f * guess, step, guess) : guess;
}
ONEPASS_INLINE float op_rsqrt_h(float x) { return ptx_rsqrt(x); }
ONEPASS_INLINE float op_sqrt(float x) { return ptx_sqrt(x); }
ONEPASS_INLINE float op_sqrt_h(float x) { return ptx_sqrt(x); }
ONEPASS_INLINE float op_recip(float x) { return ptx_rcp(x); }
ONEPASS_INLINE float op_recip_h(float x) { return ptx_rcp(x); }
// Correctly rounded: a mean is a quotient, and a row carries its error.
ONEPASS_INLINE float op_div(float a, float b) { return a / b; }
ONEPASS_INLINE float op_div_h(float a, float b) { return ptx_div(a, b); }
ONEPASS_INLINE float op_fmod(float a, float b) { return fmodf(a, b); }
ONEPASS_INLINE float op_remainder(float a, float b) {  // the sign of b
  const float r = fmodf(a, b);
  return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : r;
}

// ---- powers of two and e ----

constexpr float log2e = 1.44269502f, log2e_low = 1.92596303e-08f, ln2 = 0.693147182f;

// n = x * step + a rounded to an integer in [-126, 126]: saturation bounds it without losing where it came from.
// `scale` is 2^n.
struct Power { float n, scale; };
ONEPASS_INLINE Power round_power(float x, float step_252nd) {
  const float t = __saturatef(fmaf(x, step_252nd, 0.5f));
  const float j = fmaf(t, 252.0f, 12582913.0f);  // 1.5 * 2^23 + 1: the low bits are n + 127, an exponent field
  return Power{j - 12583039.0f, __uint_as_float(__float_as_uint(j) << 23)};
}
// 2^(hi + lo) over the whole range, denormal results and infinity too.
ONEPASS_INLINE float exp2_sum(float hi, float lo) {
  const Power p = round_power(hi, 0.0039682542f);  // 1/252
  return ptx_ex2_ftz((hi - p.n) + lo) * p.scale;
}
ONEPASS_INLINE float op_exp(float x) {
  const Power p = round_power(x, 0.0057249805f);  // log2(e)/252
  return ptx_ex2_ftz(fmaf(x, log2e_low, fmaf(x, log2e, -p.n))) * p.scale;
}
ONEPASS_INLINE float op_exp_h(float x) { return ptx_ex2_ftz(x * log2e); }
ONEPASS_INLINE float op_exp2(float x) { return ptx_ex2(x); }
ONEPASS_INLINE float op_exp2_h(float x) { return ptx_ex2_ftz(x); }

ONEPASS_INLINE float op_expm1(float x) {
  const float sign = x;
  x = op_min(op_max(x, -30.0f), 88.8f);  // beyond, -1 and infinity
  const float j = fmaf(x, log2e, 12582912.0f), n = j - 12582912.0f;
  const float r = fmaf(n, 1.90465421e-09f, fmaf(n, -ln2, x));
  const float q = poly(r, 0.49999997f, 0.16666539f, 0.0416672193f, 0.00836717337f, 0.00138823967f);  // |r| < 0.35
  const float p = fmaf(r * r, q, r);
  const float half = __uint_as_float((__float_as_uint(j) << 23) + 0x3f000000u);  // 2^(n-1): 2^n may be too large
  const float y = fmaf(half, p, half - 0.5f);
  return copysignf(y + y, sign);  // of -0 too
}
ONEPASS_INLINE float op_expm1_h(float x) {
  const float small = x * poly(x, 0.999995947f, 0.500003397f, 0.167187378f, 0.0416666456f);  // |x| < 0.25
  return fabsf(x) < 0.25f ? small : op_exp_h(x) - 1.0f;
}

// ---- logarithms ----

// log(1 + f) for f in [-1/3, 1/3].
ONEPASS_INLINE float log1p_core(float f) {
  const float p = poly(f, 0.333332151f, -0.249997973f, 0.200104058f, -0.16680488f, 0.140058681f, -0.121842615f,
                       0.139844373f, -0.128916845f);
  return fmaf(f * f, fmaf(f, p, -0.5f), f);
}
struct Log { float exponent, log_mantissa; };  // x = 2^exponent * mantissa, the mantissa in [2/3, 4/3)
ONEPASS_INLINE Log split_log(float x) {
  const bool denormal = x < 1.17549435e-38f;
  const unsigned u = __float_as_uint(denormal ? x * 8388608.0f : x);
  const unsigned i = (u - 0x3f2aaaabu) & 0xff800000u;
  return Log{fmaf((float)(int)i, 1.1920929e-7f, denormal ? -23.0f : 0.0f),
             log1p_core(__uint_as_float(u - i) - 1.0f)};
}
// What a logarithm of x is where x is not a positive finite number.
ONEPASS_INLINE float log_or_special(float x, float log_x) {
  const float special = x == 0.0f ? -__int_as_float(0x7f800000) : (x < 0.0f ? __int_as_float(0x7fffffff) : x);
  return x > 0.0f && x < __int_as_float(0x7f800000) ? log_x : special;
}
ONEPASS_INLINE float op_log(float x) {
  const Log l = split_log(x);
  return log_or_special(x, fmaf(l.exponent, ln2, l.log_mantissa));
}
ONEPASS_INLINE float op_log2(float x) {
  const Log l = split_log(x);
  return log_or_special(x, fmaf(l.log_mantissa, log2e, fmaf(l.log_mantissa, log2e_low, l.exponent)));
}
// log(1 + x) for x > -1: the scaled x is added to the scaled 1, so that no bit of x is lost.
ONEPASS_INLINE float log1p_finite(float x) {
  const unsigned i = (__float_as_uint(1.0f + x) - 0x3f2aaaabu) & 0xff800000u;
  const float scale = __uint_as_float(0x40800000u - i);  // 4 * 2^-exponent
  const float f = __uint_as_float(__float_as_uint(x) - i) + fmaf(0.25f, scale, -1.0f);
  return fmaf((float)(int)i * 1.1920929e-7f, ln2, log1p_core(f));
}
ONEPASS_INLINE float op_log1p(float x) {
  const float u = 1.0f + x;
  return copysignf(log_or_special(u, log1p_finite(x)), x);
}
ONEPASS_INLINE float log1p_small_h(float x) {  // |x| < 0.125
  return x * poly(x, 0.999993801f, -0.499988616f, 0.336491197f, -0.253163397f);
}
ONEPASS_INLINE float op_log_h(float x) {
  const float f = x - 1.0f;
  return fabsf(f) < 0.125f ? log1p_small_h(f) : ptx_lg2(x) * ln2;
}
ONEPASS_INLINE float op_log2_h(float x) {
  const float f = x - 1.0f;
  return fabsf(f) < 0.125f ? log1p_small_h(f) * log2e : ptx_lg2(x);
}
ONEPASS_INLINE float op_log1p_h(float x) {
  return fabsf(x) < 0.125f ? log1p_small_h(x) : ptx_lg2(1.0f + x) * ln2;
}

// torch's softplus with beta 1 and threshold 20.
ONEPASS_INLINE float op_softplus(float x) {
  const float r = log1p_finite(op_exp(x));
  return x <= 20.0f ? r : x;
}
ONEPASS_INLINE float op_softplus_h(float x) {
  const float e = op_exp_h(x);
  const float r = e < 0.125f ? log1p_small_h(e) : ptx_lg2(1.0f + e) * ln2;
  return x <= 20.0f ? r : x;
}

ONEPASS_INLINE float op_pow(float x, float y) { return powf(x, y); }
ONEPASS_INLINE float op_pow_h(float x, float y) { return powf(x, y); }

// ---- sigmoids ----

ONEPASS_INLINE float op_sigmoid(float x) { return ptx_rcp_ftz(1.0f + op_exp(-x)); }
ONEPASS_INLINE float op_sigmoid_h(float x) { return ptx_rcp_ftz(1.0f + op_exp_h(-x)); }
// The quarters keep the reciprocal from flushing where e^-x is above 2^126: silu(-88) is a normal number.
ONEPASS_INLINE float op_silu(float x) { return (0.25f * x) * ptx_rcp_ftz(fmaf(op_exp(-x), 0.25f, 0.25f)); }
ONEPASS_INLINE float op_silu_h(float x) { return (0.25f * x) * ptx_rcp_ftz(fmaf(op_exp_h(-x), 0.25f, 0.25f)); }

ONEPASS_INLINE float op_tanh(float x) {
  const float a = fabsf(x), s = x * x;
  const float small = fmaf(x * s, poly(s, -0.333332986f, 0.133319244f, -0.0537838303f, 0.0207959712f,
                                       -0.00589515828f), x);  // |x| < 0.6
  const float big = fmaf(-2.0f, ptx_rcp_ftz(1.0f + ptx_ex2_ftz(a * 2.88539004f)), 1.0f);
  return a < 0.6f ? small : copysignf(big, x);
}
ONEPASS_INLINE float op_tanh_h(float x) {
  const float a = fabsf(x), s = x * x;
  const float small = fmaf(x * s, poly(s, -0.33315444f, 0.126831487f), x);  // |x| < 0.3
  const float big = fmaf(-2.0f, ptx_rcp_ftz(1.0f + ptx_ex2_ftz(a * 2.88539004f)), 1.0f);
  return a < 0.3f ? small : copysignf(big, x);
}

// x * sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3): no difference of near numbers, so the tail keeps its digits
// where 0.5 x (1 + tanh u) loses them all. -2 u log2(e) = x * (k1 + k2 x^2); its rounding, |h| 2^-23, is the error:
// 1e-6 at x = -5. To carry it as a sum of two costs 16 instructions more, a tenth of the speed of a long fp32 row.
ONEPASS_INLINE float op_gelu_tanh(float x) {
  const float h = x * fmaf(x * x, -0.102943242f, -2.30220819f);
  return x * ptx_rcp_ftz(1.0f + ptx_ex2_ftz(h));
}
ONEPASS_INLINE float op_gelu_tanh_h(float x) { return op_gelu_tanh(x); }

// x * Phi(x), where Phi(-a) = G(a) exp(-a^2 / 2) and Phi(a) = 1 - Phi(-a).
ONEPASS_INLINE float op_gelu_erf(float x) {
  const float a = fminf(fabsf(x), 15.0f);
  const float s = a * a, s_low = fmaf(a, a, -s);
  const float c = -0.721347511f, c_low = -9.62981517e-09f;  // -log2(e) / 2
  const float h = s * c, l = fmaf(s, c_low, fmaf(s_low, c, fmaf(s, c, -h)));
  const float d = fmaf(a, 0.265f, 1.0f), guess = ptx_rcp_ftz(d);
  const float t = fmaf(guess, fmaf(-guess, d, 1.0f), guess);  // G multiplies an error of t by up to 3
  const float g = t * poly(t, 0.105741084f, 0.105254889f, 0.102641486f, 0.0605500154f, 0.137384608f, -0.115519196f,
                           0.217057899f, -0.143851921f, 0.0307411347f);  // a in [0, 14.2]
  const float tail = g * exp2_sum(h, l);
  return x * fabsf((x > 0.0f ? 1.0f : 0.0f) - tail);
}
// log2 Phi(-a) is so smooth that one polynomial holds it to 1e-4: no reciprocal.
ONEPASS_INLINE float op_gelu_erf_h(float x) {
  const float a = fminf(fabsf(x), 14.0f);
  const float tail = ptx_ex2_ftz(poly(a, -1.00011289f, -1.14980745f, -0.461429954f, -0.0516867414f, 0.00769666396f,
                                      -0.000790422491f, 5.1840183e-05f, -1.93336473e-06f, 3.10022372e-08f));
  return x * fabsf((x > 0.0f ? 1.0f : 0.0f) - tail);
}

// ---- erf ----

ONEPASS_INLINE float op_erf(float x) {
  const float a = fminf(fabsf(x), 4.1f), s = x * x;
  const float small = x * poly(s, 1.12837911f, -0.376125246f, 0.112821408f, -0.0267789084f, 0.00501196273f,
                               -0.000609036011f);  // |x| < 0.9
  const float big = 1.0f - ptx_ex2_ftz(a * poly(a, -1.62811017f, -0.917120337f, -0.151896819f, 0.0330464132f,
                                                -0.00464544166f, 0.000309595052f));  // 0.9 to 4.1
  return fabsf(x) >= 0.9f ? copysignf(big, x) : small;
}
ONEPASS_INLINE float op_erf_h(float x) {
  const float a = fminf(fabsf(x), 4.0f), s = x * x;
  const float small = x * poly(s, 1.12836671f, -0.375239074f, 0.103267305f);  // |x| < 0.5
  const float big =
      1.0f - ptx_ex2_ftz(a * poly(a, -1.62569571f, -0.929135621f, -0.130799815f, 0.0172690805f));  // 0.45 to 4
  return fabsf(x) >= 0.5f ? copysignf(big, x) : small;
}

// ---- sine and cosine ----

// x = n pi + r (sine) or (n - 1/2) pi + r (cosine), |r| <= pi/2; both are (-1)^n sin(r).
struct HalfTurn { float r; unsigned odd; };  // `odd` has n's parity in bit 0

// 1 / (2 pi) after 32 zero bits: enough for the largest exponent and 96 bits of window.
static __device__ __constant__ const unsigned inverse_turn[8] = {
    0u, 0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u, 0x36d8a566u, 0x4f10e410u, 0x7f9458eau};

// Any finite x: the window of 1 / (2 pi) that matters for its exponent, times its 24-bit mantissa, in integers.
ONEPASS_INLINE HalfTurn reduce_large(float x, bool cosine) {
  const unsigned u = __float_as_uint(x);
  const unsigned mantissa = (u & 0x7fffffu) | 0x800000u;
  const int bit = (int)(u >> 23 & 255u) - 127 + 9;  // mantissa * 2^(e-23): 23 fewer, 32 zeros more
  const int w = bit >> 5;
  const unsigned a = inverse_turn[w], b = inverse_turn[w + 1], c = inverse_turn[w + 2], d = inverse_turn[w + 3];
  const unsigned hi = __funnelshift_l(b, a, bit), mid = __funnelshift_l(c, b, bit), lo = __funnelshift_l(d, c, bit);
  const unsigned long long low = (unsigned long long)mantissa * lo;
  const unsigned long long middle = (unsigned long long)mantissa * mid + (low >> 32);
  unsigned long long turns = ((unsigned long long)(mantissa * hi) << 32) + middle;  // a fraction of 2^64
  if (u >> 31) turns = 0ull - turns;
  if (cosine) turns += 1ull << 62;
  const unsigned n = (unsigned)(turns >> 63) + (unsigned)(turns >> 62 & 1ull);
  return HalfTurn{(float)(long long)(turns << 1) * 1.70306079e-19f, n & 1u};
}
template <bool cosine>
ONEPASS_INLINE HalfTurn reduce_turn(float x) {
  // Below 1e5 n has 15 bits, and n times the head of pi is exact inside the fused step. Three parts of pi: with two,
  // the results nearest to 0 would keep only eight bits.
  const float j = (cosine ? fmaf(x, 0.318309873f, 0.5f) : x * 0.318309873f) + 12582912.0f;
  const float n = (j - 12582912.0f) - (cosine ? 0.5f : 0.0f);
  HalfTurn t{fmaf(n, 3.43024902e-15f, fmaf(n, 8.74227766e-08f, fmaf(n, -3.14159274f, x))), __float_as_uint(j)};
  if (fabsf(x) >= 1e5f) {
    t = reduce_large(x, cosine);
    if (!(fabsf(x) < __int_as_float(0x7f800000))) t.r = __int_as_float(0x7fffffff);
  }
  return t;
}
ONEPASS_INLINE float sin_half_turn(HalfTurn t) {
  const float s = t.r * t.r;
  const float y = fmaf(t.r * s, poly(s, -0.166666597f, 0.00833306648f, -0.000198095862f, 2.60574188e-06f), t.r);
  return __uint_as_float(__float_as_uint(y) ^ t.odd << 31);
}
ONEPASS_INLINE float sin_half_turn_h(HalfTurn t) {
  const float s = t.r * t.r;
  const float y = fmaf(t.r * s, poly(s, -0.166658521f, 0.00831426494f, -0.000185418874f), t.r);
  return __uint_as_float(__float_as_uint(y) ^ t.odd << 31);
}
ONEPASS_INLINE float op_sin(float x) { return sin_half_turn(reduce_turn<false>(x)); }
ONEPASS_INLINE float op_cos(float x) { return sin_half_turn(reduce_turn<true>(x)); }
ONEPASS_INLINE float op_sin_h(float x) { return sin_half_turn_h(reduce_turn<false>(x)); }
ONEPASS_INLINE float op_cos_h(float x) { return sin_half_turn_h(reduce_turn<true>(x)); }
