"""How long each kernel of a compiled program takes, on the data and in the place where the program runs it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from onepass.capture.runner import Compiled
from onepass.runtime.timer import cold

# Launches of each kernel: their median is steady to some per cent, and a model's hundreds of kernels take seconds.
ROUNDS = 9


def kernel_times(programs: Sequence[Compiled], call: Callable[[], Any]) -> list[list[float]]:
    """Runs ``call``, which runs the programs, and repeats each kernel where it stands.

    Units: µs, the median of the launches; a list for each program, empty where ``call`` does not run it. The inputs
    are as warm as one launch leaves them for the next.
    """
    found: list[list[float]] = [[] for _ in programs]
    with ExitStack() as stack:
        for program, times in zip(programs, found, strict=True):
            timed = {
                name: partial(_timed, program.scope[name], torch.device(built.cluster.device), times)
                for name, built in zip(program.launchers, program.plan.kernels, strict=True)
            }
            stack.callback(program.scope.update, {name: program.scope[name] for name in timed})
            program.scope.update(timed)
        call()
    return found


def _timed(launch: Callable[..., None], device: torch.device, times: list[float], *arguments: int) -> None:
    (samples,) = cold({"kernel": lambda _: launch(*arguments)}, 1, ROUNDS, device).values()
    times.append(statistics.median(samples))
