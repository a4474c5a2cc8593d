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
        "every thread of a block that has not returned must reach the same __syncthreads(): one that waits at another "
        "never comes",
    ),
    (
        "missing-lane",
        "every lane in the mask that has not returned must reach the shuffle, and the lane it reads must be in the mask",
    ),
    ("warp-divergence", "lanes of one mask wait in different places: move the collective out of the branch"),
    ("stack-overflow", "the thread needs more than the emulator's 64 KiB of stack: keep arrays smaller"),
    ("too-many-accesses", "a loop may not end; else raise max_accesses"),
    ("trap", "the kernel called __trap()"),
    (
        "missing-lane",
        "the result depends on what a shuffle gives that reads a lane outside its mask, or one that has returned: narrow "
        "the shuffle with its width argument, or keep the lane and put it into the mask",
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
    (
        "barrier-divergence",
        "threads of a block wait at one __syncthreads() by way of different calls: move it out of the branch",
    ),
    (
        "shared-race",
        "results depend on which comes first, the atomic or the read: put __syncthreads() between",
    ),
    (
        "global-race",
        "results depend on which comes first, the atomic or the read: put a barrier between the two",
    ),
    (
        "global-race",
        "results depend on how many blocks have come to the atomic before this read: read in a second launch, or in "
        "the last block, after __threadfence()",
    ),
    (
        "out-of-bounds",
        "the function wrote past the end of one of its own arrays: check the index and the length",
    ),
    ("division-by-zero", "an integer is divided by 0: what a device gives there is not defined"),
    ("endless-loop", "a loop went on for seconds with no memory access: check the condition that ends it"),
    ("crash", "the host stopped the thread: a wild pointer, or a function called through one"),
    (
        "absent-block",
        "a block of the cluster may not have begun, or may have ended: wait at a cluster barrier before the first store to "
        "its memory, and after the last",
    ),
    (
        "endless-wait",
        "a block waits for a word that no block of the grid writes: write each before it is waited for, and not again "
        "before all have read it",
    ),
)
UNDEFINED_LANE, INDEX_PAST_ARRAY, BARRIER_ELSEWHERE = 13, 14, 17

# An atomic beside a plain read, which a loop around atomicCAS begins with: wrong only where results depend on the order.
SUSPECT = frozenset((18, 19, 20))

# Those after which another order of blocks and lanes would only cost the same time again.
ENDLESS = frozenset({"too-many-accesses", "endless-loop", "endless-wait"})

# Those that say where the second thread was: its access of a race, or the collective it waits in.
OF_TWO = frozenset({"shared-race", "global-race", "barrier-divergence", "missing-lane", "warp-divergence"})

# Those that an address belongs to.
OF_MEMORY = frozenset((*range(1, 7), 15, 16, 25, *SUSPECT))
