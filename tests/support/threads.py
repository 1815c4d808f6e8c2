"""The threads of this process that run calls with a time limit."""

from __future__ import annotations

import threading


def limited_threads() -> set[threading.Thread]:
    """Return the threads that a `TimeLimit` has started and that have not ended."""
    return {thread for thread in threading.enumerate() if thread.name == "limited"}
