"""Models of the transformers library with random weights, by the name of their type."""

from __future__ import annotations

import difflib
from typing import Any

import torch

from onepass.errors import BadUserFile
from onepass.insight.here import usable_device

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def transformers_model(
    kind: str, batch: int, length: int, layers: int, dtype: str, device: str
) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """A model of a type, such as ``bert``, ``gpt2`` or ``llama``, in evaluation mode, and tokens for it.

    Raises: BadUserFile for a type that transformers lacks, one that takes no tokens, or a dtype; NoSuchDevice.
    """
    try:
        import transformers
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError as error:
        raise BadUserFile(
            f"hf:{kind}", "the package transformers is not there", "pip install transformers"
        ) from error
    if kind not in CONFIG_MAPPING:
        near = ", ".join(difflib.get_close_matches(kind, list(CONFIG_MAPPING), 3))
        raise BadUserFile(
            f"hf:{kind}", "transformers has no such type", f"Nearest: {near or 'bert, gpt2, llama'}."
        )
    if dtype not in _DTYPES:
        raise BadUserFile(f"hf:{kind}", f"{dtype} is no dtype", f"Known: {', '.join(_DTYPES)}.")
    config = CONFIG_MAPPING[kind]()
    if not hasattr(config, "vocab_size"):
        raise BadUserFile(f"hf:{kind}", "it takes no tokens", "Build it in a file: FILE.py:BUILD.")
    if layers:
        config.num_hidden_layers = layers
    where = usable_device(device)
    torch.manual_seed(0)
    with where:
        model: torch.nn.Module = transformers.AutoModel.from_config(config)  # type: ignore[no-untyped-call]
        model = model.to(_DTYPES[dtype]).eval()
        tokens = torch.randint(config.vocab_size, (batch, length))
    return model, (tokens,)
