"""The signals that end mappings.

Invariant: `stop` and `abort` are never cleared. `abort` is set only after `stop`, by a second signal or after a time
limit.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Signals:
    """The events that end mappings: `stop` commits the open transactions first, `abort` aborts them.

    `reload` requests that the supervisor reads the configuration again; it is cleared when that begins.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    abort: threading.Event = field(default_factory=threading.Event)
    reload: threading.Event = field(default_factory=threading.Event)
