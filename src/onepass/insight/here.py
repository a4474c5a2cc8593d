"""The devices of this machine."""

from __future__ import annotations

import torch

from onepass.errors import NoSuchDevice


def usable_device(name: str) -> torch.device:
    """The device of a name, ``cpu``, ``cuda`` or ``cuda:1``; without one the first GPU, or the CPU.

    Raises: NoSuchDevice.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise NoSuchDevice(name, "is not a device that PyTorch knows") from error
    if device.type not in ("cpu", "cuda"):
        raise NoSuchDevice(name, "onepass has no kernels for it")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise NoSuchDevice(name, f"{torch.cuda.device_count()} GPUs are usable here")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device
