// The old idiom: volatile and no __syncwarp().
// onepass-check: x=randn(64) y=out(1) grid=1 block=64
__global__ void sum(const float* x, float* y) {
  __shared__ float s[64];
  const int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  if (t < 32) {
    volatile float* v = s;
    v[t] += v[t + 32];  // FAULT: shared-race
    v[t] += v[t + 16];  // FAULT: shared-race
    v[t] += v[t + 8];   // FAULT: shared-race
    v[t] += v[t + 4];   // FAULT: shared-race
    v[t] += v[t + 2];   // FAULT: shared-race
    v[t] += v[t + 1];   // FAULT: shared-race
  }
  if (t == 0) y[0] = s[0];  // FAULT: shared-race
}
