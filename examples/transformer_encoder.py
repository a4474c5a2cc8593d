"""A plain PyTorch transformer: attention and matmuls stay with PyTorch, what lies between them is fused.

python examples/transformer_encoder.py
onepass explain examples/transformer_encoder.py:encoder
"""

import torch


def _encoder() -> torch.nn.Module:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        256, nhead=4, dim_feedforward=1024, activation="gelu", batch_first=True
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.nn.TransformerEncoder(layer, num_layers=2).eval().requires_grad_(False).to(device)


encoder = _encoder()


def example_inputs() -> tuple[torch.Tensor, ...]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return (torch.randn(8, 128, 256, device=device),)


def main() -> None:
    (tokens,) = example_inputs()
    compiled = torch.compile(encoder, backend="onepass")
    with torch.no_grad():
        difference = (compiled(tokens) - encoder(tokens)).abs().max().item()
    print(f"largest difference from eager: {difference:.1e}")


if __name__ == "__main__":
    main()
