// The last warp "runs in lockstep": since Volta it does not, and volatile is no barrier.
// onepass-check: x=randn(64) y=out(1) grid=1 block=64
__global__ void sum(const float* x, float* y) {
  __shared__ volatile float s[64];
  const int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  if (t < 32) {
    s[t] = s[t] + s[t + 32];  // FAULT: shared-race
    s[t] = s[t] + s[t + 16];  // FAULT: shared-race
    s[t] = s[t] + s[t + 8];   // FAULT: shared-race
    s[t] = s[t] + s[t + 4];   // FAULT: shared-race
    s[t] = s[t] + s[t + 2];   // FAULT: shared-race
    s[t] = s[t] + s[t + 1];   // FAULT: shared-race
  }
  if (t == 0) y[0] = s[0];
}
