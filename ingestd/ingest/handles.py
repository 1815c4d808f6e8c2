"""What the rest of the process holds of one mapping: it stops, observes and controls the mapping through these objects.

Invariant: they outlive the main loop. A mapping that is restarted keeps its monitor, its counters and its requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ingestd.ingest.control import Control
from ingestd.ingest.reporter import Reporter
from ingestd.ingest.signals import Signals
from ingestd.ingest.steps import Observe, ignore


@dataclass(frozen=True, slots=True)
class Handles:
    """The reporter of a mapping, the signals that end it, its requests, and the observer of its steps."""

    reporter: Reporter
    signals: Signals = field(default_factory=Signals)
    control: Control = field(default_factory=Control)
    observe: Observe = ignore
