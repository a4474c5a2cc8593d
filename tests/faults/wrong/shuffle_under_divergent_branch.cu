// The trap of tree reductions turned into shuffles: lanes that are not below the offset never come.
// onepass-check: rows=2 cols=300 x=randn(rows,cols) y=out(rows) grid=rows block=32 ref=../right/references.py:row_sum
__global__ void row_sum(const float* x, float* y, int cols) {
  const int tid = threadIdx.x;
  float sum = 0.0f;
  for (int i = tid; i < cols; i += 32) sum += x[blockIdx.x * cols + i];
  for (int offset = 16; offset > 0; offset >>= 1) {
    if (tid < offset) sum += __shfl_down_sync(0xffffffff, sum, offset);  // FAULT: missing-lane
  }
  if (tid == 0) y[blockIdx.x] = sum;
}
