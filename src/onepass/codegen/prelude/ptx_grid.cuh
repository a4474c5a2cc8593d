// What blocks of a grid tell each other while all of them run: words of a number and a value, in global memory. A word is
// written and read as a whole, and nothing else goes from block to block, so no order of other accesses is asked for.
#ifndef ONEPASS_ON_HOST
ONEPASS_DEVICE void ptx_grid_put(unsigned long long* p, unsigned number, float value) {
  const unsigned long long word = (unsigned long long)number << 32 | __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(p), "l"(word) : "memory");
}
ONEPASS_DEVICE unsigned long long ptx_grid_get(const unsigned long long* p) {
  unsigned long long word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(p) : "memory");
  return word;
}
#endif
