"""Hand-written kernel texts that tests run and break."""

from __future__ import annotations

from onepass.codegen.cuda_prelude import cuda_prelude

_LAYER_NORM = r"""
struct Args { const @X* x; const float* weight; const float* bias; @X* y; long long rows; double eps; };
// x, y: rows x N; one row to T lanes, R rows to a block.
extern "C" __global__ void __launch_bounds__(@T * @R) layer_norm(const __grid_constant__ Args a) {
  constexpr int T = @T, R = @R, W = @W, N = @N, V = (N + T * W - 1) / (T * W);
  __shared__ float scratch[T > 32 ? 2 * R * T / 32 : 1];
  const int lane = threadIdx.x % T;
  const long long row = (long long)blockIdx.x * R + threadIdx.x / T;
  const bool live = row < a.rows;
  groups<T, R> g(scratch);
  vec<@X, W> x_r[V];
  float sum = 0.0f;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int c = (v * T + lane) * W;
    x_r[v] = {};
    if (live && c < N) x_r[v] = load<stream, W>(a.x + row * N + c);
#pragma unroll
    for (int i = 0; i < W; ++i) sum += element(x_r[v], i);
  }
  const float mean = g.sum(sum) / N;
  float squares = 0.0f;
#pragma unroll
  for (int v = 0; v < V; ++v) {
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const float d = element(x_r[v], i) - mean;
      if ((v * T + lane) * W < N) squares += d * d;
    }
  }
  const float rstd = op_rsqrt(g.sum(squares) / N + (float)a.eps);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int c = (v * T + lane) * W;
    if (!(live && c < N)) continue;
    float w[W], b[W], y[W];
    unpack(load<cached, W>(a.weight + c), w);
    unpack(load<cached, W>(a.bias + c), b);
#pragma unroll
    for (int i = 0; i < W; ++i) y[i] = (element(x_r[v], i) - mean) * rstd * w[i] + b[i];
    store<stream>(a.y + row * N + c, pack<@X>(y));
  }
}
"""


def fill(text: str, **values: object) -> str:
    """The prelude and `text`, each @NAME replaced."""
    for name, value in sorted(values.items(), key=lambda item: -len(item[0])):
        text = text.replace(f"@{name}", str(value))
    return cuda_prelude() + text


def layer_norm(dtype: str, cols: int, lanes: int, groups: int, width: int) -> str:
    """LayerNorm with the row in registers, as the generator would print it."""
    return fill(_LAYER_NORM, X=dtype, N=cols, T=lanes, R=groups, W=width)


_MAP = r"""
struct Args { const float* x; const float* z; float* y; long long n; };
// x, z: n; y: functions x n.
extern "C" __global__ void __launch_bounds__(256) k(const __grid_constant__ Args a) {
  const long long i = blockIdx.x * 256LL + threadIdx.x;
  if (i >= a.n) return;
  const float x = load<stream, 1>(a.x + i).get(0), z = load<stream, 1>(a.z + i).get(0);
@BODY}
"""


def map_text(expressions: list[str]) -> str:
    """One kernel that writes each float expression in x and z to its own row of y."""
    body = "".join(f"  a.y[{k} * a.n + i] = {e};\n" for k, e in enumerate(expressions))
    return fill(_MAP, BODY=body)
