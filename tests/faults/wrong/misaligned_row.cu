// Rows of 257 floats: every second row does not start at 16 bytes.
// onepass-check: rows=2 cols=257 x=randn(rows,cols) y=out(rows) grid=rows block=32
__global__ void first4(const float* x, float* y, int cols) {
  const float4* row = reinterpret_cast<const float4*>(x + blockIdx.x * cols);
  if (threadIdx.x == 0) {
    const float4 v = row[0];  // FAULT: misaligned
    y[blockIdx.x] = v.x + v.y + v.z + v.w;
  }
}
