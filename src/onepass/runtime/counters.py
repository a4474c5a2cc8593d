"""What the runtime has done in this process: kernels compiled, loaded and launched."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Counts since import. Differences between two moments are what tests and reports use."""

    compiled: int = 0  # sources given to a compiler
    loaded: int = 0  # binaries loaded, from a compiler or from the disk cache
    launched: int = 0


COUNTERS = Counters()
