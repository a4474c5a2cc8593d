// In place, each row read as a whole before it is written; a flag that every block may set.
// onepass-check: rows=4 cols=64 x=randn(rows,cols) negative=zeros(1) grid=rows block=cols ref=references.py:reversed_rows
__global__ void reverse(float* x, int* negative, int cols) {
  const float v = x[blockIdx.x * cols + cols - 1 - threadIdx.x];
  if (v < 0.0f) *negative = 1;
  __syncthreads();
  x[blockIdx.x * cols + threadIdx.x] = v;
}
