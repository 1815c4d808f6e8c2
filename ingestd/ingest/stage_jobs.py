"""Runs the stages of one mapping as Spark jobs.

Invariant: no task contains the mapping's `Access`. Spark has it from the first stage until `release`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TypeVar

from ingestd.errors import IngestdError, RecordError
from ingestd.formats.registry import Registry
from ingestd.ingest import exchange, stage
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.stage import Access, StageResult, StageTask
from ingestd.kafka.ranges import split
from ingestd.schema import Column
from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.errors import QueryFailed
from ingestd.spark.query import Query
from ingestd.storage.storages import Storages

E = TypeVar("E", QueryFailed, RecordError)


class StageJobs:
    """The Spark jobs of one mapping. All methods are safe for use from any thread."""

    def __init__(self, engine: Engine, options: MappingOptions, storages: Storages) -> None:
        self._engine = engine
        self._group = JobGroup(options.name)
        self._access = engine.share(Access(dict(options.reader), storages, Registry.of(options.registry)))

    @property
    def parallelism(self) -> int:
        """The largest useful number of tasks of a stage. Waits until Spark has started. Raises EngineLost."""
        return self._engine.parallelism

    def check(self) -> None:
        """Raise EngineLost if Spark cannot be used any more."""
        self._engine.check()

    def run(self, tasks: Sequence[StageTask]) -> list[StageResult | IngestdError]:
        """Run one stage, and return the result or the error of each task. Raises the errors of `Engine.query`.

        If a query fails for a record, or its result cannot be stored, the error names the first such record, and is the
        only one.
        """
        access = self._access.reference()
        query = tasks[0].decoding.query
        if query is None:
            return self._engine.run(self._group, partial(stage.run, access), tasks)
        read, write = partial(stage.read_rows, access), partial(stage.write_rows, access)
        try:
            done = self._engine.query(self._group, query, read, write, tasks)
        except QueryFailed as error:
            raise self._with_record(error, query, tasks) from error
        for task, (_, written) in zip(tasks, done, strict=True):
            if isinstance(written, RecordError):
                return [self._with_record(written, query, [task])]
        return [stage.joined(report, files) for report, files in done]

    def _with_record(self, error: E, query: Query, tasks: Sequence[StageTask]) -> E:
        """Return the error of a query for one record of these tasks, with the record's topic, partition and offset.

        Neither Spark nor a row of the result names its record. As the result for a record depends on no other, the
        query is evaluated again for half of the records that remain, until one is left. Returns `error` if this fails.
        """
        ranges = [part for task in tasks for part in task.ranges]
        found: E | None = None
        while found is None or sum(part.length for part in ranges) > 1:
            first, *others = split(ranges, 2)
            half = replace(tasks[0], ranges=tuple(first), on_error="skip", max_rejects=None)
            cause = self._error_of_query(query, half)
            found = cause if isinstance(cause, type(error)) else None
            if (cause and not found) or not (found or others):
                return error  # the query cannot be evaluated now, or the only record that is left is not at fault
            ranges = first if found else others[0]
        [record] = ranges
        where = f"{record.topic}[{record.partition}] offset {record.first}, {found.where}"
        return type(error)(found.what, where=where, hint=found.hint)

    def _error_of_query(self, query: Query, task: StageTask) -> IngestdError | None:
        """Return the error of a query for the records of a task, whose result is not stored; None if there is none."""
        read = partial(stage.read_rows, self._access.reference())
        try:
            [(_, error)] = self._engine.query(self._group, query, read, stage.check_rows, [task])
        except IngestdError as raised:
            return raised
        return error

    def examine(self, query: Query) -> tuple[Column, ...]:
        """Return the columns of the result of a query. Raises the errors of `Engine.examine`."""
        return self._engine.examine(query)

    def distribute(self, tasks: Sequence[StageTask], writers: int) -> list[StageResult | IngestdError]:
        """Run one stage in which `writers` tasks write the rows of all tasks; otherwise as `run`."""
        access = self._access.reference()
        send, receive = partial(exchange.send, access), partial(exchange.receive, access, tasks[0])
        return list(chain.from_iterable(self._engine.exchange(self._group, send, receive, tasks, writers)))

    def cancel(self) -> None:
        """Cancel the running stages, which then fail with JobFailed. Returns immediately."""
        self._engine.cancel(self._group)

    def release(self) -> None:
        """Remove the mapping's access from Spark, if no stage is running. Never raises."""
        self._access.release()
