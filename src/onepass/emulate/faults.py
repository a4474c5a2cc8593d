"""What the emulator finds wrong with a kernel, and what to do about each."""

from __future__ import annotations

# In the order of `FaultKind` in runtime.hpp.
KINDS: tuple[tuple[str, str], ...] = (
    ("none", ""),
    ("out-of-bounds", "check the guard of the last vector and the row of the last group of lanes"),
    ("misaligned", "use narrower loads, or choose the vector width from the pointer and the row stride"),
    ("write-to-read-only", "the buffer was handed over as an input: store to an output"),
    (
        "read-only-load-of-written",
        "load with Hint plain: the read-only path may serve old bytes of memory written here",
    ),
    ("unwritten-shared", "write the element first, put a barrier between, or leave it out of the read"),
    ("shared-race", "put __syncthreads(), or inside a warp __syncwarp(), between the two accesses"),
    (
        "barrier-divergence",
        "every thread of a block must reach the same __syncthreads(): one that has returned, or waits at another, "
        "never comes",
    ),
    (
        "missing-lane",
        "every lane in the mask must reach the shuffle, and the lane it reads must be in the mask",
    ),
    ("warp-divergence", "lanes of one mask wait in different places: move the collective out of the branch"),
    ("stack-overflow", "the thread needs more than the emulator's 64 KiB of stack: keep arrays smaller"),
    ("too-many-accesses", "a loop may not end; else raise max_accesses"),
    ("trap", "the kernel called __trap()"),
    (
        "missing-lane",
        "the result depends on what a shuffle gives that reads a lane outside its mask: narrow the shuffle with its "
        "width argument, or put the lane into the mask",
    ),
    ("out-of-bounds", "the index lies past the array's declared length"),
    (
        "global-race",
        "use an atomic, or put __syncthreads(), inside a warp __syncwarp(), between the two accesses",
    ),
    (
        "global-race",
        "the two threads are of different blocks, which nothing orders: use an atomic, or a second launch",
    ),
)
UNDEFINED_LANE, INDEX_PAST_ARRAY = 13, 14

# Those that say where the second thread was: its access of a race, or the collective it waits in.
OF_TWO = frozenset({"shared-race", "global-race", "barrier-divergence", "missing-lane", "warp-divergence"})

# Those that an address belongs to.
OF_MEMORY = frozenset((*range(1, 7), 15, 16))
