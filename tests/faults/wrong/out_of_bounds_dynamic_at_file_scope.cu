// Bytes and elements mixed up: the launch gives 64 bytes for 64 floats.
// onepass-check: x=randn(64) y=out(64) grid=1 block=64 shared=64
extern __shared__ float buffer[];
__global__ void reverse(const float* x, float* y) {
  buffer[threadIdx.x] = x[threadIdx.x];  // FAULT: out-of-bounds
  __syncthreads();
  y[threadIdx.x] = buffer[63 - threadIdx.x];
}
