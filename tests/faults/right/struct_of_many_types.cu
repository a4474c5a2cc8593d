// onepass-check: n=64 x=randn(n) y=out(n) factor=2 grid=1 block=64 ref=references.py:twice
struct Params {
  float* __restrict__ y;
  const float* __restrict__ x;
  float factor;
  unsigned int n;
};
__global__ void __launch_bounds__(64, 2) twice(const __grid_constant__ Params p) {
  const unsigned i = threadIdx.x;
  if (i < p.n) p.y[i] = p.factor * p.x[i];
}
