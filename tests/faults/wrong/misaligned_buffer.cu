// onepass-check: n=64 x=randn(n,offset=1) y=out(n) grid=1 block=16
__global__ void copy4(const float* x, float* y, int n) {
  const int i = threadIdx.x;
  if (i < n / 4) reinterpret_cast<float4*>(y)[i] = reinterpret_cast<const float4*>(x)[i];  // FAULT: misaligned
}
