// The second warp has 16 lanes. Sums over sixteen read lanes that are there, whatever the mask names.
// onepass-check: x=randn(48) y=out(3) grid=1 block=48 ref=references.py:sums_of_16
__global__ void sums(const float* x, float* y) {
  float v = x[threadIdx.x];
  for (int offset = 8; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
  if (threadIdx.x % 16 == 0) y[threadIdx.x / 16] = v;
}
