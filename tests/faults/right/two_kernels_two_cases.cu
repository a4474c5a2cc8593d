// onepass-check[sum]: kernel=sum_rows rows=4 cols=70 x=randn(rows,cols) out=out(rows) grid=rows block=32 ref=references.py:sum_rows
// onepass-check[scale]: kernel=scale n=100 a=randn(n) b=out(n) factor=2 grid=1 block=128 ref=references.py:scale2
__global__ void sum_rows(const float* x, float* out, int cols) {
  float v = 0.f;
  for (int i = threadIdx.x; i < cols; i += 32) v += x[blockIdx.x * cols + i];
  for (int o = 16; o; o /= 2) v += __shfl_down_sync(~0u, v, o);
  if (threadIdx.x == 0) out[blockIdx.x] = v;
}
__global__ void scale(const float* a, float* b, float factor, int n) {
  const int i = threadIdx.x;
  if (i < n) b[i] = factor * a[i];
}
