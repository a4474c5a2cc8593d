// Stand-ins for the functions of the prelude's ptx.cuh.
// Conversions and loads are exact. An approximate instruction is off by all that the PTX ISA (9.1, section 9.7.3) allows,
// in a direction drawn from the bits of its argument: ex2 and div.full 2 ulp, rcp 1 ulp, sqrt 2^-23 and rsqrt 2^-22.9
// relative, lg2 2^-22 absolute in (0.5, 2) and relative outside. Equal arguments give equal results, as on a device.
// One direction an argument does not try every combination: it is a hard case, not a proof.
#pragma once

struct alignas(16) u32x4 { unsigned x, y, z, w; };
struct alignas(8) u32x2 { unsigned x, y; };

// ---- conversions ----

ONEPASS_HOST unsigned onepass_f16_bits(float v) {
  const unsigned u = __float_as_uint(v), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return 0x7fffu;                 // NaN, as the instruction writes it
  if (a >= 0x477ff000u) return sign | 0x7c00u;         // 65520 and above round to infinity
  if (a < 0x38800000u) {                               // subnormal: let an addition round at 2^-24
    const float magic = 0.5f;
    return sign | (__float_as_uint(__uint_as_float(a) + magic) - __float_as_uint(magic));
  }
  return sign | ((a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13);
}
ONEPASS_HOST float onepass_f16_value(unsigned h) {
  const unsigned sign = (h & 0x8000u) << 16, a = h & 0x7fffu;
  if (a >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (a & 0x3ffu) << 13);
  if (a < 0x400u) {
    const float v = float(a) * 0x1p-24f;
    return sign ? -v : v;
  }
  return __uint_as_float(sign | ((a << 13) + 0x38000000u));
}
ONEPASS_HOST unsigned ptx_cvt_f16x2(float hi, float lo) { return onepass_f16_bits(hi) << 16 | onepass_f16_bits(lo); }
ONEPASS_HOST float ptx_f16_low(unsigned pair) { return onepass_f16_value(pair & 0xffffu); }
ONEPASS_HOST float ptx_f16_high(unsigned pair) { return onepass_f16_value(pair >> 16); }
ONEPASS_HOST unsigned onepass_bf16_bits(float v) {
  const unsigned u = __float_as_uint(v);
  return v != v ? 0x7fffu : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
ONEPASS_HOST unsigned ptx_cvt_bf16x2(float hi, float lo) {
  return onepass_bf16_bits(hi) << 16 | onepass_bf16_bits(lo);
}
ONEPASS_HOST float ptx_max_nan(float a, float b) {
  if (a != a || b != b) return __uint_as_float(0x7fffffffu);
  return a > b || (a == b && !signbit(a)) ? a : b;  // max(-0, +0) = +0
}
ONEPASS_HOST float ptx_min_nan(float a, float b) {
  if (a != a || b != b) return __uint_as_float(0x7fffffffu);
  return a < b || (a == b && signbit(a)) ? a : b;
}

// ---- approximate instructions ----

// 1 or -1 by the argument's bits: a worst case that neither cancels nor repeats over neighbours.
ONEPASS_HOST double onepass_sign_of_error(float x) {
  return (__float_as_uint(x) * 2654435769u >> 17 & 1u) ? 1.0 : -1.0;
}
ONEPASS_HOST float onepass_flush(float v) { return __builtin_fabsf(v) < 0x1p-126f ? v * 0.0f : v; }
ONEPASS_HOST float onepass_off(double exact, float x, double relative) {
  return float(exact * (1.0 + relative * onepass_sign_of_error(x)));
}
// The correctly rounded value, some units in the last place further from or nearer to zero; zero, infinity and NaN stay.
ONEPASS_HOST float onepass_off_ulps(double exact, float x, int ulps) {
  const float rounded = float(exact);
  const float magnitude = __builtin_fabsf(rounded);
  if (!(magnitude > 0x1p-149f * ulps && magnitude < __builtin_inff())) return rounded;
  const unsigned up = __float_as_uint(rounded) + ulps, down = __float_as_uint(rounded) - ulps;
  return __uint_as_float(onepass_sign_of_error(x) > 0 ? up : down);
}
ONEPASS_HOST float ptx_ex2(float x) { return x == 0.0f ? 1.0f : onepass_off_ulps(__builtin_exp2(double(x)), x, 2); }
ONEPASS_HOST float ptx_ex2_ftz(float x) { return onepass_flush(ptx_ex2(onepass_flush(x))); }
ONEPASS_HOST float ptx_rcp(float x) { return onepass_off_ulps(1.0 / double(x), x, 1); }
ONEPASS_HOST float ptx_rcp_ftz(float x) { return onepass_flush(ptx_rcp(onepass_flush(x))); }
ONEPASS_HOST float ptx_div(float a, float b) { return onepass_off_ulps(double(a) / double(b), a, 2); }
ONEPASS_HOST float ptx_sqrt(float x) { return onepass_off(__builtin_sqrt(double(x)), x, 0x1p-23); }
ONEPASS_HOST float ptx_rsqrt(float x) {
  return onepass_off(1.0 / __builtin_sqrt(double(x)), x, 0x1.126p-23);  // 2^-22.9
}
ONEPASS_HOST float ptx_lg2(float x) {
  const double exact = __builtin_log2(double(x));
  if (x > 0.5f && x < 2.0f) return float(exact + 0x1p-22 * onepass_sign_of_error(x));
  return onepass_off(exact, x, 0x1p-22);
}

// ---- memory ----

#define ONEPASS_LOAD(kind, path, bytes, type, stored)                                                     \
  ONEPASS_HOST type ptx_load##bytes##_##kind(const void* p) { return onepass_get<stored>(p, path); }      \
  ONEPASS_HOST type ptx_load##bytes##_##kind##_if(const void* p, bool there) {                            \
    return there ? ptx_load##bytes##_##kind(p) : type{};                                                  \
  }
#define ONEPASS_LOADS(kind, path)                        \
  ONEPASS_LOAD(kind, path, 16, u32x4, u32x4)             \
  ONEPASS_LOAD(kind, path, 8, u32x2, u32x2)              \
  ONEPASS_LOAD(kind, path, 4, unsigned, unsigned)        \
  ONEPASS_LOAD(kind, path, 2, unsigned, unsigned short)  \
  ONEPASS_LOAD(kind, path, 1, unsigned, unsigned char)
ONEPASS_LOADS(stream, read_only_path)
ONEPASS_LOADS(nearby, read_only_path)
ONEPASS_LOADS(cached, read_only_path)
ONEPASS_LOADS(plain, plain_path)
#undef ONEPASS_LOADS
#undef ONEPASS_LOAD

// Copies at once: that a text waits for its copies is looked at where it is printed.
ONEPASS_HOST void ptx_copy16_if(void* to, const void* from, bool there) {
  if (there) *(u32x4*)to = onepass_get<u32x4>(from, plain_path);
}
ONEPASS_HOST void ptx_copies_wait() {}

#define ONEPASS_STORES(kind)                                                                                     \
  ONEPASS_HOST void ptx_store16_##kind(void* p, u32x4 v) { onepass_put(p, v, plain_path); }                      \
  ONEPASS_HOST void ptx_store8_##kind(void* p, u32x2 v) { onepass_put(p, v, plain_path); }                       \
  ONEPASS_HOST void ptx_store4_##kind(void* p, unsigned v) { onepass_put(p, v, plain_path); }                    \
  ONEPASS_HOST void ptx_store2_##kind(void* p, unsigned v) { onepass_put(p, (unsigned short)v, plain_path); }    \
  ONEPASS_HOST void ptx_store1_##kind(void* p, unsigned v) { onepass_put(p, (unsigned char)v, plain_path); }
ONEPASS_STORES(stream)
ONEPASS_STORES(plain)
#undef ONEPASS_STORES

ONEPASS_HOST void ptx_copy16_stream(void* shared, const void* p) { onepass_copy(shared, onepass_load(p, 16, read_only_path)); }
ONEPASS_HOST void ptx_copies_done() { onepass_copies_done(); }

// A launch runs alone.
ONEPASS_HOST void ptx_wait_for_grid_before() {}

// ---- grids whose blocks wait for each other ----

ONEPASS_HOST void ptx_grid_put(unsigned long long* p, unsigned number, float value) {
  onepass_put(p, (unsigned long long)number << 32 | __float_as_uint(value), atomic_path);
  onepass_grid_wrote();
}
ONEPASS_HOST unsigned long long ptx_grid_get(const unsigned long long* p) {
  onepass_grid_reads(p);
  return onepass_get<unsigned long long>(p, atomic_path);
}

// ---- clusters ----

ONEPASS_HOST unsigned ptx_cluster_rank() { return onepass_cluster_rank(); }
ONEPASS_HOST void ptx_cluster_arrive_relaxed() { onepass_cluster_arrive(true); }
ONEPASS_HOST void ptx_cluster_arrive() { onepass_cluster_arrive(false); }
ONEPASS_HOST void ptx_cluster_wait(ONEPASS_SITE) { onepass_cluster_wait(site); }
ONEPASS_HOST void ptx_cluster_store4(float* p, unsigned rank, float v) { onepass_cluster_store(p, rank, v); }
