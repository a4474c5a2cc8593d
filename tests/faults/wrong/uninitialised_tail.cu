// The tree adds 64 elements, and only 50 were written.
// onepass-check: n=50 x=randn(n) y=out(1) grid=1 block=64
__global__ void sum(const float* x, float* y, int n) {
  __shared__ float s[64];
  const int t = threadIdx.x;
  if (t < n) s[t] = x[t];
  __syncthreads();
  for (int offset = 32; offset > 0; offset >>= 1) {
    if (t < offset) s[t] += s[t + offset];  // FAULT: unwritten-shared
    __syncthreads();
  }
  if (t == 0) y[0] = s[0];
}
