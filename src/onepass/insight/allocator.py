"""Keeping the C allocator's memory, so that a timing is of the work and not of page faults."""

import ctypes

# From glibc's malloc.h. With no mmap and no trimming, a freed buffer's pages stay mapped for the next buffer.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER_TRIM = 2**31 - 1


def keep_warm() -> bool:
    """Make glibc reuse the pages of freed buffers in this process; False where the C library can't.

    A fresh mapping costs a page fault every 4 KiB. On the CPU that hides what a kernel does, the more of it
    the faster the kernel is.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM))
