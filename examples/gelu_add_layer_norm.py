"""GELU, a residual add and LayerNorm: three kernels and seven passes over the data, or one and three.

python examples/gelu_add_layer_norm.py
onepass explain examples/gelu_add_layer_norm.py:block --source
"""

import torch
from torch.nn.functional import gelu, layer_norm

ROWS, COLS = 8192, 4096


def block(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return layer_norm(gelu(x, approximate="tanh") + residual, (x.shape[-1],), weight, bias)


def example_inputs() -> tuple[torch.Tensor, ...]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = ((ROWS, COLS), (ROWS, COLS), (COLS,), (COLS,))
    return tuple(torch.randn(shape, device=device) for shape in shapes)


def main() -> None:
    inputs = example_inputs()
    fused = torch.compile(block, backend="onepass")
    with torch.no_grad():
        difference = (fused(*inputs) - block(*inputs)).abs().max().item()
    print(f"largest difference from eager: {difference:.1e}")


if __name__ == "__main__":
    main()
