"""The surveys in progress. Each runs in a thread of its own, because a storage may not answer.

Invariant: there is at most one survey of a watch at a time, and nobody else uses the watch's state meanwhile. The
caller waits a second for a survey, and not at all while those of the watch are slower. So a table whose storage does
not answer delays the others by a second, once. Only a few surveys are in progress at a time, because each uses
connections to the metastore and to the storage; those that take so long that they are reported do not count.

Requests to HDFS and S3 have time limits. A local file system has none: on a mount whose server is gone, a listing never
ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait

from ingestd.clock import Deadline, monotonic
from ingestd.compaction.survey import PartitionFiles
from ingestd.compaction.watch import TableWatch
from ingestd.errors import StorageUnavailable

Crowded = dict[str, PartitionFiles]
_WAIT_SECONDS = 1.0
_AT_ONCE = 4


class Surveys:
    """Runs `find` for watches. A survey that takes longer than `report_seconds` is reported."""

    def __init__(self, find: Callable[[TableWatch], Crowded], report_seconds: float) -> None:
        self._find = find
        self._report_seconds = report_seconds
        self._running: dict[TableWatch, _Survey] = {}
        self._slow: set[TableWatch] = set()

    def result(self, watch: TableWatch) -> Crowded | None:
        """Return the result of the survey in progress, or of a new one; None if it has not ended or cannot begin yet.

        The next call for the watch returns the result of a survey that has ended meanwhile. Raises the errors of
        `find`, and StorageUnavailable if the survey takes too long.
        """
        survey = self._running.pop(watch, None)
        if survey is None:
            if sum(not other.limit.passed for other in self._running.values()) >= _AT_ONCE:
                return None
            survey = _Survey(lambda: self._find(watch), self._report_seconds)
        if not survey.has_ended_within(0.0 if watch in self._slow else _WAIT_SECONDS):
            self._running[watch] = survey
            self._slow.add(watch)
            if survey.limit.passed:
                raise StorageUnavailable(
                    f"the listing of the directories has not ended within {self._report_seconds:g} s",
                    where=watch.place,
                    hint="check that the file systems of the table and of its partitions answer",
                )
            return None
        if survey.seconds <= _WAIT_SECONDS:
            self._slow.discard(watch)
        return survey.future.result()

    def forget(self, watches: Collection[TableWatch]) -> None:
        """Forget the results for all watches but these."""
        self._slow &= {*watches}
        self._running = {
            watch: survey for watch, survey in self._running.items() if watch in watches or not survey.future.done()
        }


class _Survey:
    """A call in a thread of its own, which the process does not wait for when it ends."""

    def __init__(self, find: Callable[[], Crowded], report_seconds: float) -> None:
        self.future: Future[Crowded] = Future()
        self.limit = Deadline.after(report_seconds)
        self.seconds = 0.0
        threading.Thread(target=self._run, args=(find,), name="survey", daemon=True).start()

    def _run(self, find: Callable[[], Crowded]) -> None:
        began = monotonic()
        try:
            crowded = find()
        except BaseException as error:  # noqa: BLE001  # `result` raises it
            self.seconds = monotonic() - began
            self.future.set_exception(error)
        else:
            self.seconds = monotonic() - began
            self.future.set_result(crowded)

    def has_ended_within(self, seconds: float) -> bool:
        """Wait for the end of the call, and return whether it has ended."""
        return bool(wait([self.future], seconds).done)
