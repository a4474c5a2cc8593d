// onepass-check: n=1000 x=randn(n) y=out(n) a=2.5 grid=2 block=128 ref=references.py:affine
template <class F>
__device__ void each(int n, F f) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) f(i);
}
__global__ void affine(const float* x, float* y, float a, int n) {
  auto f = [=] __device__(int i) { y[i] = fmaf(a, x[i], 1.0f); };
  each(n, f);
}
