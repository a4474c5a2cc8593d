"""Small random models of the architectures the project is measured on, and inputs of any size for each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onepass.capture.backend import Backend

# Two right ways to round differ by this much and less over a whole model; a wrong kernel is off by far more.
WORSE_THAN_EAGER = 1.2

VOCABULARY = 101
HIDDEN, HEADS, LAYERS, WIDE = 64, 4, 2, 128


@dataclass(frozen=True)
class Model:
    """How to build a model, and what to call it with for a batch and a length."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], dict[str, Tensor]]
    dynamic: tuple[int, ...] = (0, 1)  # the dimensions of its inputs that may change


def tokens(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(VOCABULARY, (batch, length))}


def padded_tokens(batch: int, length: int) -> dict[str, Tensor]:
    """Tokens with a mask that ends at another length in each row, as tokenizers pad."""
    mask = torch.arange(length) < torch.randint(1, length + 1, (batch, 1))
    return {**tokens(batch, length), "attention_mask": mask.long()}


def _bert() -> nn.Module:
    import transformers

    return transformers.BertModel(
        transformers.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            num_attention_heads=HEADS,
            num_hidden_layers=LAYERS,
            intermediate_size=WIDE,
            max_position_embeddings=64,
        )
    )


def _gpt2() -> nn.Module:
    import transformers

    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=HIDDEN,
            n_head=HEADS,
            n_layer=LAYERS,
            n_positions=64,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


def _decoder(name: str) -> Callable[[], nn.Module]:
    """Llama and its kin: grouped heads, RMSNorm, rotary positions, gated feed-forward."""

    def build() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{name}Config")(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS // 2,
            num_hidden_layers=LAYERS,
            intermediate_size=WIDE,
            max_position_embeddings=64,
        )
        model: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config)
        return model

    return build


def _modernbert() -> nn.Module:
    import transformers

    return transformers.ModernBertModel(
        transformers.ModernBertConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            num_attention_heads=HEADS,
            num_hidden_layers=LAYERS + 1,  # one global layer and two local ones
            intermediate_size=WIDE,
            max_position_embeddings=64,
            local_attention=8,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            cls_token_id=1,
            sep_token_id=2,
        )
    )


def _t5() -> nn.Module:
    import transformers

    return transformers.T5Model(
        transformers.T5Config(
            vocab_size=VOCABULARY,
            d_model=HIDDEN,
            d_kv=HIDDEN // HEADS,
            d_ff=WIDE,
            num_layers=LAYERS,
            num_heads=HEADS,
        )
    )


def _vit() -> nn.Module:
    import transformers

    return transformers.ViTModel(
        transformers.ViTConfig(
            hidden_size=HIDDEN,
            num_attention_heads=HEADS,
            num_hidden_layers=LAYERS,
            intermediate_size=WIDE,
            image_size=32,
            patch_size=8,
        )
    )


def _whisper() -> nn.Module:
    import transformers
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    return WhisperEncoder(
        transformers.WhisperConfig(
            d_model=HIDDEN,
            encoder_attention_heads=HEADS,
            encoder_layers=LAYERS,
            encoder_ffn_dim=WIDE,
            num_mel_bins=20,
            max_source_positions=16,
        )
    )


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, WIDE, batch_first=True)
    return nn.TransformerEncoder(layer, LAYERS)


def _translated(batch: int, length: int) -> dict[str, Tensor]:
    return {**tokens(batch, length), "decoder_input_ids": torch.randint(VOCABULARY, (batch, length))}


MODELS: dict[str, Model] = {
    "bert": Model(_bert, tokens),
    "bert padded": Model(_bert, padded_tokens),
    "gpt2": Model(_gpt2, tokens),
    "llama": Model(_decoder("Llama"), tokens),
    "llama padded": Model(_decoder("Llama"), padded_tokens),
    "qwen2": Model(_decoder("Qwen2"), tokens),
    "modernbert": Model(_modernbert, tokens),
    "t5": Model(_t5, _translated),
    "vit": Model(_vit, lambda batch, length: {"pixel_values": torch.randn(batch, 3, 32, 32)}, (0,)),
    "whisper": Model(_whisper, lambda batch, length: {"input_features": torch.randn(batch, 20, 32)}, (0,)),
    "nn.TransformerEncoder": Model(
        _encoder, lambda batch, length: {"src": torch.randn(batch, length, HIDDEN)}
    ),
}


def randomised(build: Callable[[], nn.Module]) -> nn.Module:
    """The model in evaluation mode, its parameters moved at random: no bias is zero, no norm weight one."""
    model = build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def first(output: Any) -> Tensor:
    """The main result of a model's output."""
    result = output if isinstance(output, Tensor) else output[0]
    assert isinstance(result, Tensor)
    return result


# Against eager and float64


@dataclass(frozen=True)
class Prepared:
    """A model in one dtype, the same in float64, and its compiled form."""

    model: nn.Module
    exact: nn.Module
    compiled: Callable[..., Any]
    backend: Backend


def prepare(
    described: Model, dtype: torch.dtype, dynamic: bool | None = None, device: str = "cpu"
) -> Prepared:
    model = randomised(described.build).to(device, dtype)
    backend = Backend()
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)
    return Prepared(model, copy.deepcopy(model).double(), compiled, backend)


def inputs(
    described: Model, shape: tuple[int, int], dtype: torch.dtype, device: str = "cpu"
) -> dict[str, Tensor]:
    made = described.inputs(*shape)
    return {name: x.to(device, dtype if x.is_floating_point() else None) for name, x in made.items()}


def results(output: Any) -> list[Tensor]:
    """The floating-point tensors of a model's output, caches left out."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    parts = (
        output.values() if isinstance(output, dict) else output if isinstance(output, (tuple, list)) else ()
    )
    return [t for part in parts for t in results(part)]


def check(prepared: Prepared, given: dict[str, Tensor]) -> None:
    """All results together are at most so much further from float64 than eager's."""
    double = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    exact = results(prepared.exact(**double))
    ours, eagers = results(prepared.compiled(**given)), results(prepared.model(**given))
    assert [(t.dtype, t.shape) for t in ours] == [(t.dtype, t.shape) for t in eagers]
    error, allowed = relative_error(ours, exact), relative_error(eagers, exact) * WORSE_THAN_EAGER
    assert 0 < error <= allowed, (error, allowed)


def relative_error(got: list[Tensor], exact: list[Tensor]) -> float:
    """NaN, which no comparison lets pass, if any value is."""
    flat, right = (torch.cat([t.double().flatten() for t in tensors]) for tensors in (got, exact))
    return ((flat - right).norm() / right.norm()).item()
