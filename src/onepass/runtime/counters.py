"""What the runtime has done in this process: kernels compiled, loaded and launched."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field


@dataclass
class Counters:
    """Counts since import. Differences between two moments are what tests and reports use."""

    compiled: int = 0  # sources given to a compiler
    loaded: int = 0  # binaries loaded, from a compiler or from the disk cache
    launches: ctypes.c_longlong = field(default_factory=ctypes.c_longlong)  # compiled code counts here

    @property
    def launched(self) -> int:
        """Kernels launched."""
        return self.launches.value

    @launched.setter
    def launched(self, count: int) -> None:
        self.launches.value = count


COUNTERS = Counters()
