// The programming guide's own atomicAdd for double.
// onepass-check: n=300 x=randn(n) y=zeros(1) grid=3 block=128 ref=references.py:total
__device__ double atomic_add(double* address, double v) {
  unsigned long long int* as_bits = (unsigned long long int*)address;
  unsigned long long int old = *as_bits, assumed;
  do {
    assumed = old;
    old = atomicCAS(as_bits, assumed, __double_as_longlong(v + __longlong_as_double(assumed)));
  } while (assumed != old);
  return __longlong_as_double(old);
}
__global__ void total(const double* x, double* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomic_add(y, x[i]);
}
