"""The stage of one Spark task: read offset ranges, decode and route the records, and write hidden ORC files.

Invariant: data is columnar from the consumer's batches to the ORC file. Memory is bounded by one batch of records and
the limit of the writer pool, whatever the size of the ranges.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from ingestd.acid.layout import ALL_STATEMENTS
from ingestd.acid.routing import Part, Shape, Writers, route
from ingestd.acid.writer_pool import StagingFile, StagingFiles, WriterPool
from ingestd.errors import IngestdError, RecordError, TooManyPartitions, TransactionError
from ingestd.formats.decoder import DecodeResult, rejected_rows
from ingestd.formats.options import FormatOptions
from ingestd.formats.registry import Registry
from ingestd.ingest.letters.rejects import Rejects, check_limit, stopping
from ingestd.ingest.letters.writer import DeadLetters, LetterTargets, Origin
from ingestd.ingest.options import Evolution, MappingOptions, OnError, OnUnreadable, RejectLimit
from ingestd.ingest.rows.partitioning import Partitioning
from ingestd.ingest.rows.transform import Decoding, table_rows
from ingestd.ingest.stage.memory import memory_of_task
from ingestd.ingest.table.evolution import ColumnsNeeded, require_columns
from ingestd.kafka.ranges import OffsetRange, TopicIdentity
from ingestd.kafka.reader import Batch, read
from ingestd.kafka.timestamps import FirstRecord
from ingestd.kafka.unreadable import UnreadableBatch, stop_before
from ingestd.spark.shared import Reference
from ingestd.storage.storages import Storages


@dataclass(frozen=True, slots=True)
class Access:
    """What the tasks of a mapping need to reach other systems, including secrets. It must not be part of a task."""

    kafka: Mapping[str, Any] = field(repr=False)
    storages: Storages = field(repr=False)
    registry: Registry | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RecordRules:
    """What the records of a mapping become: rows, rejects, or an error that stops it.

    `max_rejects` limits the number of rejects of a transaction.
    """

    format: FormatOptions
    decoding: Decoding
    evolution: Evolution
    on_error: OnError
    on_unreadable: OnUnreadable
    max_rejects: RejectLimit | None

    @classmethod
    def of(cls, options: MappingOptions, decoding: Decoding) -> RecordRules:
        """Return the rules that the configuration of a mapping gives."""
        return cls(
            options.format,
            decoding,
            options.schema_evolution,
            options.on_error,
            options.on_unreadable,
            options.max_rejects,
        )


@dataclass(frozen=True, slots=True)
class StagedTable:
    """The table to which a transaction adds rows. `staging` is the URI of the directory of its staging files.

    `partitioning` contains the sources of its partition columns, and `max_partitions` limits the number of partitions
    that the transaction may write.
    """

    shape: Shape
    partitioning: Partitioning
    write_id: int
    staging: str
    max_partitions: int


@dataclass(frozen=True, slots=True)
class StageTask:
    """The input of one task: all tasks of a stage differ only in their `number`, from 0, and their `ranges`.

    `tasks` is their number, and `offsets` that of the offsets in all of their ranges. `topics` contains the identities
    of the topics. Rejects are written to `letters` if `on_error` is `dead_letter`. The task ends with RowsScattered if
    it would write more than `max_files` files, and with TransactionTooLarge if it has read more than `max_bytes` of
    record values in a transaction of several offsets. `writers` distributes the rows (`exchange.py`); None means that
    each task writes the rows that it has decoded.
    """

    mapping: str
    number: int
    tasks: int
    ranges: tuple[OffsetRange, ...]
    offsets: int
    topics: Mapping[str, TopicIdentity]
    rules: RecordRules
    table: StagedTable
    letters: LetterTargets
    max_bytes: int | None = None
    max_files: int | None = None
    writers: Writers | None = None


class TransactionTooLarge(TransactionError):
    """The records of a transaction are much larger than planned; it is planned again, with fewer of them.

    The task that has noticed it had read `records` records with `bytes` bytes of values.
    """

    def __init__(self, records: int, size: int) -> None:
        super().__init__(
            f"{records:,} records have {size:,} bytes, more than twice commit.bytes: they were larger than expected",
            hint="no action is needed: the next transaction has fewer records",
        )
        self.records, self.bytes = records, size

    def __reduce__(self) -> tuple[object, ...]:
        return TransactionTooLarge, (self.records, self.bytes)


class RowsScattered(TransactionError):
    """The rows of a task are in so many partitions and buckets that they must be distributed (`jobs.py`)."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """The output of one task: its files, its rejects, the number of records read, and the bytes of record values.

    `letters` are the files of the table of dead letters. `skipped` is the number of skipped tombstones. `firsts`
    contains the first record of each range, and `throttled_seconds` is the time that the task has waited because
    brokers delayed their answers. `decoded` is the number of rows before `where` and `transform`.
    """

    files: tuple[StagingFile, ...] = ()
    records: int = 0
    skipped: int = 0
    bytes: int = 0
    firsts: tuple[FirstRecord, ...] = ()
    throttled_seconds: float = 0.0
    rejects: Rejects = field(default_factory=Rejects)
    letters: tuple[StagingFile, ...] = ()
    decoded: int = 0


def stage_ranges(access: Reference[Access], task: StageTask) -> StageResult | IngestdError:
    """Stage the ranges of one task. Errors are returned, because Spark converts raised errors to text."""
    try:
        with memory_of_task():
            return _stage(access.value, task)
    except IngestdError as error:
        return error


def _stage(access: Access, task: StageTask) -> StageResult:
    name = attempt_name(task)
    source, output = _Source(access, task, name), Output(access, task, name)
    try:
        for decoded in source.read():
            output.write(decoded.batches)
        files = output.finish()  # meanwhile, the dead letters that were sent arrive
        return replace(source.finish(), files=files)
    except BaseException:
        output.abort()
        source.abort()
        raise
    finally:
        source.close()


def read_rows(
    access: Reference[Access], task: StageTask, report: Callable[[StageResult | IngestdError], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the decoded rows of one task; report everything but files, or the error that ended it."""
    with memory_of_task():
        try:
            source = _Source(access.value, task, attempt_name(task))
            try:
                for decoded in source.read():
                    yield from decoded.batches
                result = source.finish()
            except BaseException:
                source.abort()
                raise
            finally:
                source.close()
        except IngestdError as error:
            report(error)
        else:
            report(result)


def write_rows(
    access: Reference[Access], task: StageTask, batches: Iterator[pa.RecordBatch]
) -> tuple[StagingFile, ...] | IngestdError:
    """Write the result of the query of one task, and return the files or the error that ended it."""
    with memory_of_task():
        try:
            output = Output(access.value, task, attempt_name(task))
            try:
                for batch in batches:
                    output.write([rows_of_result(task, batch)])
                return output.finish()
            except BaseException:
                output.abort()
                raise
        except IngestdError as error:
            return error


def check_rows(task: StageTask, batches: Iterator[pa.RecordBatch]) -> RecordError | None:
    """Return the error of the first row of the result of a query that the table cannot store; None if there is none."""
    try:
        for batch in batches:
            rows_of_result(task, batch)
    except RecordError as error:
        return error
    return None


def rows_of_result(task: StageTask, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the result of a query as rows of the table. Raises RecordError for a row that it cannot store."""
    return table_rows(batch, task.table.shape, task.table.partitioning, task.rules.decoding.refused)


def joined(
    report: StageResult | IngestdError | None, files: tuple[StagingFile, ...] | IngestdError
) -> StageResult | IngestdError:
    """Return the result of a task from what `read_rows` reported and `write_rows` returned.

    There is no report if `write_rows` returned an error before it had received all rows.
    """
    if isinstance(files, IngestdError):
        return files
    assert report is not None
    return report if isinstance(report, IngestdError) else replace(report, files=files)


def attempt_name(task: StageTask) -> str:
    """Return a new name for the files of a task.

    A retried task must not write to the files of its first attempt, which may still be running.
    """
    return f"task-{task.number}-{uuid.uuid4().hex[:8]}"


class _Source:
    """Reads and decodes the records of one task, and writes its dead letters."""

    def __init__(self, access: Access, task: StageTask, name: str) -> None:
        self._access = access
        self._task = task
        self._decoder = task.rules.decoding.decoder(task.rules.format, access.registry)
        self._letters = _dead_letters(access, task, f"{name}-letters")
        self._records = self._skipped = self._size = self._rows = 0
        self._throttled = 0.0
        self._rejects = Rejects()
        self._firsts: list[FirstRecord] = []

    def read(self) -> Iterator[DecodeResult]:
        """Yield the decoded parts of batches. Raises ColumnsNeeded for all of them after the last one."""
        needed: ColumnsNeeded | None = None
        task, decoder = self._task, self._decoder
        has_letters = task.rules.on_error == "dead_letter"
        needs_messages = has_letters or task.rules.decoding.columns.need_messages
        batches = read(
            self._access.kafka,
            task.ranges,
            topics=task.topics,
            keep_messages=needs_messages,
            on_unreadable=self._reject if task.rules.on_unreadable == "reject" else stop_before,
        )
        for batch in batches:
            self._records, self._size = self._records + len(batch.values), self._size + batch.size
            if task.max_bytes is not None and self._size > task.max_bytes and task.offsets > 1:
                raise TransactionTooLarge(self._records, self._size)
            self._firsts += batch.firsts
            self._throttled += batch.throttled_seconds
            for part, decoded in decoder.decode_in_parts(batch):
                try:
                    require_columns(task.rules.evolution, decoder, task.table.shape, part)
                except ColumnsNeeded as error:
                    needed = error
                if needed is not None:  # the other records may need more columns, or other types
                    continue
                self._skipped, self._rows = self._skipped + decoded.skipped, self._rows + decoded.rows
                _stop_at_rejects(task, part, decoded)
                self._count(Rejects.of(part, decoded.rejects))
                if has_letters:
                    self._letters.write(part, decoded.rejects)
                yield decoded
        if needed is not None:
            raise needed

    def _reject(self, batch: UnreadableBatch) -> None:
        """Skip records that the client of Kafka cannot read, after writing their dead letter."""
        self._records += batch.next - batch.first
        self._count(Rejects.unreadable(batch))
        if self._task.rules.on_error == "dead_letter":
            self._letters.write_unreadable(batch)

    def _count(self, rejects: Rejects) -> None:
        """Count rejects. Raises RecordError if there are too many."""
        self._rejects += rejects
        check_limit(self._rejects, self._task.rules.max_rejects, read=self._records, planned=self._task.offsets)

    def finish(self) -> StageResult:
        """Wait until the dead letters are stored, and return the result without the files of the table."""
        letters = self._letters.finish()
        return StageResult(
            (),
            self._records,
            self._skipped,
            self._size,
            tuple(self._firsts),
            self._throttled,
            self._rejects,
            letters,
            self._rows,
        )

    def abort(self) -> None:
        """Discard the files of the dead letters; never raises."""
        self._letters.abort()

    def close(self) -> None:
        """Close the connections."""
        self._letters.close()


class Output:
    """Routes the rows of one task to hidden files of the table.

    `name` is a prefix of file names that no other attempt of the task uses.
    """

    def __init__(self, access: Access, task: StageTask, name: str) -> None:
        self._task = task
        table = task.table
        outbox = access.storages.at(table.staging).outbox(table.staging, name)
        self._files = StagingFiles(
            outbox, table.shape.columns, table.write_id, encoding=table.shape.encoding, statements=_statements(task)
        )
        self._pool = WriterPool(self._files)

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Write rows. Raises TooManyPartitions, RowsScattered and StorageUnavailable."""
        task, table, pool = self._task, self._task.table, self._pool
        for batch in batches:
            for part in route(batch, table.shape, table.partitioning.static):
                pool.add(part.partition, _bucket(task, part), part.rows)
            count = len(pool.partitions)
            check_partition_count(count, table.max_partitions)
            count *= table.shape.bucketing.count if table.shape.bucketing else 1
            if task.max_files is not None and count > task.max_files:
                raise RowsScattered(f"the rows of one task are in {count:,} partitions and buckets")

    def finish(self) -> tuple[StagingFile, ...]:
        """Close the files and return them."""
        self._pool.close()
        return tuple(self._files.closed)

    def abort(self) -> None:
        """Discard the files; never raises."""
        self._pool.abort()


def _statements(task: StageTask) -> range:
    """Return the statement ids of the task's files.

    The tasks of a transaction may write the same bucket of a bucketed table, so no two of them have an id in common.
    Without buckets the tasks write different buckets instead, which gives each partition one delta. If rows are
    distributed, only one task writes a bucket of a bucketed table.
    """
    may_collide = task.table.shape.bucketing is not None and task.writers is None
    return ALL_STATEMENTS[task.number :: task.tasks] if may_collide else ALL_STATEMENTS


def _bucket(task: StageTask, part: Part) -> int:
    """Return the number in the name of the file for some rows."""
    if task.table.shape.bucketing is not None:
        return part.bucket
    # Compaction merges files with equal numbers, so the number is the same in each transaction if only one task writes.
    return task.number if task.writers is None or part.partition in task.writers.spread else 0


def check_partition_count(count: int, limit: int) -> None:
    """Raise TooManyPartitions when a transaction writes more than `limit` partitions."""
    if count > limit:
        raise TooManyPartitions(
            f"one transaction would write more than {limit:,} partitions",
            where="commit.partitions",
            hint="partition by a column with fewer values, limit a transaction to fewer records (commit.rows,"
            " commit.bytes), or raise commit.partitions if the metastore can handle the load",
        )


def _stop_at_rejects(task: StageTask, batch: Batch, decoded: DecodeResult) -> None:
    """Raise RecordError if a batch has rejects that stop the mapping."""
    stops = decoded.rejects
    if task.rules.on_error != "stop":
        # Tombstones have an option of their own.
        may_stop = task.rules.format.tombstones == "stop"
        rows = rejected_rows(decoded.rejects).tolist() if may_stop else []
        stops = [stops[place] for place, row in enumerate(rows) if batch.values[row] is None]
    if stops:
        raise stopping(Rejects.of(batch, stops))


def _dead_letters(access: Access, task: StageTask, name: str) -> DeadLetters:
    decoder = f"{type(task.rules.format).__module__}.{type(task.rules.format).__qualname__}"
    fields = {column.name: field for column, field in task.rules.decoding.columns.fields}
    origin = Origin(task.mapping, task.number, decoder, task.topics, fields)
    return DeadLetters(task.letters, origin, access.kafka, access.storages, name)
