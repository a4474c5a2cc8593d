// The second sum reuses the scratch memory while slow threads still read the first.
// onepass-check: x=randn(256) y=out(256) grid=1 block=256
__global__ void normalise(const float* x, float* y) {
  __shared__ float scratch[8];
  const int t = threadIdx.x;
  const float v = x[t];
  float sum = v;
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  if (t % 32 == 0) scratch[t / 32] = sum;
  __syncthreads();
  float mean = 0.0f;
  for (int w = 0; w < 8; ++w) mean += scratch[w] / 256.0f;  // FAULT: shared-race
  float square = (v - mean) * (v - mean);
  for (int o = 16; o > 0; o >>= 1) square += __shfl_xor_sync(0xffffffffu, square, o);
  if (t % 32 == 0) scratch[t / 32] = square;  // FAULT: shared-race
  __syncthreads();
  float variance = 0.0f;
  for (int w = 0; w < 8; ++w) variance += scratch[w] / 256.0f;
  y[t] = (v - mean) * rsqrtf(variance + 1e-5f);
}
