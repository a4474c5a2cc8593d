// CUDA C++ for a host compiler: the keywords, the built-in variables, the collectives, and a stand-in for each
// prelude function that holds inline PTX. Kernel texts follow, each in its own namespace.
#pragma once
#include "runtime.hpp"

#define ONEPASS_ON_HOST 1
#define __CUDACC__ 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __ldg(p) (*(p))

// The thread's own indices: `const` here, so that reading them is not taken for an access to shared memory. The
// runtime sets them before it resumes a fiber, and each fiber always sees its own.
extern const Index3 onepass_thread, onepass_block, onepass_block_size, onepass_grid_size;
#define threadIdx onepass_thread
#define blockIdx onepass_block
#define blockDim onepass_block_size
#define gridDim onepass_grid_size
constexpr int warpSize = 32;

#define ONEPASS_MEMBER inline __attribute__((always_inline))
#define ONEPASS_HOST static inline __attribute__((always_inline, unused))
#define ONEPASS_SITE uint64_t site = __builtin_LINE()

// ---- bits ----

template <class To, class From>
ONEPASS_HOST To onepass_bits(From v) {
  static_assert(sizeof(To) == sizeof(From), "sizes differ");
  To r;
  __builtin_memcpy(&r, &v, sizeof r);
  return r;
}
ONEPASS_HOST unsigned __float_as_uint(float v) { return onepass_bits<unsigned>(v); }
ONEPASS_HOST int __float_as_int(float v) { return onepass_bits<int>(v); }
ONEPASS_HOST float __uint_as_float(unsigned v) { return onepass_bits<float>(v); }
ONEPASS_HOST float __int_as_float(int v) { return onepass_bits<float>(v); }
ONEPASS_HOST long long __double_as_longlong(double v) { return onepass_bits<long long>(v); }
ONEPASS_HOST double __longlong_as_double(long long v) { return onepass_bits<double>(v); }
ONEPASS_HOST int __popc(unsigned v) { return __builtin_popcount(v); }
ONEPASS_HOST int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
ONEPASS_HOST int __ffs(int v) { return __builtin_ffs(v); }
ONEPASS_HOST unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
ONEPASS_HOST unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return unsigned((uint64_t(high) << 32 | low) << (by & 31) >> 32);
}
ONEPASS_HOST int __float2int_rn(float v) { return int(__builtin_rintf(v)); }

// ---- collectives ----

ONEPASS_HOST void __syncthreads(ONEPASS_SITE) { onepass_barrier(site); }
ONEPASS_HOST void __syncwarp(unsigned mask = 0xffffffffu, ONEPASS_SITE) {
  onepass_exchange(mask, exchange_sync, 0, 0, site);
}
template <class T>
ONEPASS_HOST T onepass_shuffle(unsigned mask, T v, int source, uint64_t site) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 2, 4 or 8 bytes");
  uint64_t word = 0;
  __builtin_memcpy(&word, &v, sizeof v);
  word = onepass_exchange(mask, exchange_shuffle, word, source, site);
  __builtin_memcpy(&v, &word, sizeof v);
  return v;
}
ONEPASS_HOST int onepass_lane() {
  return int((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32);
}
template <class T>
ONEPASS_HOST T __shfl_sync(unsigned mask, T v, int from, int width = 32, ONEPASS_SITE) {
  const int lane = onepass_lane();
  return onepass_shuffle(mask, v, (lane & ~(width - 1)) | (from & (width - 1)), site);
}
template <class T>
ONEPASS_HOST T __shfl_xor_sync(unsigned mask, T v, int flip, int width = 32, ONEPASS_SITE) {
  const int lane = onepass_lane(), from = lane ^ flip;
  return onepass_shuffle(mask, v, from < (lane & ~(width - 1)) + width ? from : lane, site);
}
template <class T>
ONEPASS_HOST T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, ONEPASS_SITE) {
  const int lane = onepass_lane(), from = lane + int(by);
  return onepass_shuffle(mask, v, from < (lane & ~(width - 1)) + width ? from : lane, site);
}
template <class T>
ONEPASS_HOST T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, ONEPASS_SITE) {
  const int lane = onepass_lane(), from = lane - int(by);
  return onepass_shuffle(mask, v, from >= (lane & ~(width - 1)) ? from : lane, site);
}
ONEPASS_HOST unsigned __ballot_sync(unsigned mask, int p, ONEPASS_SITE) {
  return unsigned(onepass_exchange(mask, exchange_ballot, p != 0, 0, site));
}
ONEPASS_HOST int __any_sync(unsigned mask, int p, ONEPASS_SITE) {
  return onepass_exchange(mask, exchange_ballot, p != 0, 0, site) != 0;
}
ONEPASS_HOST int __all_sync(unsigned mask, int p, ONEPASS_SITE) {
  return onepass_exchange(mask, exchange_ballot, p == 0, 0, site) == 0;  // of the lanes that are there, none says no
}
ONEPASS_HOST void __threadfence() { onepass_fence(); }
ONEPASS_HOST void __threadfence_block() { asm volatile("" ::: "memory"); }
ONEPASS_HOST void __trap() { onepass_trap(); }

// ---- global memory, 1 to 16 bytes ----

template <class T>
ONEPASS_HOST T onepass_get(const void* p, int path) {
  static_assert(sizeof(T) <= 16, "one access moves at most 16 bytes");
  const Bytes16 bytes = onepass_load(p, sizeof(T), path);
  T v;
  __builtin_memcpy(&v, &bytes, sizeof v);
  return v;
}
template <class T>
ONEPASS_HOST void onepass_put(void* p, T v, int path) {
  Bytes16 bytes{};
  __builtin_memcpy(&bytes, &v, sizeof v);
  onepass_store(p, bytes, sizeof(T), path);
}

// ---- atomics: fibers never run at once, so a plain update is one ----

template <class T, class F>
ONEPASS_HOST T onepass_atomic(T* p, F update) {
  const T old = onepass_get<T>(p, atomic_path);
  onepass_put<T>(p, update(old), atomic_path);
  return old;
}
// The value is converted to what the pointer points to, as by CUDA's overloads.
template <class T>
struct onepass_identity {
  typedef T type;
};
template <class T>
using onepass_same = typename onepass_identity<T>::type;
template <class T>
ONEPASS_HOST T atomicAdd(T* p, onepass_same<T> v) { return onepass_atomic(p, [=](T old) { return T(old + v); }); }
template <class T>
ONEPASS_HOST T atomicExch(T* p, onepass_same<T> v) { return onepass_atomic(p, [=](T) { return v; }); }
template <class T>
ONEPASS_HOST T atomicMax(T* p, onepass_same<T> v) { return onepass_atomic(p, [=](T old) { return old < v ? v : old; }); }
template <class T>
ONEPASS_HOST T atomicMin(T* p, onepass_same<T> v) { return onepass_atomic(p, [=](T old) { return v < old ? v : old; }); }
template <class T>
ONEPASS_HOST T atomicCAS(T* p, onepass_same<T> expected, onepass_same<T> v) {
  return onepass_atomic(p, [=](T old) { return old == expected ? v : old; });
}
ONEPASS_HOST unsigned atomicInc(unsigned* p, unsigned limit) {
  return onepass_atomic(p, [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}

// ---- math that CUDA C++ has without a header ----

#define ONEPASS_MATH1(name) ONEPASS_HOST float name(float x) { return __builtin_##name(x); }
#define ONEPASS_MATH2(name) ONEPASS_HOST float name(float x, float y) { return __builtin_##name(x, y); }
ONEPASS_MATH1(fabsf)
ONEPASS_MATH1(floorf)
ONEPASS_MATH1(ceilf)
ONEPASS_MATH1(truncf)
ONEPASS_MATH1(rintf)
ONEPASS_MATH1(sqrtf)
ONEPASS_MATH2(fminf)
ONEPASS_MATH2(fmaxf)
ONEPASS_MATH2(fmodf)
ONEPASS_MATH2(powf)
ONEPASS_MATH2(copysignf)
ONEPASS_HOST float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
ONEPASS_HOST float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }  // NaN gives 0
ONEPASS_HOST bool isnan(float x) { return x != x; }
ONEPASS_HOST bool isinf(float x) { return __builtin_isinf(x); }
ONEPASS_HOST bool signbit(float x) { return __builtin_signbit(x); }
ONEPASS_HOST int min(int a, int b) { return a < b ? a : b; }
ONEPASS_HOST int max(int a, int b) { return a > b ? a : b; }
ONEPASS_HOST long long min(long long a, long long b) { return a < b ? a : b; }
ONEPASS_HOST long long max(long long a, long long b) { return a > b ? a : b; }

// ---- how a launch reaches a kernel ----

// Parameters lie in the argument bytes as CUDA lays them out: in order, each at a multiple of its alignment.
template <class... P>
ONEPASS_HOST void onepass_call(void (*kernel)(P...), const void* args) {
  uint64_t at = 0;
  auto next = [&at](uint64_t bytes, uint64_t alignment) {
    const uint64_t begin = (at + alignment - 1) / alignment * alignment;
    at = begin + bytes;
    return begin;
  };
  struct Packed {
    uint64_t offset;
  } packed[sizeof...(P) + 1] = {Packed{next(sizeof(P), alignof(P))}..., Packed{0}};
  int i = 0;
  struct Invoke {
    Invoke(void (*kernel)(P...), P... p) { kernel(p...); }
  };
  Invoke{kernel, *reinterpret_cast<const P*>(static_cast<const char*>(args) + packed[i++].offset)...};
}

struct OnepassKernel {
  void (*entry)(const void* args);
  void* shared_begin;
  void* shared_end;
};
