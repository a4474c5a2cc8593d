// onepass-check: x=randn(96) y=out(96) grid=1 block=96 shared=384
template <typename T>
__global__ void rotate(const T* x, T* y) {
  extern __shared__ T s[];
  const int t = threadIdx.x;
  s[t] = x[t];                      // FAULT: shared-race
  y[t] = s[(t + 1) % blockDim.x];   // FAULT: shared-race
}
template __global__ void rotate<float>(const float*, float*);
