// Warp 0 waits at the barrier, and half of warp 1 in a vote, for lanes that return.
// onepass-check: x=randn(64) y=out(64) grid=1 block=64 ref=references.py:left_waiting
__global__ void leave(const float* x, float* y) {
  __shared__ float s[64];
  const int t = threadIdx.x;
  s[t] = x[t];
  y[t] = 0.0f;
  if (t >= 32) {
    if (t < 48) y[t] = __popc(__ballot_sync(0xffffffffu, 1));
    return;
  }
  __syncthreads();
  y[t] = s[t + 32];
}
