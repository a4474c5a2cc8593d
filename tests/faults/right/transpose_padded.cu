// onepass-check: rows=45 cols=70 x=randn(rows,cols) y=out(cols,rows) grid=(3,2) block=(32,8) ref=references.py:transpose
#define TILE 32
__global__ void transpose(const float* x, float* y, int rows, int cols) {
  __shared__ float tile[TILE][TILE + 1];  // one column more: no bank conflict
  const int col = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
  for (int j = 0; j < TILE; j += 8)
    if (row + j < rows && col < cols) tile[threadIdx.y + j][threadIdx.x] = x[(row + j) * cols + col];
  __syncthreads();
  const int to_col = blockIdx.y * TILE + threadIdx.x, to_row = blockIdx.x * TILE + threadIdx.y;
  for (int j = 0; j < TILE; j += 8)
    if (to_row + j < cols && to_col < rows) y[(to_row + j) * rows + to_col] = tile[threadIdx.x][threadIdx.y + j];
}
