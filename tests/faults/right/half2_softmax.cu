// onepass-check: rows=4 cols=128 x=randn(rows,cols) y=out(rows,cols) grid=rows block=32 ref=references.py:softmax
#include <cuda_fp16.h>
__global__ void softmax(const __half* x, half* y, int cols) {
  const __half2* row = reinterpret_cast<const __half2*>(x + blockIdx.x * cols);
  float high = -INFINITY, sum = 0.f;
  for (int i = threadIdx.x; i < cols / 2; i += warpSize) {
    const float2 v = __half22float2(row[i]);
    high = fmaxf(high, fmaxf(v.x, v.y));
  }
  for (int o = 16; o > 0; o >>= 1) high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, o));
  for (int i = threadIdx.x; i < cols / 2; i += warpSize) {
    const float2 v = __half22float2(row[i]);
    sum += expf(v.x - high) + expf(v.y - high);
  }
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, o);
  for (int i = threadIdx.x; i < cols; i += 32)
    y[blockIdx.x * cols + i] = __float2half(expf(__half2float(x[blockIdx.x * cols + i]) - high) / sum);
}
