// onepass-check: rows=9 cols=200 x=randn(rows,cols,std=5) y=out(rows,cols) grid=3 block=(32,4) ref=references.py:softmax
#include <cfloat>
#include <cmath>
// A warp a row: idle warps leave, which is right where no barrier follows.
__global__ void softmax(const float* x, float* y, int rows, int cols) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  float high = -FLT_MAX, sum = 0.0f;
  for (int i = threadIdx.x; i < cols; i += 32) {
    const float v = x[row * cols + i], next = max(high, v);
    sum = sum * expf(high - next) + expf(v - next);
    high = next;
  }
  for (int o = 16; o > 0; o /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, high, o), others = __shfl_xor_sync(0xffffffffu, sum, o);
    const float next = fmaxf(high, other);
    sum = sum * __expf(high - next) + others * __expf(other - next);
    high = next;
  }
  for (int i = threadIdx.x; i < cols; i += 32) y[row * cols + i] = expf(x[row * cols + i] - high) / sum;
}
