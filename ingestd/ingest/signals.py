"""The signals that end mappings.

Invariant: no event is ever cleared. `abort` is set only after `stop`, by a second signal or after a time limit.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Signals:
    """The events that end mappings: `stop` commits the open transactions first, `abort` aborts them."""

    stop: threading.Event = field(default_factory=threading.Event)
    abort: threading.Event = field(default_factory=threading.Event)
