"""How much of the memory that this process may have is in use.

Invariant: a container's own limit counts where there is one.
"""

from __future__ import annotations

from pathlib import Path

import psutil

_LIMIT = Path("/sys/fs/cgroup/memory.max")


def used_share() -> float:
    """Resident memory of this process as a share (0 to 1) of what it may have."""
    return float(psutil.Process().memory_info().rss / _limit())


def _limit() -> int:
    total = int(psutil.virtual_memory().total)
    try:
        text = _LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(int(text), total) if text.isdigit() else total
