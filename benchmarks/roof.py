"""The measured roof of a case: the package's stream kernels with the case's numbers of read and write streams."""

from __future__ import annotations

import torch

from cases import Point
from onepass.insight.streams import Roof, stream_roofs

__all__ = ["Roof", "roofs"]


def roofs(point: Point, device: torch.device, sets: int) -> list[Roof]:
    """The stream kernels of a point's mix, on random buffers: `sets` of the inputs."""
    return stream_roofs(point.case.reads, point.case.writes, point.tensor_bytes, device, sets)
