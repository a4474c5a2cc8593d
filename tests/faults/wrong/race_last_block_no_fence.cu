// onepass-check: x=randn(256) part=out(4) count=zeros(1) y=out(1) grid=4 block=64
__global__ void sum(const float* x, float* part, unsigned* count, float* y) {
  __shared__ bool last;
  const int t = threadIdx.x;
  float v = x[blockIdx.x * 64 + t];
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  __shared__ float s[2];
  if (t % 32 == 0) s[t / 32] = v;
  __syncthreads();
  if (t == 0) {
    part[blockIdx.x] = s[0] + s[1];  // FAULT: global-race
    last = atomicAdd(count, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && t == 0) {
    float all = 0.0f;
    for (int b = 0; b < gridDim.x; ++b) all += part[b];  // FAULT: global-race
    y[0] = all;
  }
}
