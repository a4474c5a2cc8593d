"""`@onepass.fuse`: the whole function becomes onepass kernels, or it raises and says why not.

SwiGLU's gate, then an RMSNorm written out by hand: any chain of element-wise ops and row reductions.

    python examples/gated_rms_norm.py
"""

import torch

import onepass


def gated(x: torch.Tensor, gate: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.silu(gate) * x
    return y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + 1e-6) * scale


def example_inputs() -> tuple[torch.Tensor, ...]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return tuple(torch.randn(shape, device=device) for shape in ((1024, 2048), (1024, 2048), (2048,)))


def main() -> None:
    inputs = example_inputs()
    with torch.no_grad():
        difference = (onepass.fuse(gated)(*inputs) - gated(*inputs)).abs().max().item()
    print(f"largest difference from eager: {difference:.1e}")


if __name__ == "__main__":
    main()
