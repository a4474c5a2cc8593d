// A full mask names lanes that have returned, and in the second warp lanes that never were: those that are left vote.
// onepass-check: x=randn(40) y=out(40) n=40 grid=1 block=48 ref=references.py:votes
__global__ void vote(const float* x, float* y, int n) {
  const int t = threadIdx.x;
  if (t >= n) return;
  const bool any = __any_sync(0xffffffffu, x[t] < -9.0f), all = __all_sync(0xffffffffu, x[t] > -9.0f);
  y[t] = 100.0f * any + 10.0f * all + 0.1f * __popc(__ballot_sync(0xffffffffu, 1));
}
