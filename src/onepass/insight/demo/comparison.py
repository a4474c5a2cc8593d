"""The model of the demonstration run by eager and by a compiled model in turn, batch by batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from onepass.insight.demo.encoder import Batch, gather
from onepass.runtime.timer import Spread, timed, turns

EAGER, COMPILED = "eager", "compiled"

# An embedding has length one; two right evaluations in fp32 differ by about 1e-6 after six layers.
LARGEST_DIFFERENCE = 1e-4

Encode = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Throughput:
    """Tokens a second, padding included, of both, and the ratio of each interleaved pair."""

    eager: Spread
    compiled: Spread
    ratio: Spread
    pairs: int

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form."""
        return {
            "unit": "tokens/s",
            "eager": self.eager.to_dict(),
            "compiled": self.compiled.to_dict(),
            "ratio": self.ratio.to_dict(),
            "pairs": self.pairs,
        }


@dataclass(frozen=True)
class Embedded:
    """Both models' embeddings of the same texts."""

    eager: torch.Tensor
    compiled: torch.Tensor

    @property
    def largest_difference(self) -> float:
        """Over all coordinates; infinite if any is NaN."""
        difference = (self.eager - self.compiled).abs().max().item()
        return difference if difference == difference else float("inf")


def warm_up(encoders: dict[str, Encode], batches: Sequence[Batch], done: Callable[[], None]) -> None:
    """Run each shape twice with each encoder, so that compiling and first allocations are over."""
    with torch.no_grad():
        for batch in one_per_shape(batches):
            for encode in encoders.values():
                for _ in range(2):
                    encode(batch.input_ids, batch.attention_mask)
            done()


def compare(
    encoders: dict[str, Encode],
    batches: Sequence[Batch],
    passes: int,
    device: torch.device,
    done: Callable[[], None],
) -> tuple[Embedded, Throughput]:
    """Embed every batch with both, timing them in turn; each goes first every second time."""
    work = [batch for _ in range(passes) for batch in batches]
    seconds: dict[str, list[float]] = {name: [] for name in encoders}
    parts: dict[str, list[tuple[Batch, torch.Tensor]]] = {name: [] for name in encoders}
    with torch.no_grad():
        for batch, order in zip(work, turns(list(encoders), len(work)), strict=True):
            for name in order:
                call = partial(encoders[name], batch.input_ids, batch.attention_mask)
                result, taken = timed(call, device)
                seconds[name].append(taken)
                parts[name].append((batch, result))
            done()
    return Embedded(gather(parts[EAGER]), gather(parts[COMPILED])), _throughput(work, seconds)


def one_per_shape(batches: Sequence[Batch]) -> list[Batch]:
    """The first batch of each length."""
    return list({batch.length: batch for batch in reversed(batches)}.values())[::-1]


def nearest(questions: torch.Tensor, passages: torch.Tensor) -> list[int]:
    """For each question the index of the passage with the largest inner product; all have length one."""
    return [int(i) for i in (questions @ passages.T).argmax(dim=1)]


def _throughput(work: Sequence[Batch], seconds: dict[str, list[float]]) -> Throughput:
    tokens = [batch.input_ids.numel() for batch in work]

    def rates(name: str) -> Spread:
        return Spread.of([n / s for n, s in zip(tokens, seconds[name], strict=True)])

    ratio = [eager / own for eager, own in zip(seconds[EAGER], seconds[COMPILED], strict=True)]
    return Throughput(rates(EAGER), rates(COMPILED), Spread.of(ratio), len(work))
