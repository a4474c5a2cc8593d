// Integers and the conversions between what kernels compute with: vl is 16 integers of 64 bits.

struct vl {
  i64 v[16];
  vl() = default;
  __attribute__((always_inline)) vl(i64 s) {
    for (int i = 0; i < 16; i++) v[i] = s;
  }
};

#define ONEPASS_INT(NAME, EXPR)                       \
  ONEPASS_FN vl NAME(vl a, vl b) {                    \
    vl r;                                             \
    for (int i = 0; i < 16; i++) r.v[i] = EXPR;       \
    return r;                                         \
  }
// Unsigned arithmetic wraps, as PyTorch's integers do.
ONEPASS_INT(operator+, (i64)((unsigned long long)a.v[i] + (unsigned long long)b.v[i]))
ONEPASS_INT(operator-, (i64)((unsigned long long)a.v[i] - (unsigned long long)b.v[i]))
ONEPASS_INT(operator*, (i64)((unsigned long long)a.v[i] * (unsigned long long)b.v[i]))
ONEPASS_INT(op_max, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
ONEPASS_INT(op_min, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
#undef ONEPASS_INT
ONEPASS_FN vl operator-(vl a) { return vl(0) - a; }
ONEPASS_FN vl op_abs(vl a) { return op_max(a, -a); }
ONEPASS_FN vl op_relu(vl a) { return op_max(a, vl(0)); }

#define ONEPASS_COMPARE(OP)                                                                              \
  ONEPASS_FN vm operator OP(vl a, vl b) {                                                                \
    vm r;                                                                                                \
    for (int i = 0; i < 16; i++) r.p[i / ONEPASS_NATIVE][i % ONEPASS_NATIVE] = -(int)(a.v[i] OP b.v[i]); \
    return r;                                                                                            \
  }
ONEPASS_COMPARE(==)
ONEPASS_COMPARE(!=)
ONEPASS_COMPARE(<)
ONEPASS_COMPARE(<=)
ONEPASS_COMPARE(>)
ONEPASS_COMPARE(>=)
#undef ONEPASS_COMPARE

ONEPASS_FN bool mask_lane(vm m, int i) { return m.p[i / ONEPASS_NATIVE][i % ONEPASS_NATIVE] != 0; }
ONEPASS_FN vl op_where(vm m, vl a, vl b) {
  vl r;
  for (int i = 0; i < 16; i++) r.v[i] = mask_lane(m, i) ? a.v[i] : b.v[i];
  return r;
}
ONEPASS_FN vm mask_all(bool on) {
  vm r;
  for (int i = 0; i < ONEPASS_PART_COUNT; i++) r.p[i] = n_splat_i(on ? -1 : 0);
  return r;
}
ONEPASS_FN i64 lane(vl a, int i) { return a.v[i]; }
ONEPASS_FN vl iota(i64 first, i64 step) {
  vl r;
  for (int i = 0; i < 16; i++) r.v[i] = first + i * step;
  return r;
}

ONEPASS_FN vf to_f(vf a) { return a; }
ONEPASS_FN vf to_f(vm a) { return to_float(a); }
ONEPASS_FN vf to_f(vl a) {
  vf r;
  for (int i = 0; i < 16; i++) r.p[i / ONEPASS_NATIVE][i % ONEPASS_NATIVE] = (float)a.v[i];
  return r;
}
ONEPASS_FN vl to_i(vl a) { return a; }
ONEPASS_FN vl to_i(vf a) {
  vl r;
  for (int i = 0; i < 16; i++) r.v[i] = (i64)a.p[i / ONEPASS_NATIVE][i % ONEPASS_NATIVE];
  return r;
}
ONEPASS_FN vl to_i(vm a) {
  vl r;
  for (int i = 0; i < 16; i++) r.v[i] = mask_lane(a, i);
  return r;
}
ONEPASS_FN vm to_b(vm a) { return a; }
ONEPASS_FN vm to_b(vf a) { return to_mask(a); }
ONEPASS_FN vm to_b(vl a) { return a != vl(0); }
ONEPASS_FN vm op_not(vm a) { return ~a; }

template <class T>
ONEPASS_FN vl load_int(const T* p) {
  vl r;
  for (int i = 0; i < 16; i++) r.v[i] = (i64)p[i];
  return r;
}
template <class T>
ONEPASS_FN vl load_int_n(const T* p, i64 n) {
  vl r(0);
  for (i64 i = 0; i < n; i++) r.v[i] = (i64)p[i];
  return r;
}
template <class T>
ONEPASS_FN vl load_int_s(const T* p, i64 step) {
  vl r;
  for (int i = 0; i < 16; i++) r.v[i] = (i64)p[i * step];
  return r;
}
template <class T>
ONEPASS_FN vl load_int_sn(const T* p, i64 step, i64 n) {
  vl r(0);
  for (i64 i = 0; i < n; i++) r.v[i] = (i64)p[i * step];
  return r;
}
template <class T>
ONEPASS_FN vl load_int_1(const T* p) { return vl((i64)*p); }
ONEPASS_FN vm load_mask_1(const b8* p) { return mask_all(*p); }
ONEPASS_FN vm load_mask_s(const b8* p, i64 step) { return to_mask(load_s(p, step)); }
ONEPASS_FN vm load_mask_sn(const b8* p, i64 step, i64 n) { return to_mask(load_sn(p, step, n)); }

template <class T>
ONEPASS_FN void store_n(T* p, vl x, i64 n) {
  for (i64 i = 0; i < n; i++) p[i] = (T)x.v[i];
}
template <class T>
ONEPASS_FN void store(T* p, vl x) { store_n(p, x, 16); }
template <class T>
ONEPASS_FN void store_sn(T* p, i64 step, vl x, i64 n) {
  for (i64 i = 0; i < n; i++) p[i * step] = (T)x.v[i];
}
template <class T>
ONEPASS_FN void store_s(T* p, i64 step, vl x) { store_sn(p, step, x, 16); }
ONEPASS_FN void store_s(b8* p, i64 step, vm m) { store_s(p, step, to_float(m)); }
ONEPASS_FN void store_sn(b8* p, i64 step, vm m, i64 n) { store_sn(p, step, to_float(m), n); }
ONEPASS_FN vf op_div(vf a, vf b) { return a / b; }
