// onepass-check: x=randn(64) y=out(64) grid=1 block=64 shared=128
__global__ void stage(const float* x, float* y) {
  extern __shared__ __align__(16) float s[];
  s[threadIdx.x] = x[threadIdx.x];  // FAULT: out-of-bounds
  __syncthreads();
  y[threadIdx.x] = s[63 - threadIdx.x];
}
