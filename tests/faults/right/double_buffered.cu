// Two halves of shared memory in turn, one barrier a trip; warp 0 alone loads.
// onepass-check: rows=2 cols=320 x=randn(rows,cols) y=out(rows) grid=rows block=64 ref=references.py:row_sum
__global__ void row_sum(const float* x, float* y, int cols) {
  __shared__ float stage[2][32];
  __shared__ float sums[32];
  const int t = threadIdx.x;
  const float* row = x + blockIdx.x * cols;
  float sum = 0.0f;
  if (t < 32) stage[0][t] = row[t];
  __syncthreads();
  for (int trip = 0; trip < cols / 32; ++trip) {
    if (t < 32 && trip + 1 < cols / 32) stage[(trip + 1) & 1][t] = row[(trip + 1) * 32 + t];
    if (t >= 32) sum += stage[trip & 1][t - 32];
    __syncthreads();
  }
  if (t >= 32) sums[t - 32] = sum;
  __syncthreads();
  if (t < 32) {
    float v = sums[t];
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    if (t == 0) y[blockIdx.x] = v;
  }
}
