// onepass-check: n=1001 x=randn(n) y=out(n) grid=1 block=256
__global__ void copy4(const float* x, float* y, int n) {
  const int i = threadIdx.x;
  if (4 * i >= n) return;
  const float4 v = reinterpret_cast<const float4*>(x)[i];  // FAULT: out-of-bounds
  y[4 * i] = v.x;
}
