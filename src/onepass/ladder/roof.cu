// The roof: READS streams in, WRITES streams out, nothing else. Every stream's vectors are combined, so that no load is idle.
// Bytes: 16 * n * (READS + WRITES).
struct alignas(16) quad { unsigned x, y, z, w; };

__device__ __forceinline__ quad load(const quad* p_g) {
  quad r;
#if __CUDA_ARCH__ >= 800
  unsigned long long policy;
  asm("createpolicy.fractional." POLICY ".b64 %0;" : "=l"(policy));
  asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
      : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p_g), "l"(policy));
#else
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p_g));
#endif
  return r;
}

struct Args { const quad* in_g[READS]; quad* out_g[WRITES]; long long n; };  // [n] each

extern "C" __global__ void __launch_bounds__(THREADS) roof(const __grid_constant__ Args a) {
  const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (i >= a.n) return;
  quad v_r[READS];
#pragma unroll
  for (int j = 0; j < READS; ++j) v_r[j] = load(a.in_g[j] + i);
  quad s = v_r[0];
#pragma unroll
  for (int j = 1; j < READS; ++j) { s.x ^= v_r[j].x; s.y ^= v_r[j].y; s.z ^= v_r[j].z; s.w ^= v_r[j].w; }
#pragma unroll
  for (int j = 0; j < WRITES; ++j)
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(a.out_g[j] + i), "r"(s.x), "r"(s.y), "r"(s.z), "r"(s.w) : "memory");
}
