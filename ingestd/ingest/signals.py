"""The signals that end mappings.

Invariant: an event is never cleared; `abort` is set after `stop`, by a second signal or after a time limit.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Signals:
    """`stop`: commit the open transactions, then end. `abort`: abort them and end."""

    stop: threading.Event = field(default_factory=threading.Event)
    abort: threading.Event = field(default_factory=threading.Event)
