"""Finds the record for which a query fails, and names it in the error: neither Spark nor a row of the result does.

The result for a record depends on no other. So the query is evaluated again for half of the records that remain, until
one is left.

Invariant: an error names a record only if the query has failed for this record alone. It becomes QueryFailed only if
the record can be read without the query, and the query fails even if nobody checks its result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ingestd.errors import IngestdError, RecordError
from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.errors import PYTHON_HINT, JobCancelled, JobFailed, QueryFailed
from ingestd.spark.query import Batches, Query, Read, Write

A = TypeVar("A")

Fault = JobFailed | RecordError


@dataclass(frozen=True, slots=True)
class Trial(Generic[A]):
    """Evaluates a query again for some of the records of a job that has failed.

    The records are numbered from 0 to `count`. `item` returns those at some places as the item of a task, for `read`,
    and `name` returns a record as text. `check` returns the error of the first row of the result that cannot be stored.
    """

    engine: Engine
    group: JobGroup
    query: Query
    count: int
    item: Callable[[range], A]
    name: Callable[[int], str]
    read: Read[A, Any]
    check: Write[A, RecordError | None]

    def explain(self, error: Fault) -> IngestdError:
        """Return the error of the first record for which the query fails; `error` if there is none.

        That may be because the job has failed for another reason, or because the query cannot be evaluated now. Raises
        JobCancelled if a job of the search is cancelled, because `error` would then be reported without its record.
        """
        if not _may_be_of_record(error):
            return error
        try:
            return self._explained() or error
        except JobCancelled:
            raise
        except IngestdError:  # less important than the first one
            return error

    def _explained(self) -> IngestdError | None:
        """Return the error that names a record; None if no record is at fault. Raises errors that are of no record."""
        places, fault = range(self.count), None
        while fault is None or len(places) > 1:
            half = places[: (len(places) + 1) // 2]
            fault = self._fault(half, self.check)
            if fault is None and half == places:
                return None
            places = places[len(half) :] if fault is None else half
        if type(fault) is JobFailed:
            self._run(Query(self.query.columns), ignore_rows, places)
            if self._fault(places, ignore_rows) is not None:  # and not `check`, or what it calls
                fault = QueryFailed(fault.what, where=fault.where, hint="correct the SQL; no record was lost")
        return at_record(fault, self.name(places.start))

    def _fault(self, places: range, check: Write[A, RecordError | None]) -> Fault | None:
        try:
            return self._run(self.query, check, places)
        except JobFailed as error:
            if not _may_be_of_record(error):
                raise
            return error

    def _run(self, query: Query, write: Write[A, RecordError | None], places: range) -> RecordError | None:
        [(report, error)] = self.engine.query(self.group, query, self.read, write, [self.item(places)])
        if isinstance(report, IngestdError):  # not all of the records have been read
            raise report
        return error


def ignore_rows(_item: object, batches: Batches) -> None:
    """Receive rows, as a `Trial.check` to which all of them are equal."""
    deque(batches, maxlen=0)


def at_record(error: IngestdError, name: str) -> IngestdError:
    """Return the error with the name of its record."""
    return type(error)(error.what, where=", ".join(filter(None, (name, error.where))), hint=error.hint)


def _may_be_of_record(error: Fault) -> bool:
    """Return whether the cause may be a record: not a cancellation, the loss of a process, or another Python."""
    return type(error) in (RecordError, QueryFailed, JobFailed) and error.hint != PYTHON_HINT
