// onepass-check: n=100 x=randint(n,high=8) bins=zeros(8) grid=1 block=n
__global__ void histogram(const int* x, int* bins) {
  bins[x[threadIdx.x]]++;  // FAULT: global-race
}
