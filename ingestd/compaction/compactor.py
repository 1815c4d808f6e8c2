"""The background thread that serves the watches of all mappings.

Invariant: the thread never ends because of an error, and no mapping waits for it. The queue is read at most once per
cycle, for all mappings. While the metastore is unavailable, a cycle ends with its first call. A cycle does not wait for
tables whose storage does not answer (`surveys.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ingestd.clock import Deadline, monotonic, pause
from ingestd.compaction.policy import Progress, Queue
from ingestd.compaction.requirements import metastore_faults
from ingestd.compaction.surveys import Crowded, Surveys
from ingestd.compaction.watch import TableWatch
from ingestd.errors import MetastoreUnavailable
from ingestd.hive.compactions import read_compactions
from ingestd.publish.warehouse import Warehouse

_CYCLE_SECONDS = 5.0
# The pause after a cycle, as a multiple of its duration: a long history of the queue must not occupy the metastore.
_REST = 10.0
# How often the settings of the metastore are read.
_SETTINGS_SECONDS = 300.0
# A survey that takes longer is reported. The metastore, HDFS and S3 end theirs earlier, with an error that says more.
_REPORT_SECONDS = 120.0
_STOP_SECONDS = 1.0


class Compactor:
    """Serves watches from `start` to `stop`.

    `cycle_seconds` is the shortest pause between two cycles. A survey that takes longer than `report_seconds` is
    reported.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        cycle_seconds: float = _CYCLE_SECONDS,
        report_seconds: float = _REPORT_SECONDS,
    ) -> None:
        self._metastore = warehouse.metastore
        self._surveys = Surveys(lambda watch: watch.find_crowded(warehouse, self._faults), report_seconds)
        self._cycle_seconds = cycle_seconds
        self._watches: tuple[TableWatch, ...] = ()
        self._progress = Progress()
        self._faults: list[str] = []
        self._settings_at = Deadline.after(0.0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compaction", daemon=True)

    def add(self, watch: TableWatch) -> None:
        """Serve another watch."""
        self._watches = (*self._watches, watch)

    def remove(self, watch: TableWatch) -> None:
        """Stop serving a watch, because its mapping was removed."""
        self._watches = tuple(other for other in self._watches if other is not watch)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Waits at most 1 s for a call in progress; the process can end without it."""
        self._ended.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        seconds = self._cycle_seconds
        while not pause(seconds, self._ended):
            began = monotonic()
            active = [watch for watch in self._watches if watch.is_active]
            try:
                self._cycle(active)
            except Exception as error:  # noqa: BLE001 - the thread must serve the other watches in the next cycle
                for watch in active:
                    watch.delayed(error)
            seconds = max(self._cycle_seconds, _REST * (monotonic() - began))

    def _cycle(self, watches: list[TableWatch]) -> None:
        """Let each watch survey its table, then read the queue if a watch needs it, and let each watch act."""
        self._surveys.forget(watches)
        if not watches:
            return
        if self._settings_at.passed:
            self._faults = metastore_faults(self._metastore)
            self._settings_at = Deadline.after(_SETTINGS_SECONDS)
        surveyed: list[tuple[TableWatch, Crowded]] = []
        for watch in watches:
            if self._ended.is_set():
                return
            with _reporting(watch):
                crowded = self._surveys.result(watch)
                if crowded is not None:
                    surveyed.append((watch, crowded))
        queue = None
        if any(watch.needs_queue(crowded) for watch, crowded in surveyed):
            queue = Queue(read_compactions(self._metastore))
            self._progress.observe(queue)
        for watch, crowded in surveyed:
            with _reporting(watch):
                if queue is not None:
                    watch.act(self._metastore, queue, self._progress, crowded)
                watch.succeeded()


@contextmanager
def _reporting(watch: TableWatch) -> Iterator[None]:
    """Report an error of one watch, which must not affect the others. Raises MetastoreUnavailable."""
    try:
        yield
    except MetastoreUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - one table must not prevent the compaction of the others
        watch.delayed(error)
