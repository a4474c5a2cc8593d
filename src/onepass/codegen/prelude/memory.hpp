// Loads to `vf` and stores from it, for every storage type. `load` and `store` move 16 elements and accept any
// address that suits one element; `_n` moves the first n < 16 and touches nothing after them (lanes n.. read as 0);
// `_s` strides by `step` elements; `_1` reads one element to all lanes, or stores lane 0.

struct bf16 {
  unsigned short bits;
};
struct f16 {
  unsigned short bits;
};
struct e4m3 {  // 8-bit floats, as PyTorch's float8_e4m3fn and float8_e5m2
  u8 bits;
};
struct e5m2 {
  u8 bits;
};

#define ONEPASS_UNALIGNED(NAME, T, COUNT) \
  typedef T NAME __attribute__((vector_size(sizeof(T) * (COUNT)), aligned(__alignof__(T)), may_alias));
ONEPASS_UNALIGNED(nf_at, float, ONEPASS_NATIVE)
ONEPASS_UNALIGNED(ni_at, i32, ONEPASS_NATIVE)
ONEPASS_UNALIGNED(nh_at, unsigned short, ONEPASS_NATIVE)
ONEPASS_UNALIGNED(nb_at, u8, ONEPASS_NATIVE)
ONEPASS_UNALIGNED(nd_at, double, ONEPASS_NATIVE / 2)

// 16-bit to 32-bit and back. GCC 12 makes a detour through 128-bit registers of __builtin_convertvector on AVX2
// (measured: a bf16 copy took 8.9 cycles for 16 elements, 4.1 this way), so x86 names its instructions.
#if ONEPASS_NATIVE == 8 && !defined(__clang__)
typedef short ns_x86 __attribute__((vector_size(16)));
typedef short nw_x86 __attribute__((vector_size(32)));
typedef i64 nq_x86 __attribute__((vector_size(32)));
ONEPASS_FN nu n_zero_extend(nh h) { return (nu)__builtin_ia32_pmovzxwd256((ns_x86)h); }
#elif ONEPASS_NATIVE == 16 && !defined(__clang__)
typedef short ns_x86 __attribute__((vector_size(32)));
ONEPASS_FN nu n_zero_extend(nh h) {
  return (nu)__builtin_ia32_pmovzxwd512_mask((ns_x86)h, (ni){}, (unsigned short)-1);
}
#else
ONEPASS_FN nu n_zero_extend(nh h) { return __builtin_convertvector(h, nu); }
#endif

// bf16: the upper half of a float. Rounding to nearest even adds 0x7fff plus the lowest kept bit; a NaN becomes
// the NaN with every bit set. AVX512_BF16's own conversion is not used: it flushes denormals, PyTorch does not.
ONEPASS_FN nf n_widen(nh h, bf16) { return (nf)(n_zero_extend(h) << 16); }
ONEPASS_FN nu n_bf16_bits(nf x) {
  nu u = (nu)x;
  return ((u + 0x7fffu + ((u >> 16) & 1u)) | (nu)(x != x)) >> 16;
}
ONEPASS_FN nh n_narrow(nf x, bf16) { return __builtin_convertvector(n_bf16_bits(x), nh); }

// f16 without F16C: an exact integer-and-float conversion (2^112 moves the exponent bias; the product is exact).
ONEPASS_FN nf n_widen_f16_generic(nh h) {
  nu w = n_zero_extend(h);
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
ONEPASS_FN nf n_widen(nh h, f16) { return __builtin_ia32_vcvtph2ps256((ns_x86)h); }
ONEPASS_FN nh n_narrow(nf x, f16) { return (nh)__builtin_ia32_vcvtps2ph256(x, 0); }
#elif ONEPASS_NATIVE == 16 && !defined(__clang__)
ONEPASS_FN nf n_widen(nh h, f16) {
  return __builtin_ia32_vcvtph2ps512_mask((ns_x86)h, (nf){}, (unsigned short)-1, 4);
}
ONEPASS_FN nh n_narrow(nf x, f16) {
  return (nh)__builtin_ia32_vcvtps2ph512_mask(x, 0, (ns_x86){}, (unsigned short)-1);
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
  return __builtin_convertvector((ni)(n_zero_extend((nh) * (const nh_at*)p) << 16) >> 16, nf);
}
#if ONEPASS_NATIVE == 8 && !defined(__clang__)
ONEPASS_FN nf n_load(const u8* p) {
  typedef char bytes __attribute__((vector_size(16)));
  typedef i64 pair __attribute__((vector_size(16)));
  i64 w;
  __builtin_memcpy(&w, p, 8);
  return __builtin_convertvector(__builtin_ia32_pmovzxbd256((bytes)(pair){w, 0}), nf);
}
#else
ONEPASS_FN nf n_load(const u8* p) {
  return __builtin_convertvector(__builtin_convertvector(*(const nb_at*)p, ni), nf);
}
#endif
ONEPASS_FN nf n_load(const i8* p) {  // the byte as unsigned, less 256 where its sign bit is set
  nf u = n_load((const u8*)p);
  return (u >= 128.0f) ? u - 256.0f : u;
}
ONEPASS_FN nf n_load(const b8* p) { return n_load((const u8*)p); }
// NaN of e4m3 is all ones; the exponents are moved by products that are exact.
ONEPASS_FN nf n_widen_e4m3(ni b) {
  ni magnitude = b & 0x7f;
  nf x = (magnitude == 0x7f) ? n_splat(NAN_F) : n_float(magnitude << 20) * 0x1p120f;
  return n_float(n_bits(x) | ((b & 0x80) << 24));
}
ONEPASS_FN nf n_widen_e5m2(ni b) {
  ni magnitude = b & 0x7f;
  nf x = n_float(magnitude << 21) * 0x1p112f;
  x = (magnitude >= 0x7c) ? ((magnitude > 0x7c) ? n_splat(NAN_F) : n_splat(INFINITY_F)) : x;
  return n_float(n_bits(x) | ((b & 0x80) << 24));
}
ONEPASS_FN nf n_load(const e4m3* p) { return n_widen_e4m3(__builtin_convertvector(n_load((const u8*)p), ni)); }
ONEPASS_FN nf n_load(const e5m2* p) { return n_widen_e5m2(__builtin_convertvector(n_load((const u8*)p), ni)); }
ONEPASS_FN nf n_load(const i64* p) {  // AVX2 has no vector conversion for it
  nf r;
  for (int i = 0; i < ONEPASS_NATIVE; i++) r[i] = (float)p[i];
  return r;
}
ONEPASS_FN nf n_load(const double* p) {
  nf_half h[2] = {__builtin_convertvector(*(const nd_at*)p, nf_half),
                  __builtin_convertvector(*(const nd_at*)(p + ONEPASS_NATIVE / 2), nf_half)};
  nf r;
  __builtin_memcpy(&r, h, sizeof r);
  return r;
}

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

ONEPASS_FN float to_float(e4m3 x) { return n_widen_e4m3((ni){} + (i32)x.bits)[0]; }
ONEPASS_FN float to_float(e5m2 x) { return n_widen_e5m2((ni){} + (i32)x.bits)[0]; }

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
// n < 16 elements in pieces of 8, 4, 2 and 1: no loop for the compiler to turn into a call.
template <class T>
ONEPASS_FN void copy_some(T* to, const T* from, i64 n) {
  if (n & 8) __builtin_memcpy(to, from, 8 * sizeof(T)), to += 8, from += 8;
  if (n & 4) __builtin_memcpy(to, from, 4 * sizeof(T)), to += 4, from += 4;
  if (n & 2) __builtin_memcpy(to, from, 2 * sizeof(T)), to += 2, from += 2;
  if (n & 1) *to = *from;
}
template <class T>
ONEPASS_FN vf load_n(const T* p, i64 n) {
  T t[16] = {};
  copy_some(t, p, n);
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
  nf_half h[2];
  __builtin_memcpy(h, &x, sizeof x);
  *(nd_at*)p = __builtin_convertvector(h[0], nd);
  *(nd_at*)(p + ONEPASS_NATIVE / 2) = __builtin_convertvector(h[1], nd);
}
ONEPASS_FN void n_store(i64* p, nf x) {
  for (int i = 0; i < ONEPASS_NATIVE; i++) p[i] = (i64)x[i];
}
ONEPASS_FN void n_store(i16* p, nf x) { *(nh_at*)p = __builtin_convertvector(__builtin_convertvector(x, ni), nh); }
ONEPASS_FN void n_store_bytes(u8* p, ni t) {
  nb_at b = __builtin_convertvector(t, nb_at);
  __builtin_memcpy(p, &b, sizeof b);
}
// To nearest even. Below the least normal number the float adder rounds; from `most` on it is what lies beyond: NaN,
// else the largest e4m3, 448, which has no infinity, or e5m2's.
template <unsigned mantissa, unsigned bias, unsigned most>
ONEPASS_FN ni n_eight_bits(nf x, ni beyond) {
  constexpr unsigned drop = 23 - mantissa, magic = (127 - bias + drop + 1) << 23;
  ni u = n_bits(x), sign = (u >> 24) & 0x80, m = u & 0x7fffffff;
  ni tiny = n_bits(n_float(m) + n_float(n_splat_i((i32)magic))) - (i32)magic;
  ni normal = (m - (i32)((127 - bias) << 23) + (i32)((1u << (drop - 1)) - 1) + ((m >> drop) & 1)) >> drop;
  return sign | ((m >= (i32)most) ? beyond : ((m < (i32)((128 - bias) << 23)) ? tiny : normal));
}
ONEPASS_FN ni n_e4m3_bits(nf x) {
  return n_eight_bits<3, 7, 0x43e80001u>(x, (x != x) ? n_splat_i(0x7f) : n_splat_i(0x7e));
}
ONEPASS_FN ni n_e5m2_bits(nf x) {
  return n_eight_bits<2, 15, 143u << 23>(x, (x != x) ? n_splat_i(0x7f) : n_splat_i(0x7c));
}
ONEPASS_FN void n_store(e4m3* p, nf x) { n_store_bytes((u8*)p, n_e4m3_bits(x)); }
ONEPASS_FN void n_store(e5m2* p, nf x) { n_store_bytes((u8*)p, n_e5m2_bits(x)); }
ONEPASS_FN void n_store(i8* p, nf x) { n_store_bytes((u8*)p, __builtin_convertvector(x, ni)); }
ONEPASS_FN void n_store(u8* p, nf x) { n_store_bytes(p, __builtin_convertvector(x, ni)); }
ONEPASS_FN void n_store(b8* p, nf x) { n_store_bytes((u8*)p, (x != 0.0f) & 1); }

// 16 values in a 16-bit type, packed: one register on AVX2 and AVX-512.
#if ONEPASS_NATIVE == 8 && !defined(__clang__)
ONEPASS_FN nq_x86 n_packed(vf x, bf16) {  // the pack works within 128 bits, hence the shuffle
  nw_x86 w = __builtin_ia32_packusdw256((ni)n_bf16_bits(x.p[0]), (ni)n_bf16_bits(x.p[1]));
  return __builtin_shuffle((nq_x86)w, (nq_x86){0, 2, 1, 3});
}
ONEPASS_FN nq_x86 n_packed(vf x, f16) {
  nh h[2] = {n_narrow(x.p[0], f16()), n_narrow(x.p[1], f16())};
  nq_x86 q;
  __builtin_memcpy(&q, h, 32);
  return q;
}
#elif ONEPASS_NATIVE == 16 && !defined(__clang__)
typedef i64 nq_x86 __attribute__((vector_size(32)));
template <class T>
ONEPASS_FN nq_x86 n_packed(vf x, T type) { return (nq_x86)n_narrow(x.p[0], type); }
#endif

template <class T>
ONEPASS_FN void store(T* p, vf x) {
#define X(i) n_store(p + i * ONEPASS_NATIVE, x.p[i]);
  ONEPASS_PARTS(X)
#undef X
}
#if ONEPASS_NATIVE == 8 && !defined(__clang__)
ONEPASS_FN void store(bf16* p, vf x) {
  nq_x86 q = n_packed(x, bf16());
  __builtin_memcpy(p, &q, 32);
}
#endif
ONEPASS_FN void store(b8* p, vm m) {
#define X(i) n_store_bytes((u8*)p + i * ONEPASS_NATIVE, m.p[i] & 1);
  ONEPASS_PARTS(X)
#undef X
}
template <class T, class V>
ONEPASS_FN void store_n(T* p, V x, i64 n) {
  T t[16];
  store(t, x);
  copy_some(p, t, n);
}
template <class T, class V>
ONEPASS_FN void store_1(T* p, V x) {
  T t[16];
  store(t, x);
  *p = t[0];
}
template <class T, class V>
ONEPASS_FN void store_s(T* p, i64 step, V x) {
  T t[16];
  store(t, x);
  for (i64 i = 0; i < 16; i++) p[i * step] = t[i];
}
template <class T, class V>
ONEPASS_FN void store_sn(T* p, i64 step, V x, i64 n) {
  T t[16];
  store(t, x);
  for (i64 i = 0; i < n; i++) p[i * step] = t[i];
}

// Past the caches where the machine can and `p` is aligned to 64 bytes (32 for a 16-bit type), else `store`: for an
// output that will not stay in the last-level cache anyway, it saves reading each line before writing it. A line
// that gets both kinds of store is slow (LayerNorm at 129 columns: 5 times), so it is all rows or none: `can_stream`.
template <class T>
ONEPASS_FN bool can_stream(const T* rows, i64 cols) {
  return (((unsigned long)rows | (unsigned long)(cols * (i64)sizeof(T))) & 63) == 0;
}
template <class T>
ONEPASS_FN void stream(T* p, vf x) { store(p, x); }
#if ONEPASS_NATIVE >= 8 && !defined(__clang__)
ONEPASS_FN void stream(float* p, vf x) {
  if ((unsigned long)p & 63) return store(p, x);
#if ONEPASS_NATIVE == 16
  __builtin_ia32_movntps512(p, x.p[0]);
#else
  __builtin_ia32_movntps256(p, x.p[0]);
  __builtin_ia32_movntps256(p + 8, x.p[1]);
#endif
}
template <class T>
ONEPASS_FN void n_stream_packed(T* p, vf x) {
  if ((unsigned long)p & 31) return store(p, x);
  __builtin_ia32_movntdq256((nq_x86*)p, n_packed(x, T()));
}
ONEPASS_FN void stream(bf16* p, vf x) { n_stream_packed(p, x); }
ONEPASS_FN void stream(f16* p, vf x) { n_stream_packed(p, x); }
#endif
template <class T>
ONEPASS_FN void store_or_stream(T* p, vf x, bool past_caches) {
  if (past_caches)
    stream(p, x);
  else
    store(p, x);
}

// The end of a row whose length is no multiple of 16: its last 16 elements, of which the first have been seen before
// (`tail_lanes` marks those that have not), or the whole of a row shorter than 16. No element is masked in memory,
// which costs a third of the time at 129 columns. An output must not lie over an input that is read again.
ONEPASS_FN i64 tail_start(i64 cols) { return cols >= 16 ? cols - 16 : 0; }
ONEPASS_FN vm tail_lanes(i64 cols) {
  return cols >= 16 ? lane_index() >= vf((float)(16 - (cols & 15))) : lanes(cols);
}
template <class T>
ONEPASS_FN vf load_tail(const T* row, i64 cols) {
  return cols >= 16 ? load(row + cols - 16) : load_n(row, cols);
}
template <class T, class V>
ONEPASS_FN void store_tail(T* row, V x, i64 cols) {
  if (cols >= 16)
    store(row + cols - 16, x);
  else
    store_n(row, x, cols);
}

// Ask for the 16 elements at p, soon to be read; any address is allowed.
template <class T>
ONEPASS_FN void prefetch(const T* p) {
  for (int i = 0; i < (int)(16 * sizeof(T)); i += 64) __builtin_prefetch((const char*)p + i, 0, 2);
}

// Through a 16-bit type and back: where PyTorch would have stored the value.
#define X(i) r.p[i] = (nf)(n_bf16_bits(a.p[i]) << 16);
ONEPASS_FN vf round_bf16(vf a) ONEPASS_EACH(vf, X)
#undef X
#define X(i) r.p[i] = n_widen(n_narrow(a.p[i], f16()), f16());
ONEPASS_FN vf round_f16(vf a) ONEPASS_EACH(vf, X)
#undef X
#define X(i) r.p[i] = n_widen_e4m3(n_e4m3_bits(a.p[i]));
ONEPASS_FN vf round_e4m3(vf a) ONEPASS_EACH(vf, X)
#undef X
#define X(i) r.p[i] = n_widen_e5m2(n_e5m2_bits(a.p[i]));
ONEPASS_FN vf round_e5m2(vf a) ONEPASS_EACH(vf, X)
#undef X
