// onepass-check: n=64 y=out(n) grid=1 block=64
__global__ void endless(float* y, int n) {
  unsigned v = 1;
  while (v != 0) v = v * 3 + (n == 3);  // FAULT: endless-loop
  y[threadIdx.x] = float(v);
}
