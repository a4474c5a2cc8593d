"""The measured roof of a point: the package's stream kernels with its case's numbers of streams."""

from __future__ import annotations

import torch

from cases import Point
from onepass.insight import roof
from onepass.insight.roof import Roof


def roofs(point: Point, device: torch.device, sets: int) -> list[Roof]:
    """The stream kernels of a point's mix, on random buffers: `sets` of the inputs."""
    return roof.roofs(*point.streams, device, sets)
