"""Runs the stages of one mapping as Spark jobs, and decides which tasks write the rows (`distribution`).

Without distribution, each task writes the rows that it has decoded, or that a query (`where`, `transform`) has computed
from them, so the number of files is up to that of partitions and buckets, times that of tasks. With it, a Spark shuffle
brings the rows of one partition and bucket to one task.

Invariant: no task contains the mapping's `Access`. Spark has it from the first stage until `release`. If rows are
distributed, those of a bucket of a bucketed table have one writer; other partitions that are large are spread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from ingestd.acid.routing import Writers
from ingestd.acid.writer_pool import Partition, StagingFile
from ingestd.errors import IngestdError, RecordError
from ingestd.formats.registry import Registry
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.stage.exchange import Sent, receive, require_all, send, send_result
from ingestd.ingest.stage.fault import Fault, Trial
from ingestd.ingest.stage.task import (
    Access,
    RecordRules,
    RowsScattered,
    StageResult,
    StageTask,
    check_rows,
    joined,
    read_rows,
    stage_ranges,
    write_rows,
)
from ingestd.kafka.ranges import cut
from ingestd.schema import Column
from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.errors import JobFailed
from ingestd.spark.query import Exchange, Query
from ingestd.storage.storages import Storages

Answers = list[StageResult | IngestdError]
"""The result or the error of each task."""

# The largest number of partitions and buckets whose rows each task writes itself. With the default of `commit.bytes`
# and four tasks, the files of more would be smaller than 1 MiB.
_MAX_FILES = 64
# Each writer buffers up to 64 MiB of rows. Few of its partitions have more than one file if it receives less.
_WRITER_BYTES = 32 << 20
# Each sender buffers a few MiB for each writer.
_MAX_WRITERS = 16


class StageJobs:
    """The Spark jobs of one mapping. All methods are safe for use from any thread."""

    def __init__(self, engine: Engine, options: MappingOptions, storages: Storages) -> None:
        self._engine = engine
        self._group = JobGroup(options.name)
        self._access = engine.share(Access(dict(options.reader), storages, Registry.of(options.registry)))
        self._choice = options.distribution
        self._bytes = options.commit.bytes
        # Whether the next stage distributes its rows, and the partitions whose rows have several writers then.
        self._is_distributed = self._choice == "hash"
        self._spread = frozenset[Partition]()

    @property
    def parallelism(self) -> int:
        """The largest useful number of tasks of a stage. Waits until Spark has started. Raises EngineLost."""
        return self._engine.parallelism

    def check(self) -> None:
        """Raise EngineLost if Spark cannot be used any more."""
        self._engine.check()

    def run(self, tasks: Sequence[StageTask]) -> Answers:
        """Run one stage, and return the result or the error of each task.

        If a query fails for a record, or its result cannot be stored, the error names the first such record, and is the
        only one. If the choice of distribution is automatic, a stage that would write too many files without it is
        repeated with it.

        Raises the errors of `Engine.query`, and those of `require_all`.
        """
        if len(tasks) == 1:
            return self._run(tasks)
        if not self._is_distributed:
            limit = _MAX_FILES if self._choice == "auto" else None
            answers = self._run([replace(task, max_files=limit) for task in tasks])
            if not any(isinstance(answer, RowsScattered) for answer in answers):
                return answers
            self._is_distributed = True
        return self._distribute(tasks)

    def _run(self, tasks: Sequence[StageTask]) -> Answers:
        """Run one stage without distribution."""
        query = tasks[0].rules.decoding.query
        if query is not None:
            return self._run_query(query, tasks)
        return self._engine.run(self._group, partial(stage_ranges, self._access.reference()), tasks)

    def _distribute(self, tasks: Sequence[StageTask]) -> Answers:
        """Run one stage whose rows are distributed."""
        count = max(len(tasks), min(_MAX_WRITERS, -(-self._bytes // _WRITER_BYTES)))
        is_bucketed = tasks[0].table.shape.bucketing is not None
        # The same for all tasks: another stage of the mapping may change `_spread`.
        writers = Writers(count, frozenset() if is_bucketed else self._spread)
        tasks = [replace(task, writers=writers) for task in tasks]
        access = self._access.reference()
        receiver, query = partial(receive, access, tasks[0]), tasks[0].rules.decoding.query
        if query is None:
            received = self._engine.exchange(self._group, partial(send, access), receiver, tasks, count)
            answers = list(chain.from_iterable(received))
            require_all(answers)
        else:
            answers = self._distribute_result(query, Exchange(send_result, receiver, count), tasks)
        files = [file for answer in answers if isinstance(answer, StageResult) for file in answer.files]
        self._learn(files, count, is_bucketed=is_bucketed)
        return answers

    def _distribute_result(
        self, query: Query, moved: Exchange[StageTask, Sent, Answers], tasks: Sequence[StageTask]
    ) -> Answers:
        """Run one stage that distributes the result of a query."""
        read = partial(read_rows, self._access.reference())
        try:
            reports, received = self._engine.exchange_result(self._group, query, read, moved, tasks)
        except JobFailed as error:
            raise self._explained(error, query, tasks) from error.__cause__
        answers = list(chain.from_iterable(received))
        for answer in answers:
            if isinstance(answer, RecordError):  # a row of the result; `reports` has those of the records
                return [self._explained(answer, query, tasks)]
        require_all(answers)
        if errors := [answer for answer in (*answers, *reports) if isinstance(answer, IngestdError)]:
            return list(errors)
        # `decoded` of a sender is the number of the rows of the result, and that of a report the one before the query.
        written = [replace(answer, decoded=0) for answer in answers if isinstance(answer, StageResult)]
        complete = [report for report in reports if report is not None]
        assert len(complete) == len(tasks)  # a sender without a report has ended with an error
        return [*complete, *written]

    def _learn(self, files: Sequence[StagingFile], writers: int, *, is_bucketed: bool) -> None:
        """Choose the distribution of the next stage from the files of this one.

        A partition with more than the average number of rows of a writer is spread over several writers.
        """
        rows = Counter[tuple[Partition, int]]()
        for file in files:
            rows[file.partition, file.bucket if is_bucketed else 0] += file.rows
        average = rows.total() / writers
        large = frozenset(partition for (partition, _), number in rows.items() if number > average)
        self._spread = large
        self._is_distributed = self._choice == "hash" or len(rows) > _MAX_FILES // 2

    def _run_query(self, query: Query, tasks: Sequence[StageTask]) -> Answers:
        """Run one stage that writes the result of a query for the rows that each task has decoded."""
        access = self._access.reference()
        read, write = partial(read_rows, access), partial(write_rows, access)
        try:
            done = self._engine.query(self._group, query, read, write, tasks)
        except JobFailed as error:
            raise self._explained(error, query, tasks) from error.__cause__
        for task, (_, written) in zip(tasks, done, strict=True):
            if isinstance(written, RecordError):
                return [self._explained(written, query, [task])]
        return [joined(report, files) for report, files in done]

    def _explained(self, error: Fault, query: Query, tasks: Sequence[StageTask]) -> IngestdError:
        """Return the error of a query with the topic, partition and offset of the first record that causes it.

        Raises JobCancelled if `cancel` interrupts the search for the record.
        """
        ranges = [part for task in tasks for part in task.ranges]
        task = replace(tasks[0], rules=_without_stops(tasks[0].rules), max_bytes=None)

        def name(place: int) -> str:
            [record] = cut(ranges, range(place, place + 1))
            return f"{record.topic}[{record.partition}] offset {record.first}"

        trial = Trial(
            self._engine,
            self._group,
            query,
            sum(part.length for part in ranges),
            lambda places: replace(task, ranges=tuple(cut(ranges, places))),
            name,
            partial(read_rows, self._access.reference()),
            check_rows,
        )
        return trial.explain(error)

    def examine(self, query: Query) -> tuple[Column, ...]:
        """Return the columns of the result of a query. Raises the errors of `Engine.examine`."""
        return self._engine.examine(query)

    def cancel(self) -> None:
        """Cancel the running stages, which then fail with JobCancelled. Returns immediately."""
        self._engine.cancel(self._group)

    def release(self) -> None:
        """Remove the mapping's access from Spark, if no stage is running. Never raises."""
        self._access.release()


def _without_stops(rules: RecordRules) -> RecordRules:
    """Return the rules with which every record that becomes a row does so, whatever the others are."""
    tombstones = "skip" if rules.format.tombstones == "stop" else rules.format.tombstones
    return replace(
        rules,
        format=replace(rules.format, tombstones=tombstones),
        on_error="skip",
        on_unreadable="reject",
        max_rejects=None,
        evolution="none",
    )
