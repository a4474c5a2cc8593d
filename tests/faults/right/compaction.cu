// The order of the results depends on the order of the threads, and is meant to.
// onepass-check: n=500 x=randn(n) y=out(n) count=zeros(1) grid=4 block=128 ref=references.py:compact
__global__ void compact(const float* x, float* y, int* count, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const bool keep = i < n && x[i] > 0.0f;
  const unsigned votes = __ballot_sync(0xffffffffu, keep);
  const int lane = threadIdx.x % 32;
  int base = 0;
  if (lane == 0) base = atomicAdd(count, __popc(votes));
  base = __shfl_sync(0xffffffffu, base, 0);
  if (keep) y[base + __popc(votes & ((1u << lane) - 1))] = x[i];
}
