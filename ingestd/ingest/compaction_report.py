"""Reports the compactions of a table of a mapping: logs events, and notes them in the mapping's monitor.

Invariant: the log and the monitor agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingestd.compaction.policy import Stall
from ingestd.compaction.watch import CompactionStatus
from ingestd.hive.compactions import Compaction
from ingestd.ingest import events
from ingestd.ingest.monitor import Monitor


class CompactionReport:
    """Reports for one mapping; implements `ingestd.compaction.watch.Report`. `on_status` is called with each status."""

    def __init__(self, mapping: str, monitor: Monitor, on_status: Callable[[CompactionStatus], None]) -> None:
        self._mapping = mapping
        self._on_status = on_status
        self._monitor = monitor

    def counted(self, status: CompactionStatus) -> None:
        """Note the state of the table."""
        self._on_status(status)

    def requirements(self, faults: Sequence[str]) -> None:
        """Report that requirements of compaction are violated."""
        events.compaction_requirements(self._mapping, faults)

    def requested(self, compaction: Compaction, deltas: int) -> None:
        """Report a request."""
        self._monitor.counted("compactions_requested")
        events.compaction_requested(self._mapping, compaction, deltas)

    def finished(self, compaction: Compaction) -> None:
        """Report a compaction that has written its result."""
        self._monitor.counted("compactions_finished")
        events.compaction_finished(self._mapping, compaction)

    def failed(self, compaction: Compaction) -> None:
        """Report a compaction without a result."""
        self._monitor.counted("compactions_failed")
        events.compaction_failed(self._mapping, compaction)

    def stalled(self, stall: Stall) -> None:
        """Report that compactions make no progress."""
        events.compaction_stalled(self._mapping, stall)

    def delayed(self, error: Exception) -> None:
        """Report that compaction cannot be watched now."""
        events.compaction_delayed(self._mapping, error)
