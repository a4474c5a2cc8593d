// Every instruction that C++ can't name, each in one function. A host that runs kernels on the CPU defines
// ONEPASS_ON_HOST and brings functions of the same names.
#ifndef ONEPASS_ON_HOST
#define ONEPASS_DEVICE __device__ __forceinline__

struct alignas(16) u32x4 { unsigned x, y, z, w; };
struct alignas(8) u32x2 { unsigned x, y; };

// Pairs of 16-bit floats, rounded to nearest even; `lo` lands in the low half.
ONEPASS_DEVICE unsigned ptx_cvt_f16x2(float hi, float lo) {
  unsigned r;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
#else
  asm("{\n .reg .b16 h, l;\n cvt.rn.f16.f32 h, %1;\n cvt.rn.f16.f32 l, %2;\n mov.b32 %0, {l, h};\n}"
      : "=r"(r) : "f"(hi), "f"(lo));
#endif
  return r;
}
ONEPASS_DEVICE float ptx_f16_low(unsigned pair) {
  float r;
  asm("{\n .reg .b16 h, l;\n mov.b32 {l, h}, %1;\n cvt.f32.f16 %0, l;\n}" : "=f"(r) : "r"(pair));
  return r;
}
ONEPASS_DEVICE float ptx_f16_high(unsigned pair) {
  float r;
  asm("{\n .reg .b16 h, l;\n mov.b32 {l, h}, %1;\n cvt.f32.f16 %0, h;\n}" : "=f"(r) : "r"(pair));
  return r;
}
#if __CUDA_ARCH__ >= 800
ONEPASS_DEVICE unsigned ptx_cvt_bf16x2(float hi, float lo) {
  unsigned r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
// The larger or smaller; NaN if either is one.
ONEPASS_DEVICE float ptx_max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
ONEPASS_DEVICE float ptx_min_nan(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
#endif

// Special functions, approximate: what a function built on them is off by stands in costs.toml.
#define ONEPASS_PTX1(name, instruction)                        \
  ONEPASS_DEVICE float name(float x) {                         \
    float r;                                                   \
    asm(instruction " %0, %1;" : "=f"(r) : "f"(x));            \
    return r;                                                  \
  }
ONEPASS_PTX1(ptx_ex2_ftz, "ex2.approx.ftz.f32")
ONEPASS_PTX1(ptx_ex2, "ex2.approx.f32")
ONEPASS_PTX1(ptx_lg2, "lg2.approx.f32")
ONEPASS_PTX1(ptx_rcp_ftz, "rcp.approx.ftz.f32")
ONEPASS_PTX1(ptx_rcp, "rcp.approx.f32")
ONEPASS_PTX1(ptx_rsqrt, "rsqrt.approx.f32")
ONEPASS_PTX1(ptx_sqrt, "sqrt.approx.f32")
#undef ONEPASS_PTX1
ONEPASS_DEVICE float ptx_div(float a, float b) {
  float r;
  asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// A grid may begin while the one before it on its stream ends (its launch allows that, runtime/launch_cuda.py): all of its
// threads wait here until that one and its writes are done. The next grid may begin as soon as every block has come here.
ONEPASS_DEVICE void ptx_wait_for_grid_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lines that stay in L2 as long as they can.
ONEPASS_DEVICE unsigned long long ptx_evict_last() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
  return policy;
}

// Global loads. `stream` is read once: it leaves no line in L1. Nobody reads its lines in L2 again either, yet keeping them
// is quicker (1.5 to 5 % on an H200 from 64 MiB on, 2026-11-30, docs/notes/004): what leaves L2 in their place was written.
// `nearby` is read once, in pieces that share sectors with their neighbours': a line stays in L1 for those.
// `cached` is read again by other rows. All go through the read-only path, so the memory must not be written while the
// kernel runs. A policy, where there is one, is a further operand: its place in each text, and itself.
#define ONEPASS_LOADS(kind, modifier, policy16, policy8, policy1, ...)                                    \
  ONEPASS_DEVICE u32x4 ptx_load16_##kind(const void* p) {                                                 \
    u32x4 r;                                                                                              \
    asm("ld.global.nc" modifier ".v4.u32 {%0, %1, %2, %3}, [%4]" policy16 ";"                             \
        : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p) __VA_ARGS__);                               \
    return r;                                                                                             \
  }                                                                                                       \
  ONEPASS_DEVICE u32x2 ptx_load8_##kind(const void* p) {                                                  \
    u32x2 r;                                                                                              \
    asm("ld.global.nc" modifier ".v2.u32 {%0, %1}, [%2]" policy8 ";"                                      \
        : "=r"(r.x), "=r"(r.y) : "l"(p) __VA_ARGS__);                                                     \
    return r;                                                                                             \
  }                                                                                                       \
  ONEPASS_DEVICE unsigned ptx_load4_##kind(const void* p) {                                               \
    unsigned r;                                                                                           \
    asm("ld.global.nc" modifier ".u32 %0, [%1]" policy1 ";" : "=r"(r) : "l"(p) __VA_ARGS__);              \
    return r;                                                                                             \
  }                                                                                                       \
  ONEPASS_DEVICE unsigned ptx_load2_##kind(const void* p) {                                               \
    unsigned short r;                                                                                     \
    asm("ld.global.nc" modifier ".u16 %0, [%1]" policy1 ";" : "=h"(r) : "l"(p) __VA_ARGS__);              \
    return r;                                                                                             \
  }                                                                                                       \
  ONEPASS_DEVICE unsigned ptx_load1_##kind(const void* p) {                                               \
    unsigned r;                                                                                           \
    asm("ld.global.nc" modifier ".u8 %0, [%1]" policy1 ";" : "=r"(r) : "l"(p) __VA_ARGS__);               \
    return r;                                                                                             \
  }
#if __CUDA_ARCH__ >= 800
ONEPASS_LOADS(stream, ".L1::no_allocate.L2::cache_hint", ", %5", ", %3", ", %2", , "l"(ptx_evict_last()))
ONEPASS_LOADS(nearby, ".L2::cache_hint", ", %5", ", %3", ", %2", , "l"(ptx_evict_last()))
#else
ONEPASS_LOADS(stream, ".L1::no_allocate", "", "", "")
ONEPASS_LOADS(nearby, "", "", "", "")
#endif
ONEPASS_LOADS(cached, ".L1::evict_last", "", "", "")
#undef ONEPASS_LOADS

// The same where `there`, else zeros. Written as branches, the loads behind one wait for those before it to be used.
#define ONEPASS_LOADS_IF(kind, modifier, policy16, policy8, policy1, ...)                                 \
  ONEPASS_DEVICE u32x4 ptx_load16_##kind##_if(const void* p, bool there) {                                \
    u32x4 r = {0, 0, 0, 0};                                                                               \
    asm("{\n .reg .pred q;\n setp.ne.u32 q, %5, 0;\n"                                                     \
        "@q ld.global.nc" modifier ".v4.u32 {%0, %1, %2, %3}, [%4]" policy16 ";\n}"                       \
        : "+r"(r.x), "+r"(r.y), "+r"(r.z), "+r"(r.w) : "l"(p), "r"((unsigned)there) __VA_ARGS__);         \
    return r;                                                                                             \
  }                                                                                                       \
  ONEPASS_DEVICE u32x2 ptx_load8_##kind##_if(const void* p, bool there) {                                 \
    u32x2 r = {0, 0};                                                                                     \
    asm("{\n .reg .pred q;\n setp.ne.u32 q, %3, 0;\n"                                                     \
        "@q ld.global.nc" modifier ".v2.u32 {%0, %1}, [%2]" policy8 ";\n}"                                \
        : "+r"(r.x), "+r"(r.y) : "l"(p), "r"((unsigned)there) __VA_ARGS__);                               \
    return r;                                                                                             \
  }                                                                                                       \
  ONEPASS_DEVICE unsigned ptx_load4_##kind##_if(const void* p, bool there) {                              \
    unsigned r = 0;                                                                                       \
    asm("{\n .reg .pred q;\n setp.ne.u32 q, %2, 0;\n@q ld.global.nc" modifier ".u32 %0, [%1]" policy1 ";\n}" \
        : "+r"(r) : "l"(p), "r"((unsigned)there) __VA_ARGS__);                                            \
    return r;                                                                                             \
  }                                                                                                       \
  ONEPASS_DEVICE unsigned ptx_load2_##kind##_if(const void* p, bool there) {                              \
    unsigned short r = 0;                                                                                 \
    asm("{\n .reg .pred q;\n setp.ne.u32 q, %2, 0;\n@q ld.global.nc" modifier ".u16 %0, [%1]" policy1 ";\n}" \
        : "+h"(r) : "l"(p), "r"((unsigned)there) __VA_ARGS__);                                            \
    return r;                                                                                             \
  }                                                                                                       \
  ONEPASS_DEVICE unsigned ptx_load1_##kind##_if(const void* p, bool there) {                              \
    unsigned r = 0;                                                                                       \
    asm("{\n .reg .pred q;\n setp.ne.u32 q, %2, 0;\n@q ld.global.nc" modifier ".u8 %0, [%1]" policy1 ";\n}"  \
        : "+r"(r) : "l"(p), "r"((unsigned)there) __VA_ARGS__);                                            \
    return r;                                                                                             \
  }
#if __CUDA_ARCH__ >= 800
ONEPASS_LOADS_IF(stream, ".L1::no_allocate.L2::cache_hint", ", %6", ", %4", ", %3", , "l"(ptx_evict_last()))
ONEPASS_LOADS_IF(nearby, ".L2::cache_hint", ", %6", ", %4", ", %3", , "l"(ptx_evict_last()))
#else
ONEPASS_LOADS_IF(stream, ".L1::no_allocate", "", "", "")
ONEPASS_LOADS_IF(nearby, "", "", "", "")
#endif
ONEPASS_LOADS_IF(cached, ".L1::evict_last", "", "", "")
#undef ONEPASS_LOADS_IF

// Memory that the kernel may also write: ordinary accesses, which the compiler keeps in order.
ONEPASS_DEVICE u32x4 ptx_load16_plain(const void* p) { return *(const u32x4*)p; }
ONEPASS_DEVICE u32x2 ptx_load8_plain(const void* p) { return *(const u32x2*)p; }
ONEPASS_DEVICE unsigned ptx_load4_plain(const void* p) { return *(const unsigned*)p; }
ONEPASS_DEVICE unsigned ptx_load2_plain(const void* p) { return *(const unsigned short*)p; }
ONEPASS_DEVICE unsigned ptx_load1_plain(const void* p) { return *(const unsigned char*)p; }
#define ONEPASS_LOAD_IF(B, R)                                                            \
  ONEPASS_DEVICE R ptx_load##B##_plain_if(const void* p, bool there) {                   \
    return there ? ptx_load##B##_plain(p) : R{};                                         \
  }
ONEPASS_LOAD_IF(16, u32x4)
ONEPASS_LOAD_IF(8, u32x2)
ONEPASS_LOAD_IF(4, unsigned)
ONEPASS_LOAD_IF(2, unsigned)
ONEPASS_LOAD_IF(1, unsigned)
#undef ONEPASS_LOAD_IF
ONEPASS_DEVICE void ptx_store16_plain(void* p, u32x4 v) { *(u32x4*)p = v; }
ONEPASS_DEVICE void ptx_store8_plain(void* p, u32x2 v) { *(u32x2*)p = v; }
ONEPASS_DEVICE void ptx_store4_plain(void* p, unsigned v) { *(unsigned*)p = v; }
ONEPASS_DEVICE void ptx_store2_plain(void* p, unsigned v) { *(unsigned short*)p = (unsigned short)v; }
ONEPASS_DEVICE void ptx_store1_plain(void* p, unsigned v) { *(unsigned char*)p = (unsigned char)v; }

// Begins to copy 16 bytes to shared memory, both sides aligned, where `there`; and waits for all such copies of this thread.
// Other threads see them after a barrier that follows.
#if __CUDA_ARCH__ >= 800
ONEPASS_DEVICE void ptx_copy16_if(void* to, const void* from, bool there) {
  asm volatile("{\n .reg .pred q;\n setp.ne.u32 q, %2, 0;\n"
               "@q cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %3;\n}"
               :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"((unsigned)there), "l"(ptx_evict_last())
               : "memory");
}
ONEPASS_DEVICE void ptx_copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
ONEPASS_DEVICE void ptx_copy16_if(void* to, const void* from, bool there) {
  if (there) *(u32x4*)to = *(const u32x4*)from;
}
ONEPASS_DEVICE void ptx_copies_wait() {}
#endif

// Global stores of what nobody reads soon: first to leave L2, so that inputs stay.
ONEPASS_DEVICE void ptx_store16_stream(void* p, u32x4 v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
               :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
ONEPASS_DEVICE void ptx_store8_stream(void* p, u32x2 v) {
  asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};"
               :: "l"(p), "r"(v.x), "r"(v.y) : "memory");
}
ONEPASS_DEVICE void ptx_store4_stream(void* p, unsigned v) {
  asm volatile("st.global.cs.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}
ONEPASS_DEVICE void ptx_store2_stream(void* p, unsigned v) {
  asm volatile("st.global.cs.u16 [%0], %1;"
               :: "l"(p), "h"((unsigned short)v) : "memory");
}
ONEPASS_DEVICE void ptx_store1_stream(void* p, unsigned v) {
  asm volatile("st.global.cs.u8 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}

// Copies of 16 bytes from global to this block's shared memory: where a device has them, they pass by the registers, and
// the thread that asked waits for all of its own at once. Hints and policy are those of `stream`.
ONEPASS_DEVICE void ptx_copy16_stream(void* shared, const void* p) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
               :: "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(p), "l"(ptx_evict_last()) : "memory");
#else
  *(u32x4*)shared = ptx_load16_stream(p);
#endif
}
ONEPASS_DEVICE void ptx_copies_done() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

#if __CUDA_ARCH__ >= 900
// Blocks of a thread-block cluster. A thread arrives and later waits, in turns; what it wrote before it arrived, in any
// block's shared memory, is seen by all who have waited. `relaxed` promises nothing of writes: it says that this block has
// begun.
ONEPASS_DEVICE unsigned ptx_cluster_rank() {
  unsigned r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
ONEPASS_DEVICE void ptx_cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;"); }
ONEPASS_DEVICE void ptx_cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
ONEPASS_DEVICE void ptx_cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Stores where `p` of this block's shared memory lies in another block's.
ONEPASS_DEVICE void ptx_cluster_store4(float* p, unsigned rank, float v) {
  asm volatile("{\n .reg .b32 there;\n mapa.shared::cluster.u32 there, %0, %1;\n st.shared::cluster.f32 [there], %2;\n}"
               :: "r"((unsigned)__cvta_generic_to_shared(p)), "r"(rank), "f"(v) : "memory");
}
#endif
#endif
