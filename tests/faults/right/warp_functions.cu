// Votes, matches, warp reductions, counting barriers, compare-and-swap: the largest element and how many are positive.
// onepass-check: n=256 x=randn(n) largest=full(1,value=-100) counts=zeros(4) grid=1 block=n ref=references.py:warp_functions
__device__ float atomic_max(float* address, float value) {
  int* bits = (int*)address;
  int old = *bits, assumed;
  do {
    assumed = old;
    old = atomicCAS(bits, assumed, __float_as_int(fmaxf(value, __int_as_float(assumed))));
  } while (assumed != old);
  return __int_as_float(old);
}
__global__ void statistics(const float* x, float* largest, unsigned* counts) {
  const int t = threadIdx.x, lane = t & 31;
  const float v = x[t];
  atomic_max(largest, v);
  const unsigned positive = __reduce_add_sync(0xffffffffu, unsigned(v > 0));
  const unsigned peers = __match_any_sync(0xffffffffu, v > 0);
  if (lane == __ffs(peers) - 1 && v > 0) atomicAdd(&counts[0], __popc(peers));
  if (lane == 0) atomicAdd(counts + 1, positive);
  const int all = __syncthreads_count(v > 0);
  if (t == 0) counts[2] = all;
  if (__syncthreads_or(v > 1000)) counts[3] = 1;
}
