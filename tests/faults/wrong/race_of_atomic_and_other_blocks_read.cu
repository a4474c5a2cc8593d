// Each block adds to the total and then divides by it, as if the others had finished.
// onepass-check: x=rand(256,low=1,high=2) total=zeros(1) y=out(256) grid=4 block=64
__global__ void normalise(const float* x, float* total, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(total, x[i]);  // FAULT: global-race
  __syncthreads();
  y[i] = x[i] / *total;  // FAULT: global-race
}
