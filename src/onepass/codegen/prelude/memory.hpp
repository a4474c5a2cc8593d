// Loads to `vf` and stores from it, for every storage type. `load` and `store` move 16 elements and accept any
// address that suits one element; `_n` moves the first n < 16 and touches nothing after them (lanes n.. read as 0);
// `_s` strides by `step` elements; `stream` goes past the caches when the address is aligned to 64 bytes.

struct bf16 {
  unsigned short bits;
};
struct f16 {
  unsigned short bits;
};

#define ONEPASS_UNALIGNED(NAME, T, COUNT) \
  typedef T NAME __attribute__((vector_size(sizeof(T) * (COUNT)), aligned(__alignof__(T)), may_alias));
ONEPASS_UNALIGNED(nf_at, float, ONEPASS_NATIVE)
ONEPASS_UNALIGNED(ni_at, i32, ONEPASS_NATIVE)
ONEPASS_UNALIGNED(nh_at, unsigned short, ONEPASS_NATIVE)
ONEPASS_UNALIGNED(ns_at, i16, ONEPASS_NATIVE)
ONEPASS_UNALIGNED(nb_at, u8, ONEPASS_NATIVE)
ONEPASS_UNALIGNED(nsb_at, i8, ONEPASS_NATIVE)
typedef double nd_half_at __attribute__((vector_size(ONEPASS_NATIVE * 4), aligned(8), may_alias));

// bf16: the upper half of a float. Rounding to nearest even adds 0x7fff plus the lowest kept bit; NaN keeps its
// sign and becomes quiet. AVX512_BF16's own conversion is not used: it flushes denormals, PyTorch does not.
ONEPASS_FN nf n_widen(nh h, bf16) { return (nf)(__builtin_convertvector(h, nu) << 16); }
ONEPASS_FN nu n_bf16_rounded(nf x) {  // in the upper half
  nu u = (nu)x;
  nu r = u + 0x7fffu + ((u >> 16) & 1u);
  return (x != x) ? (u | 0x00400000u) : r;
}
ONEPASS_FN nh n_narrow(nf x, bf16) { return __builtin_convertvector(n_bf16_rounded(x) >> 16, nh); }

// f16 without F16C: an exact integer-and-float conversion (2^112 moves the exponent bias; the product is exact).
ONEPASS_FN nf n_widen_f16_generic(nh h) {
  nu w = __builtin_convertvector(h, nu);
  nu magnitude = (w & 0x7fffu) << 13;
  nf scaled = (nf)magnitude * 0x1p112f;
  nu special = (nu)(magnitude >= (0x7c00u << 13));
  nu bits = (nu)scaled | (special & 0x7f800000u) | (special & magnitude & 0x007fffffu);
  return (nf)(bits | ((w & 0x8000u) << 16));
}
ONEPASS_FN nh n_narrow_f16_generic(nf x) {
  nu u = (nu)x;
  nu sign = (u >> 16) & 0x8000u;
  nu m = u & 0x7fffffffu;
  // Denormal halves: adding 0.5 leaves a unit of 2^-24 in the last place, so the float adder rounds for us.
  nu tiny = (nu)((nf)m + 0.5f) - 0x3f000000u;
  nu normal = (m - (112u << 23) + 0xfffu + ((m >> 13) & 1u)) >> 13;
  nu r = (m < (113u << 23)) ? tiny : normal;
  r = (m >= 0x477ff000u) ? ((nu){} + 0x7c00u) : r;                                  // rounds past 65504
  r = (m > 0x7f800000u) ? (0x7e00u | ((m >> 13) & 0x3ffu)) : r;                      // NaN
  return __builtin_convertvector(r | sign, nh);
}
#if ONEPASS_NATIVE == 8 && defined(__F16C__) && !defined(__clang__)
typedef short ns_f16c __attribute__((vector_size(16)));
ONEPASS_FN nf n_widen(nh h, f16) { return __builtin_ia32_vcvtph2ps256((ns_f16c)h); }
ONEPASS_FN nh n_narrow(nf x, f16) { return (nh)__builtin_ia32_vcvtps2ph256(x, 0); }
#elif ONEPASS_NATIVE == 16 && !defined(__clang__)
typedef short ns_f16c __attribute__((vector_size(32)));
ONEPASS_FN nf n_widen(nh h, f16) {
  return __builtin_ia32_vcvtph2ps512_mask((ns_f16c)h, (nf){}, (unsigned short)-1, 4);
}
ONEPASS_FN nh n_narrow(nf x, f16) {
  return (nh)__builtin_ia32_vcvtps2ph512_mask(x, 0, (ns_f16c){}, (unsigned short)-1);
}
#else
ONEPASS_FN nf n_widen(nh h, f16) { return n_widen_f16_generic(h); }
ONEPASS_FN nh n_narrow(nf x, f16) { return n_narrow_f16_generic(x); }
#endif

ONEPASS_FN nf n_load(const float* p) { return *(const nf_at*)p; }
ONEPASS_FN nf n_load(const bf16* p) { return n_widen((nh) * (const nh_at*)p, bf16()); }
ONEPASS_FN nf n_load(const f16* p) { return n_widen((nh) * (const nh_at*)p, f16()); }
ONEPASS_FN nf n_load(const i32* p) { return __builtin_convertvector(*(const ni_at*)p, nf); }
ONEPASS_FN nf n_load(const i16* p) {
  return __builtin_convertvector(__builtin_convertvector(*(const ns_at*)p, ni), nf);
}
ONEPASS_FN nf n_load(const i8* p) {
  return __builtin_convertvector(__builtin_convertvector(*(const nsb_at*)p, ni), nf);
}
ONEPASS_FN nf n_load(const u8* p) {
  return __builtin_convertvector(__builtin_convertvector(*(const nb_at*)p, ni), nf);
}
ONEPASS_FN nf n_load(const b8* p) { return n_load((const u8*)p); }
template <class T>
ONEPASS_FN nf n_load_lanes(const T* p) {  // types the machine has no vector conversion for
  nf r;
  for (int i = 0; i < ONEPASS_NATIVE; i++) r[i] = (float)p[i];
  return r;
}
ONEPASS_FN nf n_load(const i64* p) { return n_load_lanes(p); }
ONEPASS_FN nf n_load(const double* p) { return n_load_lanes(p); }

// One element.
ONEPASS_FN float to_float(float x) { return x; }
ONEPASS_FN float to_float(double x) { return (float)x; }
ONEPASS_FN float to_float(i64 x) { return (float)x; }
ONEPASS_FN float to_float(i32 x) { return (float)x; }
ONEPASS_FN float to_float(i16 x) { return (float)x; }
ONEPASS_FN float to_float(i8 x) { return (float)x; }
ONEPASS_FN float to_float(u8 x) { return (float)x; }
ONEPASS_FN float to_float(b8 x) { return (float)x; }
ONEPASS_FN float to_float(bf16 x) {
  unsigned u = (unsigned)x.bits << 16;
  float r;
  __builtin_memcpy(&r, &u, 4);
  return r;
}
ONEPASS_FN float to_float(f16 x) {
  nh h = {x.bits};
  return n_widen(h, f16())[0];
}

template <class T>
ONEPASS_FN vf load(const T* p) {
  vf r;
#define X(i) r.p[i] = n_load(p + i * ONEPASS_NATIVE);
  ONEPASS_PARTS(X)
#undef X
  return r;
}
template <class T>
ONEPASS_FN vf load_1(const T* p) { return vf(to_float(*p)); }
template <class T>
ONEPASS_FN vf load_n(const T* p, i64 n) {
  T t[16] = {};
  for (i64 i = 0; i < n; i++) t[i] = p[i];
  return load(t);
}
template <class T>
ONEPASS_FN vf load_s(const T* p, i64 step) {
  T t[16];
  for (i64 i = 0; i < 16; i++) t[i] = p[i * step];
  return load(t);
}
template <class T>
ONEPASS_FN vf load_sn(const T* p, i64 step, i64 n) {
  T t[16] = {};
  for (i64 i = 0; i < n; i++) t[i] = p[i * step];
  return load(t);
}
ONEPASS_FN vm load_mask(const b8* p) { return to_mask(load(p)); }
ONEPASS_FN vm load_mask_n(const b8* p, i64 n) { return to_mask(load_n(p, n)); }

ONEPASS_FN void n_store(float* p, nf x) { *(nf_at*)p = x; }
ONEPASS_FN void n_store(bf16* p, nf x) { *(nh_at*)p = n_narrow(x, bf16()); }
ONEPASS_FN void n_store(f16* p, nf x) { *(nh_at*)p = n_narrow(x, f16()); }
ONEPASS_FN void n_store(i32* p, nf x) { *(ni_at*)p = __builtin_convertvector(x, ni); }
ONEPASS_FN void n_store(double* p, nf x) {
  for (int i = 0; i < ONEPASS_NATIVE; i++) p[i] = x[i];
}
ONEPASS_FN void n_store(i64* p, nf x) {
  for (int i = 0; i < ONEPASS_NATIVE; i++) p[i] = (i64)x[i];
}
template <class T>
ONEPASS_FN void n_store_small(T* p, nf x) {
  ni t = __builtin_convertvector(x, ni);
  for (int i = 0; i < ONEPASS_NATIVE; i++) p[i] = (T)t[i];
}
ONEPASS_FN void n_store(i16* p, nf x) { n_store_small(p, x); }
ONEPASS_FN void n_store(i8* p, nf x) { n_store_small(p, x); }
ONEPASS_FN void n_store(u8* p, nf x) { n_store_small(p, x); }
ONEPASS_FN void n_store(b8* p, nf x) { n_store_small((u8*)p, n_float(n_bits(n_splat(1.0f)) & (x != n_splat(0.0f)))); }

template <class T>
ONEPASS_FN void store(T* p, vf x) {
#define X(i) n_store(p + i * ONEPASS_NATIVE, x.p[i]);
  ONEPASS_PARTS(X)
#undef X
}
template <class T>
ONEPASS_FN void store_n(T* p, vf x, i64 n) {
  T t[16];
  store(t, x);
  for (i64 i = 0; i < n; i++) p[i] = t[i];
}
template <class T>
ONEPASS_FN void store_s(T* p, i64 step, vf x) {
  T t[16];
  store(t, x);
  for (i64 i = 0; i < 16; i++) p[i * step] = t[i];
}
template <class T>
ONEPASS_FN void store_sn(T* p, i64 step, vf x, i64 n) {
  T t[16];
  store(t, x);
  for (i64 i = 0; i < n; i++) p[i * step] = t[i];
}
ONEPASS_FN void store(b8* p, vm m) { store(p, to_float(m)); }
ONEPASS_FN void store_n(b8* p, vm m, i64 n) { store_n(p, to_float(m), n); }
