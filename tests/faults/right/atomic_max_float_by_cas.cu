// onepass-check: n=300 x=randn(n) y=full(1,value=-1000) grid=3 block=128 ref=references.py:largest
__device__ static float atomicMaxFloat(float* address, float value) {
  int* address_as_int = (int*)address;
  int old = *address_as_int, assumed;
  while (value > __int_as_float(old)) {
    assumed = old;
    old = atomicCAS(address_as_int, assumed, __float_as_int(value));
    if (old == assumed) break;
  }
  return __int_as_float(old);
}
__global__ void largest(const float* x, float* y, int n) {
  __shared__ float best;
  if (threadIdx.x == 0) best = -INFINITY;
  __syncthreads();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicMaxFloat(&best, x[i]);
  __syncthreads();
  if (!threadIdx.x) atomicMaxFloat(y, best);
}
