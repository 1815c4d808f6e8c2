"""The memory of a process in which Spark runs tasks.

Invariant: what a task has freed is reused within the task, and returned to the system at its end.

liborc reserves 1 MiB for each stream of an open file, 29 MiB for a file of two columns, and uses little of it. These
blocks are in glibc's heap, of which glibc itself returns only the end, and which new files fill at other places. So a
process that has had 16 files open at a time would keep half a gigabyte. With one open file at a time, the end of the
heap would be returned and requested again for each file, which added a quarter to the CPU time of small files.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Parameters of `mallopt`, and the largest values that glibc itself would choose after a large block is freed. Once one
# parameter is set, glibc leaves the other one as it is: 128 KiB, and each larger block would be a mapping of its own.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_HEAP_LIMITS = {_MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 64 << 20}


@contextmanager
def memory_of_task() -> Iterator[None]:
    """Free memory as it suits a task in a `with` statement, and return free memory to the system at its end.

    Reference counts free the records. The garbage collector's search for cycles, which took 17 % of the CPU time, is
    disabled. Another libc than glibc keeps its own rules.
    """
    libc = ctypes.CDLL(None)
    has_heap = hasattr(libc, "malloc_trim")
    if has_heap:
        for parameter, limit in _HEAP_LIMITS.items():
            libc.mallopt(parameter, limit)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if has_heap:
            libc.malloc_trim(0)
