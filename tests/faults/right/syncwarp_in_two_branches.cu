// Both halves of a warp wait at a __syncwarp() of their own: it is the mask that meets, not the place.
// onepass-check: x=randn(32) y=out(32) grid=1 block=32 ref=references.py:swap_halves
__global__ void swap_halves(const float* x, float* y) {
  __shared__ float s[32];
  if (threadIdx.x < 16) {
    s[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
  } else {
    s[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
  }
  y[threadIdx.x] = s[threadIdx.x ^ 16];
}
