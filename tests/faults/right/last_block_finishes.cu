// The block that draws the last ticket adds the parts of all.
// onepass-check: rows=1 cols=640 x=randn(rows,cols) part=out(10) y=out(1) ticket=zeros(1) grid=10 block=64
// onepass-check: ref=references.py:last_block
__global__ void sum(const float* x, float* part, float* y, unsigned* ticket) {
  __shared__ float s[64];
  __shared__ bool last;
  s[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0.0f;
    for (int i = 0; i < 64; ++i) sum += s[i];
    part[blockIdx.x] = sum;
    __threadfence();
    last = atomicInc(ticket, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float total = 0.0f;
    for (int b = 0; b < gridDim.x; ++b) total += part[b];
    y[0] = total;
  }
}
