// torch.maximum and minimum: NaN if either is one.
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
ONEPASS_INLINE float op_rsqrt(float x) { return ptx_rsqrt(x); }
