// onepass-check: rows=3 cols=1000 x=randn(rows,cols) y=out(rows) grid=rows block=256 kernel=row_sum<256,float> ref=references.py:row_sum
template <typename T> struct Sum { __device__ T operator()(T a, T b) const { return a + b; } static constexpr T zero = T(0); };
template <int kThreads, class T, template <class> class Op>
__device__ __forceinline__ T block_reduce(T v, Op<T> op) {
  constexpr int kWarps = kThreads / 32;
  __shared__ T parts[kWarps];
#pragma unroll
  for (int o = 16; o; o >>= 1) v = op(v, __shfl_xor_sync(~0u, v, o));
  if constexpr (kWarps > 1) {
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = v;
    __syncthreads();
    v = threadIdx.x < kWarps ? parts[threadIdx.x] : Op<T>::zero;
    if (threadIdx.x < 32)
      for (int o = kWarps / 2; o; o >>= 1) v = op(v, __shfl_xor_sync(0xffffffffu, v, o));
  }
  return v;
}
template <int kThreads, typename T>
__global__ void __launch_bounds__(kThreads) row_sum(T const* __restrict__ x, T* __restrict__ y, int const cols) {
  T v = 0;
  for (int i = threadIdx.x; i < cols; i += kThreads) v += x[size_t(blockIdx.x) * cols + i];
  v = block_reduce<kThreads>(v, Sum<T>{});
  if (threadIdx.x == 0) y[blockIdx.x] = v;
}
