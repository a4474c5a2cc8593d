// onepass-check: rows=2 cols=77 x=randn(rows,cols) y=out(rows) grid=rows block=64 ref=references.py:row_variance
struct Welford { float mean = 0.f, m2 = 0.f, count = 0.f; };
__device__ void add(Welford& w, float v) { w.count += 1.f; const float d = v - w.mean; w.mean += d / w.count; w.m2 += d * (v - w.mean); }
__device__ Welford merge(const Welford& a, const Welford& b) {
  Welford r; r.count = a.count + b.count;
  if (r.count == 0.f) return r;
  const float d = b.mean - a.mean; r.mean = a.mean + d * b.count / r.count; r.m2 = a.m2 + b.m2 + d * d * a.count * b.count / r.count;
  return r;
}
__device__ Welford shuffled(const Welford& w, int o) {
  Welford r; r.mean = __shfl_xor_sync(~0u, w.mean, o); r.m2 = __shfl_xor_sync(~0u, w.m2, o); r.count = __shfl_xor_sync(~0u, w.count, o); return r;
}
__global__ void row_variance(const float* x, float* y, int cols) {
  __shared__ Welford parts[2];
  Welford w;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) add(w, x[blockIdx.x * cols + i]);
  for (int o = 16; o; o >>= 1) w = merge(w, shuffled(w, o));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = w;
  __syncthreads();
  if (threadIdx.x == 0) { w = merge(parts[0], parts[1]); y[blockIdx.x] = w.m2 / w.count; }
}
